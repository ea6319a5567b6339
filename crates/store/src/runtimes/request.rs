//! Asks for an operation: its line in the log and its job, in one transaction (R2, R3).
//!
//! The first operation that brings a container up binds the runtime to a node (`place`). When there is none for it, the
//! operation waits all the same: its job is for whoever takes it, and each try looks again.

use domain::limits::{OPERATION_ATTEMPTS, OPERATION_RETRY_MAX_S, OPERATION_RETRY_S};
use domain::runtime::placement::Nowhere;
use domain::runtime::{ImageRef, OperationCode, OperationKind, OperationSource};
use domain::{Affinity, JobId, Label, Name, Origin, RetryPolicy, RuntimeName, TenantId};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::runtimes::{KIND, Outcome, QUEUE, Runtime, get, place};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug)]
pub struct NewOperation {
    pub kind: OperationKind,
    pub source: OperationSource,
    /// What caused it: an event's id, say.
    pub source_ref: Option<String>,
    /// What to start, or what to patch to; the declared image, when `None`.
    pub image: Option<ImageRef>,
    pub actor: String,
    /// How many triggers led here (T5).
    pub depth: i32,
    /// The one node that will do, whatever others there are; any, when `None`.
    pub on: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    Accepted {
        operation: Uuid,
        job: JobId,
    },
    /// It was written down as a failure and not tried.
    Refused {
        operation: Uuid,
        code: OperationCode,
        message: String,
    },
    NotFound,
    /// No node drives an engine.
    NoNode,
}

/// Times the node of a runtime may change under a request.
const LOOKS: usize = 3;

impl Store {
    pub async fn request_operation(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: NewOperation,
    ) -> Result<Requested, StoreError> {
        for _ in 0..LOOKS {
            let request = match self.prepare_operation(tenant, name, &new).await? {
                Ok(request) => request,
                Err(requested) => return Ok(requested),
            };
            if let Some(requested) = self.write(request).await? {
                self.announce(&asked_for(tenant));
                return Ok(requested);
            }
        }
        Err(moved())
    }

    /// An operation for the node that its runtime is on now, or could be on; `Err` when there is none to ask for.
    pub(crate) async fn prepare_operation(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: &NewOperation,
    ) -> Result<Result<Request, Requested>, StoreError> {
        let on = new.on.clone();
        let place = match self.read(Look { tenant, name: name.clone(), kind: new.kind, on }).await? {
            Looked::At(place) => place,
            Looked::NotFound => return Ok(Err(Requested::NotFound)),
            Looked::NoNode => return Ok(Err(Requested::NoNode)),
        };
        self.operation_at(tenant, name, new, place).await.map(Ok)
    }

    pub(super) async fn operation_at(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: &NewOperation,
        place: Place,
    ) -> Result<Request, StoreError> {
        let id = new_uuid(self.clock().now());
        let at = async |node: Option<&str>| {
            let job = job(name, new, id, node);
            let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
            Ok::<_, StoreError>(EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes)))
        };
        let there = at(place.node()).await?;
        let anywhere = if matches!(place, Place::Free(_)) { Some(at(None).await?) } else { None };
        Ok(Request { tenant, name: name.clone(), new: new.clone(), id, place, there, anywhere })
    }

    /// The lane of operations that wait for this node.
    pub(super) async fn lane_of_node(&self, tenant: TenantId, node: &str) -> Result<i64, StoreError> {
        let lane = crate::lanes::Lane {
            tenant,
            queue: Name::stored(QUEUE),
            kind: Name::stored(KIND),
            priority: 0,
            affinity: affinity(Some(node)),
            guarded: true,
        };
        self.lane_ids(&[lane]).await?.pop().ok_or_else(|| StoreError::unexpected("a lane is missing"))
    }
}

/// What others should hear of once an operation was asked for.
pub(crate) fn asked_for(tenant: TenantId) -> Effects {
    Effects { ready: [(tenant, Name::stored(QUEUE))].into(), runtimes: true, ..Effects::default() }
}

/// The runtime is on another node than a moment ago; whoever asks again finds it.
pub(crate) fn moved() -> StoreError {
    StoreError::unavailable("the runtime is being moved")
}

fn affinity(node: Option<&str>) -> Affinity {
    node.map(Label::stored)
}

fn job(name: &RuntimeName, new: &NewOperation, id: Uuid, node: Option<&str>) -> NewJob {
    let retry = RetryPolicy::new(Some(OPERATION_RETRY_S), Some(OPERATION_RETRY_MAX_S), Some(2.0), Some(0.1));
    let extras = Extras {
        subject: Some(Label::stored(&name.subject())),
        retry: Some(retry.expect("the policy of operations is one")),
        triggered_by: Origin::Operation.stored(),
        depth: new.depth,
        ..Extras::default()
    };
    NewJob {
        queue: Name::stored(QUEUE),
        kind: Name::stored(KIND),
        payload: format!(r#"{{"operation":"{id}","runtime":"{name}","kind":"{}"}}"#, new.kind).into(),
        affinity: affinity(node),
        priority: 0,
        run_at: None,
        max_attempts: OPERATION_ATTEMPTS,
        principal: new.actor.as_str().into(),
        extras: Some(Box::new(extras)),
    }
}

/// Where an operation is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the node that the runtime is bound to.
    Bound(String),
    /// On a node that had room for it a moment ago.
    Free(String),
    /// Nowhere yet, or wherever it is taken: there is nothing to find a node for, or none to be found.
    Anywhere,
}

impl Place {
    fn node(&self) -> Option<&str> {
        match self {
            Self::Bound(node) | Self::Free(node) => Some(node),
            Self::Anywhere => None,
        }
    }
}

/// Which node a runtime is on, or could be on.
struct Look {
    tenant: TenantId,
    name: RuntimeName,
    kind: OperationKind,
    on: Option<String>,
}

enum Looked {
    At(Place),
    NotFound,
    NoNode,
}

impl Operation for Look {
    type Output = Looked;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Looked, StoreError> {
        let Some(runtime) = get::find(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Looked::NotFound);
        };
        if let Some(node) = runtime.node {
            return Ok(Looked::At(Place::Bound(node)));
        }
        Ok(match place::find(tx, &runtime, self.on.as_deref()).await? {
            Ok(node) if self.kind.brings_up() => Looked::At(Place::Free(node)),
            Err(Nowhere::NoNode) => Looked::NoNode,
            // Who must be on one node is told now whether it would do.
            Err(_) if self.on.is_some() && self.kind.brings_up() => {
                Looked::At(Place::Free(self.on.clone().unwrap_or_default()))
            }
            Ok(_) | Err(_) => Looked::At(Place::Anywhere),
        })
    }
}

/// An operation on its way into the database.
pub(crate) struct Request {
    tenant: TenantId,
    name: RuntimeName,
    new: NewOperation,
    id: Uuid,
    place: Place,
    there: EnqueueBatch,
    /// The same for nobody in particular, where the place may be taken by now.
    anywhere: Option<EnqueueBatch>,
}

pub(super) const INSERT: Sql =
    Sql::both(&["insert into operations (id, tenant, runtime, kind, source, source_ref, actor,
         image_ref, container_id, outcome, error_code, error_message, requested_at, started_at, finished_at,
         correlation_id, job, node)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"]);

impl Operation for Request {
    /// `None` when the runtime is on another node by now.
    type Output = Option<Requested>;

    fn tenant(&self) -> Option<TenantId> {
        // Who looks for a free slot counts everybody's runtimes.
        Some(self.tenant).filter(|_| !matches!(self.place, Place::Free(_)))
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Requested>, StoreError> {
        if matches!(self.place, Place::Free(_)) {
            place::lock(tx).await?;
        }
        let Some(runtime) = get::lock(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Some(Requested::NotFound));
        };
        let bound = matches!(self.place, Place::Bound(_)).then(|| self.place.node()).flatten();
        if runtime.node.as_deref() != bound {
            return Ok(None);
        }
        self.ask(tx, &runtime).await.map(Some)
    }
}

impl Request {
    /// The same where the runtime is locked and nobody else places any.
    pub(super) async fn ask(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<Requested, StoreError> {
        let image = self.image(runtime);
        let on = self.new.on.as_deref();
        let checked = self.check(runtime, image.as_ref());
        let placed = match (&checked, &self.place) {
            (Ok(()), Place::Free(_)) => Some(place::find(tx, runtime, on.or(self.place.node())).await?),
            _ => None,
        };
        let refused = match (checked, &placed) {
            (Err(refused), _) => Some(refused),
            (Ok(()), Some(Err(nowhere))) if on.is_some() => Some((nowhere.code(), nowhere.to_string())),
            _ => None,
        };
        if let Some((code, message)) = refused {
            self.insert(tx, image.as_ref(), self.place.node(), None, Some((code, &message))).await?;
            return Ok(Requested::Refused { operation: self.id, code, message });
        }
        let (enqueue, node) = match (&placed, &self.anywhere) {
            // Taken since: it waits for whoever has room next.
            (Some(Err(_)), Some(anywhere)) => (anywhere, None),
            _ => (&self.there, self.place.node()),
        };
        if let (Some(Ok(_)), Some(node)) = (&placed, node) {
            place::bind(tx, runtime, node).await?;
        }
        let job = match enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let job = job.ok_or_else(|| StoreError::unexpected("an operation made no job"))?.id;
        self.insert(tx, image.as_ref(), node, Some(job), None).await?;
        Ok(Requested::Accepted { operation: self.id, job })
    }
}

impl Request {
    fn image(&self, runtime: &Runtime) -> Option<ImageRef> {
        match self.new.kind {
            OperationKind::Start | OperationKind::Restart => {
                Some(self.new.image.clone().unwrap_or_else(|| runtime.spec.image.clone()))
            }
            _ => self.new.image.clone(),
        }
    }

    /// What can be told before anything is touched (R3).
    fn check(&self, runtime: &Runtime, image: Option<&ImageRef>) -> Result<(), (OperationCode, String)> {
        if runtime.deleting && self.new.kind != OperationKind::CleanupContainer {
            return Err((OperationCode::Conflict, "the runtime is being deleted".into()));
        }
        if let (Some(on), Some(node)) = (&self.new.on, &runtime.node)
            && on != node
        {
            return Err((OperationCode::Conflict, format!("it is on the node {node} and is wanted on {on}")));
        }
        if self.new.kind != OperationKind::Patch {
            return Ok(());
        }
        let Some(to) = image else {
            return Err((OperationCode::InvalidRequest, "a patch names the image to patch to".into()));
        };
        let from = runtime.current_image.as_deref().map_or_else(|| runtime.spec.image.clone(), ImageRef::stored);
        from.check_patch(to).map_err(|code| {
            let message = match code {
                OperationCode::ImageRefNotSemver => {
                    format!("a patch goes from one version to another: {from} or {to} has no tag like 1.2.3")
                }
                _ => format!("{to} is not another patch of {from}: repository, major and minor stay"),
            };
            (code, message)
        })
    }

    async fn insert(
        &self,
        tx: &mut Tx<'_>,
        image: Option<&ImageRef>,
        node: Option<&str>,
        job: Option<JobId>,
        refused: Option<(OperationCode, &str)>,
    ) -> Result<(), StoreError> {
        let now = tx.now();
        let ended = refused.map(|_| now);
        let params = [
            Param::Uuid(self.id),
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Text(self.new.kind.as_str()),
            Param::Text(self.new.source.as_str()),
            Param::text(self.new.source_ref.as_deref()),
            Param::Text(&self.new.actor),
            Param::text(image.map(ImageRef::as_str)),
            Param::Null,
            Param::text(refused.map(|_| Outcome::Failure.as_str())),
            Param::text(refused.map(|(code, _)| code.as_str())),
            Param::text(refused.map(|(_, message)| message)),
            Param::Time(now),
            Param::time(ended),
            Param::time(ended),
            Param::Uuid(self.id),
            Param::uuid(job.map(JobId::uuid)),
            Param::text(node),
        ];
        tx.execute(&INSERT, &params).await.map(|_| ())
    }
}

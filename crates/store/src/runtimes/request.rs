//! Requests an operation: inserts its row in the operation log and its job in one transaction.
//!
//! The first operation that brings a container up binds the runtime to a node (see `place`). If no node fits, the
//! operation waits: its job can be claimed by any node, and each attempt tries the placement again.

use domain::limits::{OPERATION_ATTEMPTS, OPERATION_RETRY_MAX_S, OPERATION_RETRY_S};
use domain::runtimes::placement::PlacementError;
use domain::runtimes::{ImageRef, OperationCode, OperationKind, OperationSource};
use domain::{Affinity, JobId, Label, Name, Origin, RetryPolicy, RuntimeName, TenantId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::runtimes::{KIND, OperationOutcome, QUEUE, Runtime, get, place};
use crate::store::Store;

/// An operation to request.
#[derive(Clone, Debug)]
pub struct NewOperation {
    pub kind: OperationKind,
    pub source: OperationSource,
    /// What caused it, for example the id of an event.
    pub source_ref: Option<String>,
    /// The image to start or to patch to; the declared image if `None`.
    pub image: Option<ImageRef>,
    pub actor: String,
    /// How many triggers in a row caused the operation.
    pub depth: i32,
    /// The only node on which the operation may run; any node if `None`.
    pub on: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requested {
    Accepted {
        operation: Uuid,
        job: JobId,
    },
    /// The operation was recorded as failed and does not run.
    Refused {
        operation: Uuid,
        code: OperationCode,
        message: String,
    },
    NotFound,
    /// No node drives an engine.
    NoNode,
}

/// How often a request is retried because the runtime changed its node in between.
const MAX_TRIES: usize = 3;

impl Store {
    /// Requests an operation on a runtime.
    pub async fn request_operation(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: NewOperation,
    ) -> Result<Requested, StoreError> {
        for _ in 0..MAX_TRIES {
            let request = match self.prepare_operation(tenant, name, &new).await? {
                Ok(request) => request,
                Err(requested) => return Ok(requested),
            };
            if let Some(requested) = self.write(request).await? {
                self.announce(&operation_requested(tenant));
                return Ok(requested);
            }
        }
        Err(runtime_moved())
    }

    /// Prepares an operation for the node of its runtime, or for a node that could take it. Returns `Err` if the
    /// runtime does not exist or no node drives an engine.
    pub(crate) async fn prepare_operation(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: &NewOperation,
    ) -> Result<Result<OperationRequest, Requested>, StoreError> {
        let on = new.on.clone();
        let target = match self.read(FindTarget { tenant, name: name.clone(), kind: new.kind, on }).await? {
            TargetLookup::Found(target) => target,
            TargetLookup::NotFound => return Ok(Err(Requested::NotFound)),
            TargetLookup::NoNode => return Ok(Err(Requested::NoNode)),
        };
        self.operation_at(tenant, name, new, target).await.map(Ok)
    }

    /// Prepares an operation for a target.
    pub(super) async fn operation_at(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: &NewOperation,
        target: OperationTarget,
    ) -> Result<OperationRequest, StoreError> {
        let id = new_uuid(self.clock().now());
        let enqueue_at = async |node: Option<&str>| {
            let job = job(name, new, id, node);
            let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
            Ok::<_, StoreError>(EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes)))
        };
        let enqueue = enqueue_at(target.node()).await?;
        let unassigned = if matches!(target, OperationTarget::Free(_)) { Some(enqueue_at(None).await?) } else { None };
        Ok(OperationRequest { tenant, name: name.clone(), new: new.clone(), id, target, enqueue, unassigned })
    }

    /// Returns the lane of the operation jobs for this node.
    pub(super) async fn lane_of_node(&self, tenant: TenantId, node: &str) -> Result<i64, StoreError> {
        let lane = crate::queue::lanes::Lane {
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

/// Returns the notifications to send after an operation was requested.
pub(crate) fn operation_requested(tenant: TenantId) -> Effects {
    Effects { ready: [(tenant, Name::stored(QUEUE))].into(), runtimes: true, ..Effects::default() }
}

/// The error for a runtime whose node changed during the request. A retry succeeds.
pub(crate) fn runtime_moved() -> StoreError {
    StoreError::unavailable("the runtime is being moved to another node; try again")
}

fn affinity(node: Option<&str>) -> Affinity {
    node.map(Label::stored)
}

fn job(name: &RuntimeName, new: &NewOperation, id: Uuid, node: Option<&str>) -> NewJob {
    let retry = RetryPolicy::new(Some(OPERATION_RETRY_S), Some(OPERATION_RETRY_MAX_S), Some(2.0), Some(0.1));
    let extras = Extras {
        subject: Some(Label::stored(&name.subject())),
        retry: Some(retry.expect("the retry policy of operations is valid")),
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

/// Where an operation runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OperationTarget {
    /// On the node to which the runtime is bound.
    Bound(String),
    /// On a node that had a free slot when it was looked up.
    Free(String),
    /// On any node: the operation brings no container up, or no node fits now.
    Unassigned,
}

impl OperationTarget {
    fn node(&self) -> Option<&str> {
        match self {
            Self::Bound(node) | Self::Free(node) => Some(node),
            Self::Unassigned => None,
        }
    }
}

/// Finds the node of a runtime, or a node that could take it.
struct FindTarget {
    tenant: TenantId,
    name: RuntimeName,
    kind: OperationKind,
    on: Option<String>,
}

enum TargetLookup {
    Found(OperationTarget),
    NotFound,
    NoNode,
}

impl Operation for FindTarget {
    type Output = TargetLookup;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TargetLookup, StoreError> {
        let Some(runtime) = get::find(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(TargetLookup::NotFound);
        };
        if let Some(node) = runtime.node {
            return Ok(TargetLookup::Found(OperationTarget::Bound(node)));
        }
        Ok(match place::find(tx, &runtime, self.on.as_deref()).await? {
            Ok(node) if self.kind.brings_up() => TargetLookup::Found(OperationTarget::Free(node)),
            Err(PlacementError::NoNode) => TargetLookup::NoNode,
            // If the operation is restricted to one node, the request itself reports why that node does not fit.
            Err(_) if self.on.is_some() && self.kind.brings_up() => {
                TargetLookup::Found(OperationTarget::Free(self.on.clone().unwrap_or_default()))
            }
            Ok(_) | Err(_) => TargetLookup::Found(OperationTarget::Unassigned),
        })
    }
}

/// A prepared request.
pub(crate) struct OperationRequest {
    tenant: TenantId,
    name: RuntimeName,
    new: NewOperation,
    id: Uuid,
    target: OperationTarget,
    /// The job for the target node.
    enqueue: EnqueueBatch,
    /// The job without a node, in case the free slot is used by now.
    unassigned: Option<EnqueueBatch>,
}

pub(super) const INSERT: Sql =
    Sql::both(&["insert into operations (id, tenant, runtime, kind, source, source_ref, actor,
         image_ref, container_id, outcome, error_code, error_message, requested_at, started_at, finished_at,
         correlation_id, job, node)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"]);

impl Operation for OperationRequest {
    /// `None` if the runtime has changed its node in the meantime.
    type Output = Option<Requested>;

    fn tenant(&self) -> Option<TenantId> {
        // A check for free slots counts the runtimes of all tenants.
        Some(self.tenant).filter(|_| !matches!(self.target, OperationTarget::Free(_)))
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Requested>, StoreError> {
        if matches!(self.target, OperationTarget::Free(_)) {
            place::lock(tx).await?;
        }
        let Some(runtime) = get::lock(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Some(Requested::NotFound));
        };
        let bound = matches!(self.target, OperationTarget::Bound(_)).then(|| self.target.node()).flatten();
        if runtime.node.as_deref() != bound {
            return Ok(None);
        }
        self.submit(tx, &runtime).await.map(Some)
    }
}

impl OperationRequest {
    /// Inserts the operation and its job. The caller has locked the runtime and, for a free node, holds the placement
    /// lock.
    pub(super) async fn submit(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<Requested, StoreError> {
        let image = self.image(runtime);
        let on = self.new.on.as_deref();
        let checked = self.check(runtime, image.as_ref());
        let placed = match (&checked, &self.target) {
            (Ok(()), OperationTarget::Free(_)) => Some(place::find(tx, runtime, on.or(self.target.node())).await?),
            _ => None,
        };
        let refused = match (checked, &placed) {
            (Err(refused), _) => Some(refused),
            (Ok(()), Some(Err(error))) if on.is_some() => Some((error.code(), error.to_string())),
            _ => None,
        };
        if let Some((code, message)) = refused {
            self.insert(tx, image.as_ref(), self.target.node(), None, Some((code, &message))).await?;
            return Ok(Requested::Refused { operation: self.id, code, message });
        }
        let (enqueue, node) = match (&placed, &self.unassigned) {
            // The slot was used in the meantime. The job waits for the next node with a free slot.
            (Some(Err(_)), Some(unassigned)) => (unassigned, None),
            _ => (&self.enqueue, self.target.node()),
        };
        if let (Some(Ok(_)), Some(node)) = (&placed, node) {
            place::bind(tx, runtime, node).await?;
        }
        let job = match enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let job = job.ok_or_else(|| StoreError::unexpected("the enqueue of an operation's job was refused"))?.id;
        self.insert(tx, image.as_ref(), node, Some(job), None).await?;
        Ok(Requested::Accepted { operation: self.id, job })
    }
}

impl OperationRequest {
    fn image(&self, runtime: &Runtime) -> Option<ImageRef> {
        match self.new.kind {
            OperationKind::Start | OperationKind::Restart => {
                Some(self.new.image.clone().unwrap_or_else(|| runtime.spec.image.clone()))
            }
            _ => self.new.image.clone(),
        }
    }

    /// Checks everything that can be checked before the operation runs.
    fn check(&self, runtime: &Runtime, image: Option<&ImageRef>) -> Result<(), (OperationCode, String)> {
        if runtime.deleting && self.new.kind != OperationKind::CleanupContainer {
            return Err((OperationCode::Conflict, "the runtime is being deleted".into()));
        }
        if let (Some(on), Some(node)) = (&self.new.on, &runtime.node)
            && on != node
        {
            let message = format!("the runtime is on node {node}, but the operation must run on node {on}");
            return Err((OperationCode::Conflict, message));
        }
        if self.new.kind != OperationKind::Patch {
            return Ok(());
        }
        let Some(to) = image else {
            return Err((OperationCode::InvalidRequest, "a patch requires an image".into()));
        };
        let from = runtime.current_image.as_deref().map_or_else(|| runtime.spec.image.clone(), ImageRef::stored);
        from.check_patch(to).map_err(|code| {
            let message = match code {
                OperationCode::ImageRefNotSemver => {
                    format!("a patch requires semantic version tags such as 1.2.3; {from} or {to} has none")
                }
                _ => format!("{to} is not a patch of {from}: repository, major and minor version must be equal"),
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
            Param::text(refused.map(|_| OperationOutcome::Failure.as_str())),
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

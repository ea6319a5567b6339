//! Asks for an operation: its line in the log and its job, in one transaction (R2, R3).

use std::collections::HashMap;

use domain::limits::{OPERATION_ATTEMPTS, OPERATION_RETRY_MAX_S, OPERATION_RETRY_S};
use domain::runtime::{ImageRef, OperationCode, OperationKind, OperationSource};
use domain::{JobId, Label, Name, Origin, RetryPolicy, RuntimeName, TenantId, Time};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::runtimes::nodes::{self, EngineNode};
use crate::runtimes::{KIND, Outcome, QUEUE, Runtime, get};
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

    /// An operation for the node that its runtime is on now; `Err` when there is none to ask for.
    pub(crate) async fn prepare_operation(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        new: &NewOperation,
    ) -> Result<Result<Request, Requested>, StoreError> {
        let node = match self.read(Place { tenant, name: name.clone() }).await? {
            Placed::On(node) => node,
            Placed::NotFound => return Ok(Err(Requested::NotFound)),
            Placed::Nowhere => return Ok(Err(Requested::NoNode)),
        };
        let id = new_uuid(self.clock().now());
        let job = job(name, new, id, &node);
        let lanes = self.lane_ids(&[job.lane(tenant)]).await?;
        let enqueue = EnqueueBatch::one(EnqueueRequest::new(tenant, vec![job], lanes));
        Ok(Ok(Request { tenant, name: name.clone(), new: new.clone(), id, node, enqueue }))
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

fn job(name: &RuntimeName, new: &NewOperation, id: Uuid, node: &str) -> NewJob {
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
        affinity: Some(Label::stored(node)),
        priority: 0,
        run_at: None,
        max_attempts: OPERATION_ATTEMPTS,
        principal: new.actor.as_str().into(),
        extras: Some(Box::new(extras)),
    }
}

/// Which node a runtime is on, or is to be on.
struct Place {
    tenant: TenantId,
    name: RuntimeName,
}

enum Placed {
    On(String),
    NotFound,
    Nowhere,
}

const LOAD: Sql = Sql::both(&["select node, count(*) from runtimes where node is not null group by node"]);

impl Operation for Place {
    type Output = Placed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Placed, StoreError> {
        let Some(runtime) = get::find(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Placed::NotFound);
        };
        if let Some(node) = runtime.node {
            return Ok(Placed::On(node));
        }
        let mut load = HashMap::new();
        for row in tx.query(&LOAD, &[]).await? {
            load.insert(row.text(0)?, row.int(1)?);
        }
        let nodes = nodes::all(tx).await?;
        Ok(choose(&nodes, &load, tx.now()).map_or(Placed::Nowhere, |node| Placed::On(node.to_owned())))
    }
}

/// The node with the fewest runtimes among those that are there, one whose engine is there if any is.
fn choose<'n>(nodes: &'n [EngineNode], load: &HashMap<String, i64>, now: Time) -> Option<&'n str> {
    let living = nodes.iter().filter(|node| !node.is_lost(now));
    let order =
        |node: &&EngineNode| (node.fault.is_some(), load.get(&node.name).copied().unwrap_or(0), node.name.clone());
    living.min_by_key(order).map(|node| node.name.as_str())
}

/// An operation on its way into the database.
pub(crate) struct Request {
    tenant: TenantId,
    name: RuntimeName,
    new: NewOperation,
    id: Uuid,
    node: String,
    enqueue: EnqueueBatch,
}

const BIND: Sql = Sql::both(&["update runtimes set node = $3 where tenant = $1 and name = $2"]);
pub(super) const INSERT: Sql =
    Sql::both(&["insert into operations (id, tenant, runtime, kind, source, source_ref, actor,
         image_ref, container_id, outcome, error_code, error_message, requested_at, started_at, finished_at,
         correlation_id, job, node)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"]);

impl Operation for Request {
    /// `None` when the runtime is on another node by now.
    type Output = Option<Requested>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Requested>, StoreError> {
        let Some(runtime) = get::lock(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Some(Requested::NotFound));
        };
        match &runtime.node {
            Some(node) if *node != self.node => return Ok(None),
            Some(_) => {}
            None => {
                let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str()), Param::Text(&self.node)];
                tx.execute(&BIND, &params).await?;
            }
        }
        let image = self.image(&runtime);
        if let Err((code, message)) = self.check(&runtime, image.as_ref()) {
            self.insert(tx, image.as_ref(), None, Some((code, &message))).await?;
            return Ok(Some(Requested::Refused { operation: self.id, code, message }));
        }
        let job = match self.enqueue.run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
            _ => None,
        };
        let job = job.ok_or_else(|| StoreError::unexpected("an operation made no job"))?.id;
        self.insert(tx, image.as_ref(), Some(job), None).await?;
        Ok(Some(Requested::Accepted { operation: self.id, job }))
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
            Param::Text(&self.node),
        ];
        tx.execute(&INSERT, &params).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn r1_a_runtime_goes_where_an_engine_is_and_the_fewest_are() {
        let node = |name: &str, fault: Option<&str>, at| EngineNode {
            name: name.into(),
            labels: BTreeMap::new(),
            fault: fault.map(Into::into),
            seen_at: Time::from_seconds(at),
        };
        let nodes = [node("a", None, 100), node("b", None, 100), node("c", Some("away"), 100), node("d", None, 1)];
        let load = HashMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(choose(&nodes, &load, Time::from_seconds(101)), Some("b"));
        assert_eq!(choose(&nodes[2..], &load, Time::from_seconds(101)), Some("c"), "better late than never");
        assert_eq!(choose(&nodes[3..], &load, Time::from_seconds(101)), None);
    }
}

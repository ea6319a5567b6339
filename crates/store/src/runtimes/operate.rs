//! Records the end of an operation, with its effect on the container. Called by the node that ran it.
//!
//! The operation's job is settled afterwards. If the node dies in between, the next node that claims the job finds the
//! operation closed and settles the job with the recorded outcome.

use domain::runtimes::{OperationCode, OperationKind, OperationSource};
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, JobError, JobId, TenantId};
use uuid::Uuid;

use crate::db::clock::{new_uuid, uuids_from};
use crate::db::codec::to_json;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::request::INSERT;
use crate::runtimes::{OperationOutcome, OperationRecord, Runtime, codec, get, operation_record};
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::dead_letters::handlers;
use crate::triggers::events::{Event, emit};

/// How an attempt of an operation ended.
#[derive(Clone, Debug)]
pub struct OperationEnd {
    pub outcome: OperationOutcome,
    pub code: Option<OperationCode>,
    pub message: Option<String>,
    /// The container that the operation worked on.
    pub container_id: Option<String>,
    pub change: ContainerChange,
    /// The steps of a restart or a patch. Each gets a row of its own.
    pub steps: Vec<OperationKind>,
    /// True if the operation is retried. The row of the next attempt is inserted at once.
    pub again: bool,
}

/// The effect of an operation on the runtime's container.
#[derive(Clone, Debug)]
pub enum ContainerChange {
    Nothing,
    Started(StartedContainer),
    Stopped,
    Removed,
}

#[derive(Clone, Debug)]
pub struct StartedContainer {
    pub container_id: String,
    pub image: String,
    pub endpoint: Option<String>,
    pub state_path: String,
}

impl Store {
    /// Returns the tenants with open operations for this node or for any node.
    pub async fn tenants_with_operations(&self, node: &str) -> Result<Vec<TenantId>, StoreError> {
        self.read(ListTenantsWithOperations { node: node.to_owned() }).await
    }

    /// Records the end of an operation by the node that ran it. Ignored if the operation was moved to another node or
    /// has ended.
    pub async fn end_operation(
        &self,
        tenant: TenantId,
        id: Uuid,
        node: &str,
        ended: OperationEnd,
    ) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        if self.write(EndOperation { tenant, id, node: node.to_owned(), ended, triggers }).await? {
            self.notifier().notify(Topic::Outbox);
        }
        self.notifier().notify_local(&Topic::Runtimes);
        Ok(())
    }

    /// Closes operations whose jobs have ended without them: canceled by a user, or out of attempts. Returns their
    /// number.
    pub async fn close_orphaned_operations(&self) -> Result<u64, StoreError> {
        self.write(CloseOrphanedOperations).await
    }
}

struct ListTenantsWithOperations {
    node: String,
}

const TENANTS: Sql = Sql::both(&["select distinct tenant from operations
     where (node = $1 or node is null) and finished_at is null and job is not null"]);

impl Operation for ListTenantsWithOperations {
    type Output = Vec<TenantId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TenantId>, StoreError> {
        let rows = tx.query(&TENANTS, &[Param::Text(&self.node)]).await?;
        rows.iter().map(|row| row.int("tenant").map(TenantId)).collect()
    }
}

struct EndOperation {
    tenant: TenantId,
    id: Uuid,
    node: String,
    ended: OperationEnd,
    triggers: TriggerCache,
}

const OPEN: Sql = Sql::both(&["select id, tenant, runtime, kind, source, source_ref, actor, image_ref, container_id,
         outcome, error_code, error_message, requested_at, started_at, finished_at, correlation_id, job
     from operations where id = $1 and tenant = $2 and finished_at is null and (node = $3 or node is null)"]);
const CLOSE: Sql = Sql::both(&["update operations set outcome = $2, error_code = $3, error_message = $4,
         container_id = $5, finished_at = $6, started_at = coalesce(started_at, $6)
     where id = $1"]);
const STARTED: Sql = Sql::both(&["update runtimes set status = 'running', container_id = $3, current_image = $4,
         endpoint = $5, state_path = $6, spec = $7, started_at = $8, stopped_at = null, removed_at = null,
         last_op_at = $8, health = null, health_source = null, health_details = null, health_at = null
     where tenant = $1 and name = $2"]);
const STOPPED: Sql =
    Sql::both(&["update runtimes set status = 'stopped', endpoint = null, stopped_at = $3, last_op_at = $3,
         health = null, health_source = null, health_details = null, health_at = null
     where tenant = $1 and name = $2"]);
pub(super) const REMOVED: Sql =
    Sql::both(&["update runtimes set status = 'removed', container_id = null, endpoint = null,
         removed_at = $3, last_op_at = $3, health = null, health_source = null, health_details = null, health_at = null
     where tenant = $1 and name = $2"]);
const TOUCHED: Sql = Sql::both(&["update runtimes set last_op_at = $3 where tenant = $1 and name = $2"]);
const DELETE: Sql = Sql::both(&["delete from runtimes where tenant = $1 and name = $2"]);

impl Operation for EndOperation {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether a trigger receives the event.
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let open = [Param::Uuid(self.id), Param::Int(self.tenant.0), Param::Text(&self.node)];
        let row = tx.query_opt(&OPEN, &open).await?;
        let Some(operation) = row.as_ref().map(operation_record).transpose()? else { return Ok(false) };
        let runtime = get::lock(tx, self.tenant, operation.runtime.as_str()).await?;
        let now = Param::Time(tx.now());
        let ended = &self.ended;
        let params = [
            Param::Uuid(self.id),
            Param::Text(ended.outcome.as_str()),
            Param::text(ended.code.map(OperationCode::as_str)),
            Param::text(ended.message.as_deref()),
            Param::text(ended.container_id.as_deref()),
            now,
        ];
        tx.execute(&CLOSE, &params).await?;
        for kind in &ended.steps {
            insert(tx, &operation, *kind, Some(ended)).await?;
        }
        if ended.again {
            insert(tx, &operation, operation.kind, None).await?;
        }
        if let Some(runtime) = runtime {
            self.change(tx, &operation, &runtime).await?;
        }
        let subject = operation.runtime.subject();
        let detail = serde_json::json!({
            "operation": self.id, "outcome": ended.outcome.as_str(), "message": ended.message,
            "image": operation.image_ref, "container_id": ended.container_id,
        });
        let entry = Entry {
            runtime: Some(operation.runtime.as_str()),
            process: Some(operation.source.as_str()),
            job: operation.job,
            actor: Some(&operation.actor),
            cause: ended.code.map(OperationCode::as_str),
            detail: Some(to_json(&detail)),
            ..Entry::of_subject(self.tenant, &subject, operation.kind.as_str())
        };
        timeline::write(tx, &[entry]).await?;
        let listeners = self.triggers.current(tx).await?;
        let data = serde_json::json!({
            "runtime": operation.runtime.as_str(), "operation_id": self.id, "kind": operation.kind.as_str(),
            "source": operation.source.as_str(), "outcome": ended.outcome.as_str(),
            "error_code": ended.code.map(OperationCode::as_str), "error_message": ended.message,
            "image_ref": operation.image_ref, "container_id": ended.container_id, "correlation_id": operation.correlation_id,
        });
        self.record_letter_handler(tx, &operation).await?;
        let depth = depth_of(tx, operation.job).await?;
        let event = Event::new(tx.now(), self.tenant, Source::Runtime, operation.kind.as_str(), depth, to_json(&data));
        Ok(emit(tx, &listeners, &[event.with("name", operation.runtime.as_str())]).await? > 0)
    }
}

const DEPTH: Sql = Sql::both(&["select depth from live_jobs where id = $1
     union all select depth from ended_jobs where id = $1"]);

/// Returns the trigger depth of an operation's job: how many triggers in a row caused it. The operation's events
/// inherit it.
pub(super) async fn depth_of(tx: &mut Tx<'_>, job: Option<JobId>) -> Result<i32, StoreError> {
    let Some(job) = job else { return Ok(0) };
    let row = tx.query_opt(&DEPTH, &[Param::from(job)]).await?;
    row.map_or(Ok(0), |row| row.int("depth").map(|depth| depth as i32))
}

impl EndOperation {
    /// Records the end of the handler of a dead letter, if such a trigger requested this operation. The event of a dead letter has the
    /// letter's id, so the id of any other event matches no letter.
    async fn record_letter_handler(&self, tx: &mut Tx<'_>, operation: &OperationRecord) -> Result<(), StoreError> {
        let event = operation.source_ref.as_deref().and_then(|text| Uuid::try_parse(text).ok());
        let Some(event) = event.filter(|_| operation.source == OperationSource::Stream && !self.ended.again) else {
            return Ok(());
        };
        let error = (self.ended.outcome == OperationOutcome::Failure).then(|| JobError {
            code: self.ended.code.map_or("internal_error", OperationCode::as_str).into(),
            message: self.ended.message.clone().unwrap_or_default(),
            retryable: false,
        });
        handlers::operation_ended(tx, self.tenant, DeadLetterId::new(event), operation.id, error.as_ref()).await
    }

    /// Applies the effect to the runtime's row.
    async fn change(&self, tx: &mut Tx<'_>, operation: &OperationRecord, runtime: &Runtime) -> Result<(), StoreError> {
        let id = [Param::Int(self.tenant.0), Param::Text(runtime.name.as_str()), Param::Time(tx.now())];
        match &self.ended.change {
            ContainerChange::Nothing => tx.execute(&TOUCHED, &id).await?,
            ContainerChange::Stopped => tx.execute(&STOPPED, &id).await?,
            ContainerChange::Removed if runtime.deleting => tx.execute(&DELETE, &id[..2]).await?,
            ContainerChange::Removed => tx.execute(&REMOVED, &id).await?,
            ContainerChange::Started(started) => {
                // The running image becomes the declared one, unless the runtime was declared again after this
                // operation was requested.
                let mut spec = runtime.spec.clone();
                if uuids_from(runtime.updated_at) <= operation.correlation_id {
                    spec.image = domain::runtimes::ImageRef::stored(&started.image);
                }
                let (spec, _) = codec::write(&spec);
                let params = [
                    id[0],
                    id[1],
                    Param::Text(&started.container_id),
                    Param::Text(&started.image),
                    Param::text(started.endpoint.as_deref()),
                    Param::Text(&started.state_path),
                    Param::Json(&spec),
                    id[2],
                ];
                tx.execute(&STARTED, &params).await?
            }
        };
        Ok(())
    }
}

/// Inserts a row for a step of the operation if `ended` is set, otherwise for its next attempt.
async fn insert(
    tx: &mut Tx<'_>,
    operation: &OperationRecord,
    kind: OperationKind,
    ended: Option<&OperationEnd>,
) -> Result<(), StoreError> {
    let now = tx.now();
    let at = ended.map(|_| now);
    let params = [
        Param::Uuid(new_uuid(now)),
        Param::Int(operation.tenant.0),
        Param::Text(operation.runtime.as_str()),
        Param::Text(kind.as_str()),
        Param::Text(operation.source.as_str()),
        Param::text(operation.source_ref.as_deref()),
        Param::Text(&operation.actor),
        Param::text(operation.image_ref.as_deref()),
        Param::text(ended.and_then(|ended| ended.container_id.as_deref())),
        Param::text(ended.map(|_| OperationOutcome::Success.as_str())),
        Param::Null,
        Param::Null,
        Param::Time(now),
        Param::time(if ended.is_some() { operation.started_at } else { None }),
        Param::time(at),
        Param::Uuid(operation.correlation_id),
        Param::uuid(if ended.is_some() { None } else { operation.job.map(JobId::uuid) }),
        Param::Null,
    ];
    tx.execute(&INSERT, &params).await?;
    if ended.is_none() {
        tx.execute(&SAME_NODE, &[Param::Uuid(operation.id), Param::uuid(operation.job.map(JobId::uuid))]).await?;
    }
    Ok(())
}

// The next attempt runs on the same node.
const SAME_NODE: Sql = Sql::both(&["update operations set node = (select o.node from operations o where o.id = $1)
     where job = $2 and finished_at is null"]);

struct CloseOrphanedOperations;

const CLOSE_ORPHANED: Sql =
    Sql::both(&["update operations set outcome = 'failure', error_code = 'service_unavailable',
         error_message = 'its job ended before it was done', finished_at = $1, started_at = coalesce(started_at, $1)
     where finished_at is null and job is not null and job in (select e.id from ended e where e.id = operations.job)"]);

impl Operation for CloseOrphanedOperations {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&CLOSE_ORPHANED, &[now]).await
    }
}

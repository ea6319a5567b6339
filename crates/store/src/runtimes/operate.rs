//! An operation on its way, told by the node that does it: begun, and ended with what it did to the container (R2).
//!
//! The job that stands behind it is settled afterwards. Whoever dies in between finds the line closed and settles the job
//! with what is written there.

use domain::runtime::{OperationCode, OperationKind, OperationSource};
use domain::trigger::Source;
use domain::{DeadLetterId, JobId, Resolution, TenantId};
use uuid::Uuid;

use crate::clock::{new_uuid, uuids_from};
use crate::codec::to_json;
use crate::dead_letters::resolve::resolve;
use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::runtimes::request::INSERT;
use crate::runtimes::{Logged, Outcome, Runtime, codec, get, logged};
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Param, Sql, Tx};

/// How a try of an operation ended.
#[derive(Clone, Debug)]
pub struct Ended {
    pub outcome: Outcome,
    pub code: Option<OperationCode>,
    pub message: Option<String>,
    /// The container it was about.
    pub container_id: Option<String>,
    pub change: Change,
    /// What a restart or a patch was made of, told on lines of their own.
    pub steps: Vec<OperationKind>,
    /// It is tried again: the next try gets its line at once.
    pub again: bool,
}

/// What it did to the runtime.
#[derive(Clone, Debug)]
pub enum Change {
    Nothing,
    Started(Started),
    Stopped,
    Removed,
}

#[derive(Clone, Debug)]
pub struct Started {
    pub container_id: String,
    pub image: String,
    pub endpoint: Option<String>,
    pub state_path: String,
}

impl Store {
    /// The tenants for which this node has operations to do, those among them that are for whoever takes them.
    pub async fn tenants_with_operations(&self, node: &str) -> Result<Vec<TenantId>, StoreError> {
        self.read(Tenants { node: node.to_owned() }).await
    }

    /// Told by the node that did it. What a node did that the runtime was taken from is not its to tell any more.
    pub async fn end_operation(&self, tenant: TenantId, id: Uuid, node: &str, ended: Ended) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        if self.write(End { tenant, id, node: node.to_owned(), ended, triggers }).await? {
            self.hints().tell(Topic::Outbox);
        }
        self.hints().wake(&Topic::Runtimes);
        Ok(())
    }

    /// Closes lines whose jobs ended without them: canceled by a person, or out of attempts.
    pub async fn close_forgotten_operations(&self) -> Result<u64, StoreError> {
        self.write(CloseForgotten).await
    }
}

struct Tenants {
    node: String,
}

const TENANTS: Sql = Sql::both(&["select distinct tenant from operations
     where (node = $1 or node is null) and finished_at is null and job is not null"]);

impl Operation for Tenants {
    type Output = Vec<TenantId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TenantId>, StoreError> {
        let rows = tx.query(&TENANTS, &[Param::Text(&self.node)]).await?;
        rows.iter().map(|row| row.int(0).map(TenantId)).collect()
    }
}

struct End {
    tenant: TenantId,
    id: Uuid,
    node: String,
    ended: Ended,
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

impl Operation for End {
    const WATCHES_TRIGGERS: bool = true;
    /// Whether a trigger heard of it.
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let open = [Param::Uuid(self.id), Param::Int(self.tenant.0), Param::Text(&self.node)];
        let row = tx.query_opt(&OPEN, &open).await?;
        let Some(line) = row.as_ref().map(logged).transpose()? else { return Ok(false) };
        let runtime = get::lock(tx, self.tenant, line.runtime.as_str()).await?;
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
            insert(tx, &line, *kind, Some(ended)).await?;
        }
        if ended.again {
            insert(tx, &line, line.kind, None).await?;
        }
        if let Some(runtime) = runtime {
            self.change(tx, &line, &runtime).await?;
        }
        let subject = line.runtime.subject();
        let detail = serde_json::json!({
            "operation": self.id, "outcome": ended.outcome.as_str(), "message": ended.message,
            "image": line.image_ref, "container_id": ended.container_id,
        });
        let entry = Entry {
            runtime: Some(line.runtime.as_str()),
            process: Some(line.source.as_str()),
            job: line.job,
            actor: Some(&line.actor),
            cause: ended.code.map(OperationCode::as_str),
            detail: Some(to_json(&detail)),
            ..Entry::of_subject(self.tenant, &subject, line.kind.as_str())
        };
        timeline::write(tx, &[entry]).await?;
        let listeners = self.triggers.current(tx).await?;
        let data = serde_json::json!({
            "runtime": line.runtime.as_str(), "operation_id": self.id, "kind": line.kind.as_str(),
            "source": line.source.as_str(), "outcome": ended.outcome.as_str(),
            "error_code": ended.code.map(OperationCode::as_str), "error_message": ended.message,
            "image_ref": line.image_ref, "container_id": ended.container_id, "correlation_id": line.correlation_id,
        });
        self.tell_letter(tx, &line).await?;
        let depth = depth_of(tx, line.job).await?;
        let event = Event::new(tx.now(), self.tenant, Source::Runtime, line.kind.as_str(), depth, to_json(&data));
        Ok(emit(tx, &listeners, &[event.with("name", line.runtime.as_str())]).await? > 0)
    }
}

const DEPTH: Sql = Sql::both(&["select depth from live_jobs where id = $1
     union all select depth from ended_jobs where id = $1"]);

/// How many triggers led to the operation behind this job: what it brings about inherits that (T5).
pub(super) async fn depth_of(tx: &mut Tx<'_>, job: Option<JobId>) -> Result<i32, StoreError> {
    let Some(job) = job else { return Ok(0) };
    let row = tx.query_opt(&DEPTH, &[Param::from(job)]).await?;
    row.map_or(Ok(0), |row| row.int(0).map(|depth| depth as i32))
}

impl End {
    /// A trigger that handles dead letters may ask for an operation: its end resolves the letter (T8). The event of a
    /// letter has the letter's own id; another event's id is no letter's.
    async fn tell_letter(&self, tx: &mut Tx<'_>, line: &Logged) -> Result<(), StoreError> {
        let event = line.source_ref.as_deref().and_then(|text| Uuid::try_parse(text).ok());
        let Some(event) = event.filter(|_| line.source == OperationSource::Stream && !self.ended.again) else {
            return Ok(());
        };
        let resolution = match self.ended.outcome {
            Outcome::Success => Resolution::HandledByScript,
            Outcome::Failure => Resolution::HandlerFailed,
        };
        let by = format!("operation:{}", line.id);
        resolve(tx, self.tenant, DeadLetterId::new(event), resolution, &by, None).await.map(|_| ())
    }

    async fn change(&self, tx: &mut Tx<'_>, line: &Logged, runtime: &Runtime) -> Result<(), StoreError> {
        let id = [Param::Int(self.tenant.0), Param::Text(runtime.name.as_str()), Param::Time(tx.now())];
        match &self.ended.change {
            Change::Nothing => tx.execute(&TOUCHED, &id).await?,
            Change::Stopped => tx.execute(&STOPPED, &id).await?,
            Change::Removed if runtime.deleting => tx.execute(&DELETE, &id[..2]).await?,
            Change::Removed => tx.execute(&REMOVED, &id).await?,
            Change::Started(started) => {
                // What runs is what is declared from now on, unless something was declared since this was asked for.
                let mut spec = runtime.spec.clone();
                if uuids_from(runtime.updated_at) <= line.correlation_id {
                    spec.image = domain::runtime::ImageRef::stored(&started.image);
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

/// Another line beside one: a step of it that has ended, or its next try.
async fn insert(tx: &mut Tx<'_>, line: &Logged, kind: OperationKind, ended: Option<&Ended>) -> Result<(), StoreError> {
    let now = tx.now();
    let at = ended.map(|_| now);
    let params = [
        Param::Uuid(new_uuid(now)),
        Param::Int(line.tenant.0),
        Param::Text(line.runtime.as_str()),
        Param::Text(kind.as_str()),
        Param::Text(line.source.as_str()),
        Param::text(line.source_ref.as_deref()),
        Param::Text(&line.actor),
        Param::text(line.image_ref.as_deref()),
        Param::text(ended.and_then(|ended| ended.container_id.as_deref())),
        Param::text(ended.map(|_| Outcome::Success.as_str())),
        Param::Null,
        Param::Null,
        Param::Time(now),
        Param::time(if ended.is_some() { line.started_at } else { None }),
        Param::time(at),
        Param::Uuid(line.correlation_id),
        Param::uuid(if ended.is_some() { None } else { line.job.map(JobId::uuid) }),
        Param::Null,
    ];
    tx.execute(&INSERT, &params).await?;
    if ended.is_none() {
        tx.execute(&SAME_NODE, &[Param::Uuid(line.id), Param::uuid(line.job.map(JobId::uuid))]).await?;
    }
    Ok(())
}

// The next try belongs to the node of the one before.
const SAME_NODE: Sql = Sql::both(&["update operations set node = (select o.node from operations o where o.id = $1)
     where job = $2 and finished_at is null"]);

struct CloseForgotten;

const CLOSE_FORGOTTEN: Sql =
    Sql::both(&["update operations set outcome = 'failure', error_code = 'service_unavailable',
         error_message = 'its job ended before it was done', finished_at = $1, started_at = coalesce(started_at, $1)
     where finished_at is null and job is not null and job in (select e.id from ended e where e.id = operations.job)"]);

impl Operation for CloseForgotten {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = Param::Time(tx.now());
        tx.execute(&CLOSE_FORGOTTEN, &[now]).await
    }
}

//! Records the health of runtimes: the newest observation by its time, and the history of observations.

use domain::runtimes::{HealthSource, Observation, RuntimeStatus, health};
use domain::triggers::trigger::Source;
use domain::{RuntimeName, TenantId, Time};
use uuid::Uuid;

use crate::db::clock::{new_uuid, uuids_from};
use crate::db::codec::to_json;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::operate::depth_of;
use crate::runtimes::{Runtime, get, parsed};
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::{Event, emit};

/// A recorded observation.
#[derive(Clone, Debug)]
pub struct HealthRecord {
    pub id: Uuid,
    pub observation: Observation,
    pub container_id: Option<String>,
}

impl Store {
    /// Records an observation of a container. Returns true if it changed the runtime's health.
    ///
    /// Observations of a container that was stopped, replaced or restarted, or that has an operation in flight, are
    /// ignored, because they are effects of the operation. `started_at` is the start of the container that was
    /// observed, if known.
    pub async fn observe_runtime(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        container_id: &str,
        started_at: Option<Time>,
        seen: Observation,
    ) -> Result<bool, StoreError> {
        let (name, container_id) = (name.clone(), container_id.to_owned());
        let observe = Observe { tenant, name, container_id, started_at, seen, triggers: self.triggers_cache().clone() };
        let (changed, has_outbox_rows) = self.write(observe).await?;
        if has_outbox_rows {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(changed)
    }

    /// Returns up to `limit` observations before `before`, newest first.
    pub async fn health_history(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<HealthRecord>, StoreError> {
        self.read(ListHealth { tenant, name: name.clone(), before: before.unwrap_or(Uuid::max()), limit }).await
    }
}

/// Records one observation.
pub(super) struct Observe {
    pub(super) tenant: TenantId,
    pub(super) name: RuntimeName,
    pub(super) container_id: String,
    /// The start of the container that was observed, if known.
    pub(super) started_at: Option<Time>,
    pub(super) seen: Observation,
    pub(super) triggers: TriggerCache,
}

const SET: Sql =
    Sql::both(&["update runtimes set health = $3, health_source = $4, health_details = $5, health_at = $6,
         status = $7, stopped_at = $8
     where tenant = $1 and name = $2"]);
const INSERT: Sql =
    Sql::both(&["insert into healths (id, tenant, runtime, status, source, details, container_id, observed_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8)"]);

impl Operation for Observe {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether the health changed, and whether a trigger receives the event.
    type Output = (bool, bool);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, bool), StoreError> {
        match get::lock(tx, self.tenant, self.name.as_str()).await? {
            Some(runtime) => self.record(tx, &runtime).await,
            None => Ok((false, false)),
        }
    }
}

impl Observe {
    /// Records the observation. The caller has locked the runtime.
    pub(super) async fn record(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<(bool, bool), StoreError> {
        if !self.changes_health(runtime) {
            return Ok((false, false));
        }
        // Must run before the insert below, because it depends on the earlier observations.
        let depth = self.depth(tx, runtime).await?;
        let Observation { status, source, details, observed_at } = &self.seen;
        let (runtime_status, stopped_at) = match status {
            status if status.is_end() => (RuntimeStatus::Stopped, Some(runtime.stopped_at.unwrap_or(tx.now()))),
            _ => (RuntimeStatus::Running, None),
        };
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Text(status.as_str()),
            Param::Text(source.as_str()),
            Param::Text(details),
            Param::Time(*observed_at),
            Param::Text(runtime_status.as_str()),
            Param::time(stopped_at),
        ];
        tx.execute(&SET, &params).await?;
        let params = [
            Param::Uuid(new_uuid(tx.now())),
            params[0],
            params[1],
            params[2],
            params[3],
            params[4],
            Param::Text(&self.container_id),
            params[5],
        ];
        tx.execute(&INSERT, &params).await?;
        let subject = self.name.subject();
        let previous = runtime.health.as_ref().map(|health| health.status.as_str());
        let detail = serde_json::json!({
            "health": status.as_str(), "was": previous, "source": source.as_str(), "details": details,
        });
        let detail = to_json(&detail);
        let entry = Entry {
            runtime: Some(self.name.as_str()),
            cause: Some(status.as_str()),
            detail: Some(detail.clone()),
            ..Entry::of_subject(self.tenant, &subject, "health_changed")
        };
        timeline::write(tx, &[entry]).await?;
        let listeners = self.triggers.current(tx).await?;
        let event = Event::new(tx.now(), self.tenant, Source::Runtime, "health", depth, detail);
        let event = event.with("name", self.name.as_str()).with("health", status.as_str());
        Ok((true, emit(tx, &listeners, &[event]).await? > 0))
    }
}

// Observation times may come from another clock. The row ids are UUIDv7 with times of the database clock.
const WAS_HEALTHY: Sql = Sql::both(&["select 1 from healths
     where tenant = $1 and runtime = $2 and container_id = $3 and status = 'healthy' and id >= $4 limit 1"]);
const LAST_OPERATION: Sql = Sql::both(&["select job from operations
     where tenant = $1 and runtime = $2 and job is not null order by id desc limit 1"]);

impl Observe {
    /// Returns the trigger depth of the health event. Until a container is healthy for the first time, its health is an
    /// effect of the operation that started it, so the event inherits that operation's depth. Otherwise a trigger that
    /// restarts a runtime on a health event could trigger itself without end. Later changes have external causes and
    /// depth 0.
    async fn depth(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<i32, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        if let (Some(_), Some(since)) = (&runtime.health, runtime.started_at) {
            let params = [params[0], params[1], Param::Text(&self.container_id), Param::Uuid(uuids_from(since))];
            if tx.query_opt(&WAS_HEALTHY, &params).await?.is_some() {
                return Ok(0);
            }
        }
        let job = tx.query_opt(&LAST_OPERATION, &params).await?.map(|row| row.job("job")).transpose()?;
        depth_of(tx, job).await
    }

    fn changes_health(&self, runtime: &Runtime) -> bool {
        // A container that ended by itself is still watched, because it may be removed or restarted outside of
        // Windlass.
        let ended_by_itself = runtime.health.as_ref().is_some_and(|health| health.status.is_end());
        let watched = runtime.status == RuntimeStatus::Running || ended_by_itself;
        // The engine may report the end of a container late, after the container was stopped and started again.
        let late = self.seen.source == HealthSource::DockerEvent
            && runtime.started_at.is_some_and(|at| self.seen.observed_at < at);
        watched
            && !late
            && self.started_at.is_none_or(|at| runtime.started_at == Some(at))
            && runtime.in_flight.is_none()
            && runtime.container_id.as_deref() == Some(self.container_id.as_str())
            && health::changes(runtime.health.as_ref(), &self.seen)
    }
}

struct ListHealth {
    tenant: TenantId,
    name: RuntimeName,
    before: Uuid,
    limit: usize,
}

const HISTORY: Sql = Sql::both(&["select id, status, source, details, observed_at, container_id from healths
     where tenant = $1 and runtime = $2 and id < $3 order by id desc limit $4"]);

fn health_record(row: &Row) -> Result<HealthRecord, StoreError> {
    Ok(HealthRecord {
        id: row.uuid("id")?,
        observation: Observation {
            status: parsed("health", row.text("status")?, domain::runtimes::HealthStatus::parse)?,
            source: parsed("source of health", row.text("source")?, domain::runtimes::HealthSource::parse)?,
            details: row.text("details")?,
            observed_at: row.time("observed_at")?,
        },
        container_id: row.opt_text("container_id")?,
    })
}

impl Operation for ListHealth {
    type Output = Vec<HealthRecord>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<HealthRecord>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Uuid(self.before),
            Param::Int(self.limit as i64),
        ];
        tx.query(&HISTORY, &params).await?.iter().map(health_record).collect()
    }
}

//! Keeps the health of runtimes: the newest observation by its time, with its past (R4).

use domain::runtime::{HealthSource, Observation, RuntimeStatus, health};
use domain::trigger::Source;
use domain::{RuntimeName, TenantId, Time};
use uuid::Uuid;

use crate::clock::{new_uuid, uuids_from};
use crate::codec::to_json;
use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::runtimes::operate::depth_of;
use crate::runtimes::{Runtime, get, known};
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug)]
pub struct PastHealth {
    pub id: Uuid,
    pub observation: Observation,
    pub container_id: Option<String>,
}

impl Store {
    /// Whether it changed anything. What is seen of a container that was stopped, replaced, started anew or is being
    /// worked on is the operation's own doing and no news. Whoever looked says which start of it was looked at.
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
        let (changed, heard) = self.write(observe).await?;
        if heard {
            self.hints().tell(Topic::Outbox);
        }
        Ok(changed)
    }

    /// Newest first.
    pub async fn health_history(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<PastHealth>, StoreError> {
        self.read(History { tenant, name: name.clone(), before: before.unwrap_or(Uuid::max()), limit }).await
    }
}

pub(super) struct Observe {
    pub(super) tenant: TenantId,
    pub(super) name: RuntimeName,
    pub(super) container_id: String,
    /// The start that was looked at, where that is known.
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
    const WATCHES_TRIGGERS: bool = true;
    /// Whether it changed anything, and whether a trigger heard of it.
    type Output = (bool, bool);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, bool), StoreError> {
        match get::lock(tx, self.tenant, self.name.as_str()).await? {
            Some(runtime) => self.note(tx, &runtime).await,
            None => Ok((false, false)),
        }
    }
}

impl Observe {
    /// The same where the runtime is locked.
    pub(super) async fn note(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<(bool, bool), StoreError> {
        if !self.is_news(runtime) {
            return Ok((false, false));
        }
        // By what was told of it before.
        let depth = self.depth(tx, runtime).await?;
        let Observation { status, source, details, observed_at } = &self.seen;
        let (standing, stopped_at) = match status {
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
            Param::Text(standing.as_str()),
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
        let was = runtime.health.as_ref().map(|health| health.status.as_str());
        let detail = serde_json::json!({
            "health": status.as_str(), "was": was, "source": source.as_str(), "details": details,
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

// The times of what was seen may be another clock's; those of the rows are ours, in their ids.
const WAS_WELL: Sql = Sql::both(&["select 1 from healths
     where tenant = $1 and runtime = $2 and container_id = $3 and status = 'healthy' and id >= $4 limit 1"]);
const LAST_OPERATION: Sql = Sql::both(&["select job from operations
     where tenant = $1 and runtime = $2 and job is not null order by id desc limit 1"]);

impl Observe {
    /// Until a container is well for the first time, its health is the doing of the operation that started it: a trigger
    /// that restarts what has just become healthy, or was not in time, leads to itself. What befalls it later comes from
    /// outside.
    async fn depth(&self, tx: &mut Tx<'_>, runtime: &Runtime) -> Result<i32, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        if let (Some(_), Some(since)) = (&runtime.health, runtime.started_at) {
            let params = [params[0], params[1], Param::Text(&self.container_id), Param::Uuid(uuids_from(since))];
            if tx.query_opt(&WAS_WELL, &params).await?.is_some() {
                return Ok(0);
            }
        }
        let job = tx.query_opt(&LAST_OPERATION, &params).await?.map(|row| row.job(0)).transpose()?;
        depth_of(tx, job).await
    }

    fn is_news(&self, runtime: &Runtime) -> bool {
        // A container that ended by itself is still watched: it may be removed, or started again, behind our back.
        let ended_by_itself = runtime.health.as_ref().is_some_and(|health| health.status.is_end());
        let watched = runtime.status == RuntimeStatus::Running || ended_by_itself;
        // The end of a container that was stopped and started again may be heard of late.
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

struct History {
    tenant: TenantId,
    name: RuntimeName,
    before: Uuid,
    limit: usize,
}

const HISTORY: Sql = Sql::both(&["select id, status, source, details, observed_at, container_id from healths
     where tenant = $1 and runtime = $2 and id < $3 order by id desc limit $4"]);

fn past(row: &Row) -> Result<PastHealth, StoreError> {
    Ok(PastHealth {
        id: row.uuid(0)?,
        observation: Observation {
            status: known("health", row.text(1)?, domain::runtime::HealthStatus::parse)?,
            source: known("source of health", row.text(2)?, domain::runtime::HealthSource::parse)?,
            details: row.text(3)?,
            observed_at: row.time(4)?,
        },
        container_id: row.opt_text(5)?,
    })
}

impl Operation for History {
    type Output = Vec<PastHealth>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<PastHealth>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Uuid(self.before),
            Param::Int(self.limit as i64),
        ];
        tx.query(&HISTORY, &params).await?.iter().map(past).collect()
    }
}

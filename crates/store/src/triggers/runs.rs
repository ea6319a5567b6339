//! How runs went, kept for a while: every try of a script with its log, and what a `sync` trigger started (T11).

use domain::limits::{MAINTENANCE_ROWS, TRIGGER_RUNS_KEEP_S};
use domain::{EventId, JobError, JobId, TenantId, Time, TriggerId};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::codec::{error_from_json, error_to_json, from_json, to_json};
use crate::error::StoreError;
use crate::outbox::Taken;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// What a script did with its time.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Which script.
    pub script: Uuid,
    pub duration_ms: i64,
    /// JSON, when it came to its end.
    pub result: Option<String>,
    pub log: Vec<String>,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// A script came to its end, and what it did holds.
    Done,
    /// A job was made; how that ends is told by the job.
    Job(JobId),
    /// A request is owed; how that goes is told by the delivery.
    Delivery(Uuid),
    /// A try failed.
    Failed,
    /// Nothing was started: it had led to itself too often, or was not wanted any more.
    Skipped,
}

impl RunOutcome {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Job(_) => "job",
            Self::Delivery(_) => "delivery",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

#[derive(Clone, Debug)]
pub struct TriggerRun {
    pub id: Uuid,
    pub trigger: TriggerId,
    pub event: EventId,
    pub attempt: i64,
    pub outcome: RunOutcome,
    pub at: Time,
    pub ran: Option<Ran>,
    pub error: Option<JobError>,
}

const INSERT: Sql =
    Sql::both(&["insert into trigger_runs (id, tenant, trigger_id, event_id, attempt, outcome, at, duration_ms,
         script_id, job, delivery, error, result, log)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"]);

pub(crate) async fn note(
    tx: &mut Tx<'_>,
    row: &Taken,
    outcome: RunOutcome,
    ran: Option<&Ran>,
    error: Option<&JobError>,
) -> Result<(), StoreError> {
    let now = tx.now();
    let (job, delivery) = match outcome {
        RunOutcome::Job(job) => (Some(job.uuid()), None),
        RunOutcome::Delivery(delivery) => (None, Some(delivery)),
        _ => (None, None),
    };
    let error = error.map(error_to_json);
    let log = to_json(&ran.map_or(&[] as &[String], |ran| ran.log.as_slice()));
    let params = [
        Param::Uuid(new_uuid(now)),
        Param::Int(row.tenant.0),
        Param::Uuid(row.trigger.uuid()),
        Param::Uuid(row.event.uuid()),
        Param::Int(row.attempts.len() as i64 + 1),
        Param::Text(outcome.as_str()),
        Param::Time(now),
        Param::int(ran.map(|ran| ran.duration_ms)),
        Param::uuid(ran.map(|ran| ran.script)),
        Param::uuid(job),
        Param::uuid(delivery),
        Param::json(error.as_deref()),
        Param::json(ran.and_then(|ran| ran.result.as_deref())),
        Param::Json(&log),
    ];
    tx.execute(&INSERT, &params).await.map(|_| ())
}

impl Store {
    /// Runs of a trigger, newest first.
    pub async fn trigger_runs(
        &self,
        tenant: TenantId,
        trigger: TriggerId,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<TriggerRun>, StoreError> {
        self.read(List { tenant, trigger, before, limit }).await
    }

    /// What an event has come to so far, one run per trigger and try.
    pub async fn runs_of_event(&self, tenant: TenantId, event: EventId) -> Result<Vec<TriggerRun>, StoreError> {
        self.read(OfEvent { tenant, event }).await
    }

    /// One bounded round; gives how many went.
    pub async fn prune_trigger_runs(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct List {
    tenant: TenantId,
    trigger: TriggerId,
    before: Option<Uuid>,
    limit: usize,
}

const LIST: Sql =
    Sql::both(&["select id, trigger_id, event_id, attempt, outcome, at, duration_ms, script_id, job, delivery,
         error, result, log
     from trigger_runs where trigger_id = $1 and tenant = $2 and id < $3 order by id desc limit $4"]);
const OF_EVENT: Sql =
    Sql::both(&["select id, trigger_id, event_id, attempt, outcome, at, duration_ms, script_id, job,
         delivery, error, result, log
     from trigger_runs where event_id = $1 and tenant = $2 order by id"]);

impl Operation for List {
    type Output = Vec<TriggerRun>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TriggerRun>, StoreError> {
        let params = [
            Param::Uuid(self.trigger.uuid()),
            Param::Int(self.tenant.0),
            Param::Uuid(self.before.unwrap_or(Uuid::max())),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}

struct OfEvent {
    tenant: TenantId,
    event: EventId,
}

impl Operation for OfEvent {
    type Output = Vec<TriggerRun>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TriggerRun>, StoreError> {
        let params = [Param::Uuid(self.event.uuid()), Param::Int(self.tenant.0)];
        tx.query(&OF_EVENT, &params).await?.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<TriggerRun, StoreError> {
    let outcome = row.text(4)?;
    let missing = || StoreError::unexpected(format!("a run with the outcome {outcome}"));
    let outcome = match outcome.as_str() {
        "done" => RunOutcome::Done,
        "job" => RunOutcome::Job(row.opt_uuid(8)?.map(JobId::new).ok_or_else(missing)?),
        "delivery" => RunOutcome::Delivery(row.opt_uuid(9)?.ok_or_else(missing)?),
        "failed" => RunOutcome::Failed,
        "skipped" => RunOutcome::Skipped,
        _ => return Err(missing()),
    };
    let ran = match row.opt_uuid(7)? {
        Some(script) => Some(Ran {
            script,
            duration_ms: row.opt_int(6)?.unwrap_or_default(),
            result: row.opt_text(11)?,
            log: from_json(&row.text(12)?)?,
        }),
        None => None,
    };
    Ok(TriggerRun {
        id: row.uuid(0)?,
        trigger: TriggerId::new(row.uuid(1)?),
        event: EventId::new(row.uuid(2)?),
        attempt: row.int(3)?,
        outcome,
        at: row.time(5)?,
        ran,
        error: row.opt_text(10)?.map(|error| error_from_json(&error)).transpose()?,
    })
}

struct Prune;

const PRUNE: Sql = Sql::both(&["delete from trigger_runs where id in (
         select id from trigger_runs where at < $1 order by at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'trigger_runs', $2, $3)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-TRIGGER_RUNS_KEEP_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let pruned = tx.execute(&PRUNE, &params).await?;
        if pruned > 0 {
            let why = format!("runs of triggers are kept {TRIGGER_RUNS_KEEP_S} s");
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}

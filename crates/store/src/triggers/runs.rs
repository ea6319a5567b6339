//! Records of trigger runs: every attempt of a script with its log, and what a `sync` trigger started. They are retained
//! for `TRIGGER_RUN_RETENTION_S`.

use domain::limits::{MAINTENANCE_ROWS, TRIGGER_RUN_RETENTION_S};
use domain::{EventId, JobError, JobId, TenantId, Time, TriggerId};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::{error_from_json, error_to_json, from_json, to_json};
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::outbox::OutboxRow;

/// One execution of a script.
#[derive(Clone, Debug)]
pub struct ScriptRun {
    /// Id of the script (see `target::script_id`).
    pub script: Uuid,
    pub duration_ms: i64,
    /// JSON. `None` if the script failed.
    pub result: Option<String>,
    pub log: Vec<String>,
}

/// Outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunOutcome {
    /// A script completed and its effects are committed.
    Done,
    /// The run created this job. The job records how it ends.
    Job(JobId),
    /// The run created this delivery. The delivery records how it ends.
    Delivery(Uuid),
    /// An attempt failed.
    Failed,
    /// Nothing was started: the trigger depth exceeded its limit, or the trigger was deleted or no longer applies.
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
    pub ran: Option<ScriptRun>,
    pub error: Option<JobError>,
}

const INSERT: Sql =
    Sql::both(&["insert into trigger_runs (id, tenant, trigger_id, event_id, attempt, outcome, at, duration_ms,
         script_id, job, delivery, error, result, log)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"]);

/// Records a run of an outbox row.
pub(crate) async fn insert_run(
    tx: &mut Tx<'_>,
    row: &OutboxRow,
    outcome: RunOutcome,
    ran: Option<&ScriptRun>,
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
    /// Lists runs of a trigger, newest first.
    pub async fn trigger_runs(
        &self,
        tenant: TenantId,
        trigger: TriggerId,
        before: Option<Uuid>,
        limit: usize,
    ) -> Result<Vec<TriggerRun>, StoreError> {
        self.read(ListTriggerRuns { tenant, trigger, before, limit }).await
    }

    /// Returns the runs of an event so far: one per trigger and attempt.
    pub async fn runs_of_event(&self, tenant: TenantId, event: EventId) -> Result<Vec<TriggerRun>, StoreError> {
        self.read(ListRunsOfEvent { tenant, event }).await
    }

    /// Runs one bounded pass and returns the number of deleted records.
    pub async fn prune_trigger_runs(&self) -> Result<u64, StoreError> {
        self.write(PruneTriggerRuns).await
    }
}

struct ListTriggerRuns {
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

impl Operation for ListTriggerRuns {
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

struct ListRunsOfEvent {
    tenant: TenantId,
    event: EventId,
}

impl Operation for ListRunsOfEvent {
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
    let outcome = row.text("outcome")?;
    let missing = || StoreError::unexpected(format!("trigger run with outcome {outcome}"));
    let outcome = match outcome.as_str() {
        "done" => RunOutcome::Done,
        "job" => RunOutcome::Job(row.opt_uuid("job")?.map(JobId::new).ok_or_else(missing)?),
        "delivery" => RunOutcome::Delivery(row.opt_uuid("delivery")?.ok_or_else(missing)?),
        "failed" => RunOutcome::Failed,
        "skipped" => RunOutcome::Skipped,
        _ => return Err(missing()),
    };
    let ran = match row.opt_uuid("script_id")? {
        Some(script) => Some(ScriptRun {
            script,
            duration_ms: row.opt_int("duration_ms")?.unwrap_or_default(),
            result: row.opt_text("result")?,
            log: from_json(&row.text("log")?)?,
        }),
        None => None,
    };
    Ok(TriggerRun {
        id: row.uuid("id")?,
        trigger: TriggerId::new(row.uuid("trigger_id")?),
        event: EventId::new(row.uuid("event_id")?),
        attempt: row.int("attempt")?,
        outcome,
        at: row.time("at")?,
        ran,
        error: row.opt_text("error")?.map(|error| error_from_json(&error)).transpose()?,
    })
}

struct PruneTriggerRuns;

const PRUNE: Sql = Sql::both(&["delete from trigger_runs where id in (
         select id from trigger_runs where at < $1 order by at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'trigger_runs', $2, $3)"]);

impl Operation for PruneTriggerRuns {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let params = [Param::Time(now.plus_s(-TRIGGER_RUN_RETENTION_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let pruned = tx.execute(&PRUNE, &params).await?;
        if pruned > 0 {
            let why = format!("trigger runs are retained for {TRIGGER_RUN_RETENTION_S} s");
            tx.execute(&LOG, &[Param::Time(now), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}

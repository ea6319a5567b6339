//! Moves rows from `jobs` to `ended`, one by one or in batches. Settle and the transition path call this module.
//!
//! Most attempts end alike: succeeded, without a result, in the same epoch of the same worker. One statement moves all of
//! them. On SQLite the claimed-row cache even knows their row ids.

use std::collections::HashMap;

use domain::{Epoch, JobId, JobState, Outcome, State, TenantId, WorkerId};
use uuid::Uuid;

use crate::db::codec::error_to_json;
use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::facts::FactChanges;
use crate::fleet::subjects::work::AttemptOutcome;
use crate::queue::claim::fast_path::claimed_row_cache::ClaimedRow;
use crate::queue::transition::{ChangeDetails, StateChange, SubjectOutcome, Transition, WebhookInterest};

/// The end of a job. It applies only while the job still has this epoch and worker.
pub(crate) struct Ending {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) epoch: Epoch,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) new_epoch: Epoch,
    pub(crate) state: JobState,
    pub(crate) result: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) error_code: Option<String>,
    pub(crate) actor: Option<String>,
}

impl Ending {
    /// The end of a claim that succeeded.
    pub(crate) fn succeeded(of: (TenantId, WorkerId, Epoch), id: JobId, result: Option<&str>) -> Self {
        let (tenant, worker, epoch) = of;
        Self {
            id,
            tenant,
            epoch,
            worker: Some(worker),
            new_epoch: epoch,
            state: JobState::Succeeded,
            result: result.map(str::to_owned),
            error: None,
            error_code: None,
            actor: None,
        }
    }

    pub(crate) fn of(transition: &Transition) -> Self {
        let error = match &transition.after.state {
            State::Ended { outcome: Outcome::Failed(error), .. } => Some(error),
            _ => None,
        };
        // A canceled job records its cause, if it has one. It has no error code, because it did not fail.
        let stored = error.or(transition.error.as_ref().filter(|_| transition.after.job_state() == JobState::Canceled));
        Self {
            id: transition.before.id,
            tenant: transition.before.tenant,
            epoch: transition.before.epoch,
            worker: transition.before.worker,
            new_epoch: transition.after.epoch,
            state: transition.after.job_state(),
            result: transition.result.clone(),
            error: stored.map(error_to_json),
            error_code: error.map(|error| error.code.clone()),
            actor: transition.actor.clone(),
        }
    }
}

/// Columns of a job that ended, for the consequences of its end.
pub(crate) struct EndedRow {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) lane: i64,
    pub(crate) state: JobState,
    pub(crate) claim: Option<Uuid>,
    pub(crate) held: bool,
    pub(crate) epoch: Epoch,
    pub(crate) attempt: i32,
    pub(crate) webhook: bool,
    pub(crate) subject: Option<String>,
    pub(crate) process: Option<String>,
    pub(crate) run: Option<String>,
    pub(crate) unique_key: Option<String>,
    pub(crate) triggered_by: Option<String>,
}

impl EndedRow {
    /// The change of a job that succeeded. `facts` are those that its worker sent for the subject.
    pub(crate) fn succeeded<'a>(&'a self, worker: Option<WorkerId>, facts: Option<&'a FactChanges>) -> StateChange<'a> {
        let webhook = if self.webhook { WebhookInterest::Stored } else { WebhookInterest::None };
        let subject = self.subject.as_deref().map(|subject| SubjectOutcome {
            subject,
            process: self.process.as_deref(),
            worker,
            event: "finished",
            actor: None,
            outcome: AttemptOutcome::Success { facts },
        });
        let details = ChangeDetails {
            released: self.held.then_some(self.epoch),
            unique_key: self.unique_key.as_deref(),
            triggered_by: self.triggered_by.as_deref(),
            run: self.run.as_deref(),
            subject,
            ..ChangeDetails::default()
        };
        StateChange {
            claim: self.claim,
            details: details.boxed(),
            ..StateChange::plain(
                (self.tenant, self.id, self.lane),
                (self.state, JobState::Succeeded),
                self.attempt,
                webhook,
            )
        }
    }

    /// The row of a job that the claimed-row cache holds. Jobs in the cache have none of the optional columns.
    fn from_cache(id: JobId, cached: &ClaimedRow) -> Self {
        Self {
            id,
            tenant: cached.tenant,
            lane: cached.lane,
            state: JobState::Working,
            claim: Some(cached.claim),
            held: false,
            epoch: cached.epoch,
            attempt: cached.attempt,
            webhook: false,
            unique_key: None,
            triggered_by: None,
            subject: None,
            process: None,
            run: None,
        }
    }

    /// Reads the rows of a statement that returns the columns of `EndedRow`.
    fn read_all(rows: &[Row]) -> Result<Vec<Self>, StoreError> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let [id, tenant, lane, state, claim, held, attempt] =
            first.positions(["id", "tenant", "lane", "state", "claim", "held", "attempt"])?;
        let [webhook, unique_key, epoch, triggered_by, subject, process, run] =
            first.positions(["webhook", "unique_key", "epoch", "triggered_by", "subject", "process", "run"])?;
        let read = |row: &Row| {
            let name = row.text(state)?;
            Ok(Self {
                id: row.job(id)?,
                tenant: TenantId(row.int(tenant)?),
                lane: row.int(lane)?,
                state: JobState::parse(&name).ok_or_else(|| StoreError::unexpected(format!("state {name}")))?,
                claim: row.opt_uuid(claim)?,
                held: row.bool(held)?,
                epoch: Epoch(row.int(epoch)?),
                attempt: row.int(attempt)? as i32,
                webhook: !row.is_null(webhook)?,
                unique_key: row.opt_text(unique_key)?,
                triggered_by: row.opt_text(triggered_by)?,
                subject: row.opt_text(subject)?,
                process: row.opt_text(process)?,
                run: row.opt_text(run)?,
            })
        };
        rows.iter().map(read).collect()
    }
}

const END: Sql = Sql::new(
    &[
        "insert or fail into ended (id, tenant, lane, state, run_at, worker, epoch, attempt, max_attempts, started_at, begun_at,
             finished_at, wait_s, timeout_s, depth, progress, version, created_at, principal, actor, payload, result,
             retry, subject, process, run, unique_key, concurrency_key, tags, phase, error, error_code, webhook, parent,
             triggered_by)
         select id, tenant, lane, $6, run_at, worker, $5, attempt, max_attempts, started_at, begun_at,
             $11, wait_s, timeout_s, depth, progress, version + 1, created_at, principal, $10, payload, $7,
             retry, subject, process, run, unique_key, concurrency_key, tags, phase,
             case when $6 = 'succeeded' then null else coalesce($8, error) end, $9, webhook, parent, triggered_by
         from jobs where id = $1 and tenant = $2 and epoch = $3 and worker is $4",
        "delete from jobs where id = $1 and tenant = $2 and epoch = $3 and worker is $4
         returning id, tenant, lane, state, claim, held, attempt, webhook,
             case when unique_until is null then unique_key end as unique_key, epoch, triggered_by, subject, process, run",
    ],
    "with o as (
         select * from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::uuid[], $5::bigint[], $6::text[], $7::json[],
             $8::json[], $9::text[], $10::text[])
             as o(id, tenant, epoch, worker, new_epoch, new_state, result, new_error, error_code, actor)),
     gone as (
         delete from jobs j using o
         where j.id = o.id and j.tenant = o.tenant and j.epoch = o.epoch and j.worker is not distinct from o.worker
         returning j.*, o.new_epoch, o.new_state, o.result, o.new_error, o.error_code, o.actor),
     kept as (
         insert into ended (id, tenant, lane, state, run_at, worker, epoch, attempt, max_attempts, started_at, begun_at,
             finished_at, wait_s, timeout_s, depth, progress, version, created_at, principal, actor, payload, result,
             retry, subject, process, run, unique_key, concurrency_key, tags, phase, error, error_code, webhook, parent,
             triggered_by)
         select id, tenant, lane, new_state, run_at, worker, new_epoch, attempt, max_attempts, started_at, begun_at,
             $11, wait_s, timeout_s, depth, progress, version + 1, created_at, principal, actor, payload, result,
             retry, subject, process, run, unique_key, concurrency_key, tags, phase,
             case when new_state = 'succeeded' then null else coalesce(new_error, error) end, error_code, webhook,
             parent, triggered_by
         from gone)
     select id, tenant, lane, state, claim, held, attempt, webhook, case when unique_until is null then unique_key end as unique_key,
         epoch, triggered_by, subject, process, run
     from gone",
);

/// Moves jobs to `ended`. Jobs with another epoch or worker are unchanged and missing from the result.
pub(crate) async fn end(tx: &mut Tx<'_>, endings: &[Ending]) -> Result<Vec<EndedRow>, StoreError> {
    let of = || endings.iter();
    let columns = [
        Column::jobs(of().map(|e| e.id)),
        Column::ints(of().map(|e| e.tenant.0)),
        Column::ints(of().map(|e| e.epoch.0)),
        Column::Uuid(of().map(|e| e.worker.map(WorkerId::uuid)).collect()),
        Column::ints(of().map(|e| e.new_epoch.0)),
        Column::texts(of().map(|e| e.state.as_str())),
        Column::Json(of().map(|e| e.result.as_deref()).collect()),
        Column::Json(of().map(|e| e.error.as_deref()).collect()),
        Column::Text(of().map(|e| e.error_code.as_deref()).collect()),
        Column::Text(of().map(|e| e.actor.as_deref()).collect()),
    ];
    let now = Param::Time(tx.now());
    let rows = tx.query_each(&END, &columns, &[now]).await?;
    EndedRow::read_all(&rows)
}

// On SQLite the columns are selected before the delete: `returning` buffers every row until the last one is deleted, which is
// slower.
const FINISH: Sql = Sql::new(
    &[
        "select j.id, j.tenant, j.lane, j.state, j.claim, j.held, j.attempt, j.webhook,
             case when j.unique_until is null then j.unique_key end as unique_key, j.epoch, j.triggered_by, j.subject, j.process, j.run, j.rowid
         from rarray($1) n cross join jobs j
         where j.id = n.value and j.tenant = $2 and j.epoch = $3 and j.worker = $4",
        "insert or fail into ended (id, tenant, lane, state, run_at, worker, epoch, attempt, max_attempts, started_at,
             begun_at, finished_at, wait_s, timeout_s, depth, progress, version, created_at, principal, payload, retry,
             subject, process, run, unique_key, concurrency_key, tags, phase, webhook, parent, triggered_by)
         select j.id, j.tenant, j.lane, 'succeeded', j.run_at, j.worker, j.epoch, j.attempt, j.max_attempts, j.started_at,
             j.begun_at, $5, j.wait_s, j.timeout_s, j.depth, j.progress, j.version + 1, j.created_at, j.principal,
             j.payload, j.retry, j.subject, j.process, j.run, j.unique_key, j.concurrency_key, j.tags, j.phase, j.webhook,
             j.parent, j.triggered_by
         from jobs j where j.rowid in (select value from rarray($6))",
        "delete from jobs where rowid in (select value from rarray($6))",
    ],
    "with gone as (
         delete from jobs where id = any($1::uuid[]) and tenant = $2 and epoch = $3 and worker = $4 returning *),
     kept as (
         insert into ended (id, tenant, lane, state, run_at, worker, epoch, attempt, max_attempts, started_at, begun_at,
             finished_at, wait_s, timeout_s, depth, progress, version, created_at, principal, payload, retry, subject,
             process, run, unique_key, concurrency_key, tags, phase, webhook, parent, triggered_by)
         select id, tenant, lane, 'succeeded', run_at, worker, epoch, attempt, max_attempts, started_at, begun_at,
             $5, wait_s, timeout_s, depth, progress, version + 1, created_at, principal, payload, retry, subject,
             process, run, unique_key, concurrency_key, tags, phase, webhook, parent, triggered_by
         from gone)
     select id, tenant, lane, state, claim, held, attempt, webhook, case when unique_until is null then unique_key end as unique_key,
         epoch, triggered_by, subject, process, run
     from gone",
);

/// Moves jobs of one worker and epoch to `ended`: succeeded, without a result. Jobs with another epoch or worker are
/// unchanged and missing from the result.
pub(crate) async fn complete_batch(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    worker: WorkerId,
    epoch: Epoch,
    jobs: &[JobId],
) -> Result<Vec<EndedRow>, StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    let params = [Param::Int(tenant.0), Param::Int(epoch.0), Param::from(worker), Param::Time(tx.now())];
    let rows = tx.change_and_return(&FINISH, Some(&ids), &params, None).await?;
    EndedRow::read_all(&rows)
}

// Only rows of a live claim carry its id. The optional columns are omitted: jobs in the claimed-row cache have none of them.
const FINISH_TAKEN: Sql = Sql::sqlite(&[
    "insert or fail into ended (id, tenant, lane, state, run_at, worker, epoch, attempt, max_attempts, started_at,
         begun_at, finished_at, wait_s, timeout_s, depth, progress, version, created_at, principal, payload, retry,
         run, tags, phase, parent)
     select id, $5, $4, 'succeeded', run_at, $6, $3, attempt, max_attempts, started_at,
         begun_at, $1, wait_s, timeout_s, depth, progress, version + 1, created_at, principal, payload, retry,
         run, tags, phase, parent
     from jobs where rowid in (select value from rarray($7)) and claim = $2 and epoch = $3 and lane = $4
         and state = 'working' and held = 0",
    "delete from jobs where rowid in (select value from rarray($7))",
]);

/// Does the same for jobs of one claim and lane whose row ids are cached. Returns `None`, and changes nothing, if one of the
/// rows no longer belongs to the claim.
pub(crate) async fn complete_claimed_rows(
    tx: &mut Tx<'_>,
    cached: &[(JobId, ClaimedRow)],
) -> Result<Option<Vec<EndedRow>>, StoreError> {
    let Some((_, first)) = cached.first() else { return Ok(Some(Vec::new())) };
    let params = [
        Param::Time(tx.now()),
        Param::Uuid(first.claim),
        Param::Int(first.epoch.0),
        Param::Int(first.lane),
        Param::Int(first.tenant.0),
        Param::from(first.worker),
    ];
    let rows = cached.iter().map(|(_, cached)| cached.row).collect();
    let is_unchanged = tx.change_by_row_id(&FINISH_TAKEN, rows, &params).await?;
    Ok(is_unchanged.then(|| cached.iter().map(|(id, cached)| EndedRow::from_cache(*id, cached)).collect()))
}

const ENDED: Sql = Sql::new(
    &["select id, tenant, epoch from ended where id = $1"],
    "select id, tenant, epoch from ended where id = any($1::uuid[])",
);

/// Loads the tenants and the last epochs of those of the jobs that have ended.
pub(crate) async fn load_ended(
    tx: &mut Tx<'_>,
    jobs: &[JobId],
) -> Result<HashMap<JobId, (TenantId, Epoch)>, StoreError> {
    let rows = tx.query_each(&ENDED, &[Column::jobs(jobs.iter().copied())], &[]).await?;
    rows.iter().map(|row| Ok((row.job("id")?, (TenantId(row.int("tenant")?), Epoch(row.int("epoch")?))))).collect()
}

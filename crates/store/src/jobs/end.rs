//! Moves jobs to `ended`: each by itself, or many attempts of one worker at once where nothing tells them apart. Most
//! attempts end like that: without a result, in the same epoch.

use domain::{Epoch, JobId, JobState, Origin, Outcome, Resolution, State, TenantId, WorkerId};
use uuid::Uuid;

use crate::codec::error_to_json;
use crate::dead_letters;
use crate::error::StoreError;
use crate::events::jobs::JobChange;
use crate::in_hand::Taken;
use crate::jobs::transition::Step;
use crate::lanes::Lane;
use crate::tx::{Column, Param, Row, Sql, Tx};

/// A job's end, guarded by the claim it must still have.
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
    /// A claim that ends well.
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

    pub(crate) fn of(step: &Step) -> Self {
        let error = match &step.after.state {
            State::Ended { outcome: Outcome::Failed(error), .. } => Some(error),
            _ => None,
        };
        Self {
            id: step.before.id,
            tenant: step.before.tenant,
            epoch: step.before.epoch,
            worker: step.before.worker,
            new_epoch: step.after.epoch,
            state: step.after.job_state(),
            result: step.result.clone(),
            error: error.map(error_to_json),
            error_code: error.map(|error| error.code.clone()),
            actor: step.actor.clone(),
        }
    }
}

/// What was left behind by a job that ended.
pub(crate) struct Gone {
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
    pub(crate) unique_key: Option<String>,
    pub(crate) triggered_by: Option<String>,
}

impl Gone {
    pub(crate) fn finished(&self, lane: &Lane) -> JobChange {
        JobChange {
            tenant: self.tenant,
            job: self.id,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            from: self.state,
            to: JobState::Succeeded,
            attempt: self.attempt,
        }
    }

    /// Tells the dead letter that this job was the handler of, if it was one.
    pub(crate) async fn handler_ended(&self, tx: &mut Tx<'_>, resolution: Resolution) -> Result<(), StoreError> {
        let Some(triggered_by) = self.triggered_by.as_deref() else { return Ok(()) };
        let origin = Origin::parse(Some(triggered_by));
        dead_letters::jobs::handler_ended(tx, self.tenant, &origin, resolution).await
    }

    /// What a claim knew of it when it was taken, and what has not changed since.
    fn taken(id: JobId, taken: &Taken) -> Self {
        Self {
            id,
            tenant: taken.tenant,
            lane: taken.lane,
            state: JobState::Working,
            claim: Some(taken.claim),
            held: false,
            epoch: taken.epoch,
            attempt: taken.attempt,
            webhook: false,
            unique_key: None,
            triggered_by: None,
            subject: None,
            process: None,
        }
    }

    fn read(row: &Row) -> Result<Self, StoreError> {
        let state = row.text(3)?;
        Ok(Self {
            id: row.job(0)?,
            tenant: TenantId(row.int(1)?),
            lane: row.int(2)?,
            state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            claim: row.opt_uuid(4)?,
            held: row.bool(5)?,
            epoch: Epoch(row.int(9)?),
            attempt: row.int(6)? as i32,
            webhook: row.opt_text(7)?.is_some(),
            unique_key: row.opt_text(8)?,
            triggered_by: row.opt_text(10)?,
            subject: row.opt_text(11)?,
            process: row.opt_text(12)?,
        })
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
             case when unique_until is null then unique_key end, epoch, triggered_by, subject, process",
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
     select id, tenant, lane, state, claim, held, attempt, webhook, case when unique_until is null then unique_key end,
         epoch, triggered_by, subject, process
     from gone",
);

/// Moves jobs to `ended`. Those whose claim is not the given one are left as they are and missing from the answer.
pub(crate) async fn end(tx: &mut Tx<'_>, endings: &[Ending]) -> Result<Vec<Gone>, StoreError> {
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
    rows.iter().map(Gone::read).collect()
}

// The columns that are left behind come in the order in which `Gone::read` reads them.
//
// SQLite is asked for them beforehand: `returning` puts every row aside until the last is gone, which costs more.
const FINISH: Sql = Sql::new(
    &[
        "select j.id, j.tenant, j.lane, j.state, j.claim, j.held, j.attempt, j.webhook,
             case when j.unique_until is null then j.unique_key end, j.epoch, j.triggered_by, j.subject, j.process, j.rowid
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
     select id, tenant, lane, state, claim, held, attempt, webhook, case when unique_until is null then unique_key end,
         epoch, triggered_by, subject, process
     from gone",
);

/// Moves jobs to `ended`, succeeded without a result. Those whose claim is not the given one are left as they are and
/// missing from the answer.
pub(crate) async fn finish_alike(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    worker: WorkerId,
    epoch: Epoch,
    jobs: &[JobId],
) -> Result<Vec<Gone>, StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|job| job.uuid()).collect();
    let params = [Param::Int(tenant.0), Param::Int(epoch.0), Param::from(worker), Param::Time(tx.now())];
    let rows = tx.query_found(&FINISH, Some(&ids), &params).await?;
    rows.iter().map(Gone::read).collect()
}

// The claim's id is on the rows that it took and on no others, and only while it stands. What none of them has is left out.
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

/// The same for jobs of one lane whose rows are known from the claim that took them. None, if one of them is not any more as the
/// claim left it: then nothing was done.
pub(crate) async fn finish_taken(tx: &mut Tx<'_>, taken: &[(JobId, Taken)]) -> Result<Option<Vec<Gone>>, StoreError> {
    let Some((_, first)) = taken.first() else { return Ok(Some(Vec::new())) };
    let params = [
        Param::Time(tx.now()),
        Param::Uuid(first.claim),
        Param::Int(first.epoch.0),
        Param::Int(first.lane),
        Param::Int(first.tenant.0),
        Param::from(first.worker),
    ];
    let rows = taken.iter().map(|(_, taken)| taken.row).collect();
    let stood = tx.change_known(&FINISH_TAKEN, rows, &params).await?;
    Ok(stood.then(|| taken.iter().map(|(id, taken)| Gone::taken(*id, taken)).collect()))
}

//! The one place that writes a job's transitions: settle, cancel, sweep and time-out all come through here.
//!
//! The caller locks the rows (`load`), asks the rules (`domain::Job::apply`), and hands the steps to `apply`, which
//! writes state, history, holds, keys, claims, deliveries and counters in the same transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::job::Claim;
use domain::{
    Epoch, Job, JobError, JobId, JobState, Label, Name, Outcome, QueueSettings, Resolution, RetryPolicy, State,
    TenantId, Time, WorkerId,
};
use uuid::Uuid;

use crate::codec::{error_to_json, retry_from_json};
use crate::counters::Changes;
use crate::dead_letters::{self, jobs::Failed};
use crate::deliveries::notices::{self, Notice, queue_webhooks};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{self, jobs::JobChange};
use crate::failures;
use crate::jobs::end::{Ending, Gone, end};
use crate::jobs::holds::{self, Holder};
use crate::jobs::revocations;
use crate::lanes::{Lane, LaneCache};
use crate::subjects::facts::FactChanges;
use crate::subjects::steps::steps_on_subjects;
use crate::tx::{Column, Param, Row, Sql, Tx};

/// A live job's row, as far as transitions need it.
#[derive(Clone, Debug)]
pub(crate) struct LiveJob {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) lane: i64,
    pub(crate) state: JobState,
    pub(crate) run_at: Time,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) claim: Option<Uuid>,
    pub(crate) held: bool,
    pub(crate) epoch: Epoch,
    pub(crate) attempt: i32,
    pub(crate) max_attempts: i32,
    pub(crate) started_at: Option<Time>,
    pub(crate) begun: bool,
    pub(crate) wait_s: Option<u64>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) subject: Option<Label>,
    pub(crate) process: Option<String>,
    pub(crate) webhook: Option<String>,
    pub(crate) created_at: Time,
    pub(crate) triggered_by: Option<String>,
}

const LOAD: Sql = Sql::new(
    &["select id, tenant, lane, state, run_at, worker, claim, held, epoch, attempt, max_attempts, started_at, begun_at,
           wait_s, retry, subject, process, webhook, created_at, triggered_by
       from jobs where id = $1"],
    "select id, tenant, lane, state, run_at, worker, claim, held, epoch, attempt, max_attempts, started_at, begun_at,
         wait_s, retry, subject, process, webhook, created_at, triggered_by
     from jobs where id = any($1::uuid[]) order by id for update",
);

/// The live rows of these jobs, locked. Ended and unknown jobs are left out.
pub(crate) async fn load(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<BTreeMap<JobId, LiveJob>, StoreError> {
    let rows = tx.query_each(&LOAD, &[Column::jobs(jobs.iter().copied())], &[]).await?;
    rows.iter().map(|row| LiveJob::read(row).map(|job| (job.id, job))).collect()
}

impl LiveJob {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let state = row.text(3)?;
        Ok(Self {
            id: row.job(0)?,
            tenant: TenantId(row.int(1)?),
            lane: row.int(2)?,
            state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            run_at: row.time(4)?,
            worker: row.opt_uuid(5)?.map(WorkerId::new),
            claim: row.opt_uuid(6)?,
            held: row.bool(7)?,
            epoch: Epoch(row.int(8)?),
            attempt: row.int(9)? as i32,
            max_attempts: row.int(10)? as i32,
            started_at: row.opt_time(11)?,
            begun: row.opt_time(12)?.is_some(),
            wait_s: row.opt_int(13)?.map(|wait| wait as u64),
            retry: row.opt_text(14)?.map(|text| retry_from_json(&text)).transpose()?,
            subject: row.opt_text(15)?.map(|text| Label::stored(&text)),
            process: row.opt_text(16)?,
            webhook: row.opt_text(17)?,
            created_at: row.time(18)?,
            triggered_by: row.opt_text(19)?,
        })
    }

    /// The job as the rules see it. `settings` are its queue's.
    pub(crate) fn job(&self, kind: &Name, settings: &QueueSettings) -> Result<Job, StoreError> {
        let claim = || match (self.worker, self.started_at) {
            (Some(worker), Some(at)) => {
                Ok(Claim { worker, epoch: self.epoch, at, waiting_since: self.run_at, begun: self.begun })
            }
            _ => Err(StoreError::unexpected(format!("job {} is {} without a claim", self.id, self.state))),
        };
        let state = match self.state {
            JobState::Scheduled => State::Scheduled { run_at: self.run_at },
            JobState::Queued => State::Queued { since: self.run_at },
            JobState::Loading => State::Loading(claim()?),
            JobState::Working => State::Working(claim()?),
            ended => return Err(StoreError::unexpected(format!("job {} is live and {ended}", self.id))),
        };
        Ok(Job {
            state,
            epoch: self.epoch,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            retry: self.retry.unwrap_or_else(|| settings.retry_for(kind)),
            wait_s: self.wait_s,
        })
    }
}

/// One job's way from one state to the next.
pub(crate) struct Step {
    pub(crate) before: LiveJob,
    pub(crate) after: Job,
    /// What history calls it when it does not end the job: `failed`, `expired`, `released`, `snoozed`, `timed_out`.
    pub(crate) event: &'static str,
    pub(crate) actor: Option<String>,
    pub(crate) error: Option<JobError>,
    pub(crate) result: Option<String>,
    /// Facts that the worker hands over for the job's subject.
    pub(crate) facts: Option<FactChanges>,
    /// The worker has not let go yet: what the job holds stays held until it answers or its lease passes.
    pub(crate) revoke: bool,
}

impl Step {
    /// A step of the job's own worker, or of its death.
    pub(crate) fn new(
        before: LiveJob,
        after: Job,
        event: &'static str,
        error: Option<JobError>,
        result: Option<String>,
    ) -> Self {
        Self { before, after, event, actor: None, error, result, facts: None, revoke: false }
    }
}

/// Writes the steps and all that follows from them.
pub(crate) async fn apply(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    steps: Vec<Step>,
    changes: &mut Changes,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if steps.is_empty() {
        return Ok(());
    }
    let ids: Vec<i64> = steps.iter().map(|step| step.before.lane).collect();
    let of_lane = lanes.of(tx, &ids).await?;
    let (ending, returning): (Vec<&Step>, Vec<&Step>) =
        steps.iter().partition(|step| matches!(step.after.state, State::Ended { .. }));
    let endings: Vec<Ending> = ending.iter().map(|step| Ending::of(step)).collect();
    let ended = end(tx, &endings).await?;
    if ended.len() != endings.len() {
        return Err(StoreError::unexpected("a locked job moved"));
    }
    send_back(tx, &returning).await?;
    write_history(tx, &returning).await?;
    revocations::write(tx, &steps).await?;
    let mut let_go: Vec<Holder> = Vec::new();
    for step in &steps {
        let lane = &of_lane[&step.before.lane];
        changes.moved(step.before.tenant, &lane.queue, (step.before.state, step.after.job_state()), 1);
        match step.after.state {
            State::Ended { .. } => effects.ended.push(step.before.id),
            State::Scheduled { .. } => effects.due = true,
            _ => drop(effects.ready.insert((step.before.tenant, lane.queue.clone()))),
        }
        if step.revoke {
            effects.workers.extend(step.before.worker);
        } else if step.before.held {
            let_go.push((step.before.id, step.before.epoch));
        }
    }
    let claims = steps.iter().filter_map(|step| step.before.claim);
    close_claims(tx, claims).await?;
    free(tx, lanes, &let_go, effects).await?;
    free_unique_keys(tx, ended.iter()).await?;
    let ended_badly = endings.iter().filter(|ending| ending.state == JobState::Failed);
    failures::feed(tx, &ended_badly.map(|ending| (ending.id, ending.tenant)).collect::<Vec<_>>(), tx.now()).await?;
    let failed: Vec<Failed> = steps.iter().filter_map(Step::failed).collect();
    effects.outbox |= !failed.is_empty();
    dead_letters::jobs::bury(tx, failed).await?;
    handlers_ended(tx, &ended, &steps).await?;
    steps_on_subjects(tx, lanes, &steps, &of_lane, effects).await?;
    let changed = steps.iter().map(|step| step.change(&of_lane[&step.before.lane]));
    effects.outbox |= events::jobs::changed(tx, &lanes.triggers, changed).await?;
    effects.deliveries |= notify(tx, &steps, &of_lane).await?;
    Ok(())
}

/// Tells whoever asked of the changes. A job that was claimed says in its row whether its queue has a webhook; of one
/// that never was, the queue is asked.
async fn notify(tx: &mut Tx<'_>, steps: &[Step], of_lane: &HashMap<i64, Arc<Lane>>) -> Result<bool, StoreError> {
    let queue = |step: &Step| (step.before.tenant, of_lane[&step.before.lane].queue.clone());
    let unasked = |step: &&Step| step.before.webhook.is_none() && step.before.worker.is_none();
    let asked = queue_webhooks(tx, &steps.iter().filter(unasked).map(queue).collect()).await?;
    let wanted = |step: &&Step| step.before.webhook.is_some() || (unasked(step) && asked.contains_key(&queue(step)));
    let notices = steps.iter().filter(wanted).map(|step| Notice {
        tenant: step.before.tenant,
        job: step.before.id,
        from: step.before.state,
        to: step.after.job_state(),
        attempt: step.before.attempt,
    });
    Ok(notices::write(tx, &notices.collect::<Vec<_>>()).await? > 0)
}

impl Step {
    fn change(&self, lane: &Lane) -> JobChange {
        JobChange {
            tenant: self.before.tenant,
            job: self.before.id,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            from: self.before.state,
            to: self.after.job_state(),
            attempt: self.before.attempt,
        }
    }

    /// When it ends its job for good and badly.
    fn failed(&self) -> Option<Failed> {
        let State::Ended { outcome: Outcome::Failed(error), .. } = &self.after.state else { return None };
        Some(Failed { job: self.before.id, tenant: self.before.tenant, error: error.clone() })
    }
}

/// Jobs that a dead-letter trigger ran: however they ended, their letter hears of it (T8).
async fn handlers_ended(tx: &mut Tx<'_>, ended: &[Gone], steps: &[Step]) -> Result<(), StoreError> {
    for gone in ended.iter().filter(|gone| gone.triggered_by.is_some()) {
        let well = steps.iter().any(|step| step.before.id == gone.id && step.after.job_state() == JobState::Succeeded);
        gone.handler_ended(tx, if well { Resolution::HandledByScript } else { Resolution::HandlerFailed }).await?;
    }
    Ok(())
}

const SEND_BACK: Sql = Sql::new(
    &["update jobs set state = $2, run_at = $3, due_at = $4, attempt = $5, epoch = $6, wait_s = $7,
           error = coalesce($8, error), worker = null, claim = null, held = 0, started_at = null, begun_at = null,
           deadline_at = null, progress = null, phase = null, version = version + 1, updated_at = $9
       where id = $1"],
    "update jobs j set state = n.state, run_at = n.run_at, due_at = n.due_at, attempt = n.attempt, epoch = n.epoch,
         wait_s = n.wait_s, error = coalesce(n.error, j.error), worker = null, claim = null, held = false,
         started_at = null, begun_at = null, deadline_at = null, progress = null, phase = null,
         version = version + 1, updated_at = $9
     from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::bigint[],
         $7::bigint[], $8::json[]) as n(id, state, run_at, due_at, attempt, epoch, wait_s, error)
     where j.id = n.id",
);

async fn send_back(tx: &mut Tx<'_>, steps: &[&Step]) -> Result<(), StoreError> {
    let errors: Vec<Option<String>> = steps.iter().map(|step| step.error.as_ref().map(error_to_json)).collect();
    let run_at = |step: &&Step| match step.after.state {
        State::Scheduled { run_at } => Some(run_at),
        State::Queued { since } => Some(since),
        _ => None,
    };
    let due_at = |step: &&Step| match step.after.state {
        State::Scheduled { run_at } => Some(run_at),
        _ => None,
    };
    let of = || steps.iter();
    let columns = [
        Column::jobs(of().map(|step| step.before.id)),
        Column::texts(of().map(|step| step.after.job_state().as_str())),
        Column::Time(of().map(run_at).collect()),
        Column::Time(of().map(due_at).collect()),
        Column::ints(of().map(|step| i64::from(step.after.attempt))),
        Column::ints(of().map(|step| step.after.epoch.0)),
        Column::Int(of().map(|step| step.after.wait_s.map(|wait| wait as i64)).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&SEND_BACK, &columns, &[now]).await.map(|_| ())
}

const HISTORY: Sql = Sql::new(
    &["insert into history (job, epoch, event, tenant, lane, enqueued_at, started_at, attempt, worker, actor, cause,
           subject, process, error, at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"],
    "insert into history (job, epoch, event, tenant, lane, enqueued_at, started_at, attempt, worker, actor, cause,
         subject, process, error, at)
     select n.*, $15 from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[],
         $7::timestamptz[], $8::bigint[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[],
         $14::json[]) n",
);

/// One row per attempt carries its start and its end.
async fn write_history(tx: &mut Tx<'_>, steps: &[&Step]) -> Result<(), StoreError> {
    let errors: Vec<Option<String>> = steps.iter().map(|step| step.error.as_ref().map(error_to_json)).collect();
    let of = || steps.iter();
    let columns = [
        Column::jobs(of().map(|step| step.before.id)),
        Column::ints(of().map(|step| step.before.epoch.0)),
        Column::texts(of().map(|step| step.event)),
        Column::ints(of().map(|step| step.before.tenant.0)),
        Column::ints(of().map(|step| step.before.lane)),
        Column::Time(of().map(|step| Some(step.before.created_at)).collect()),
        Column::Time(of().map(|step| step.before.started_at).collect()),
        Column::ints(of().map(|step| i64::from(step.before.attempt))),
        Column::Uuid(of().map(|step| step.before.worker.map(WorkerId::uuid)).collect()),
        Column::Text(of().map(|step| step.actor.as_deref()).collect()),
        Column::Text(of().map(|step| step.error.as_ref().map(|error| error.code.as_str())).collect()),
        Column::Text(of().map(|step| step.before.subject.as_ref().map(Label::as_str)).collect()),
        Column::Text(of().map(|step| step.before.process.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&HISTORY, &columns, &[now]).await.map(|_| ())
}

const CLOSE_CLAIMS: Sql = Sql::new(
    &["update claims set remaining = remaining - $2 where claim = $1"],
    "with n as (select * from unnest($1::uuid[], $2::bigint[]) as n(claim, jobs)),
     closed as (delete from claims c using n where c.claim = n.claim and c.remaining <= n.jobs returning c.claim)
     update claims c set remaining = c.remaining - n.jobs from n
     where c.claim = n.claim and not exists (select 1 from closed where closed.claim = n.claim)",
);
// What several took the last jobs from at once none of them saw empty.
const DROP_EMPTY: Sql = Sql::new(
    &["delete from claims where claim = $1 and remaining <= 0"],
    "delete from claims where claim = any($1::uuid[]) and remaining <= 0",
);

/// Takes jobs out of the claims that handed them out; an empty claim goes.
pub(crate) async fn close_claims(tx: &mut Tx<'_>, claims: impl Iterator<Item = Uuid>) -> Result<(), StoreError> {
    let mut jobs: BTreeMap<Uuid, i64> = BTreeMap::new();
    for claim in claims {
        *jobs.entry(claim).or_default() += 1;
    }
    let columns = [Column::uuids(jobs.keys().copied()), Column::ints(jobs.values().copied())];
    tx.execute_later(&CLOSE_CLAIMS, &columns, &[]).await?;
    tx.execute_later(&DROP_EMPTY, &columns[..1], &[]).await
}

/// Gives back what claims held, and notes who may run now.
pub(crate) async fn free(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    holders: &[Holder],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let (unparked, queues) = holds::give_back(tx, holders).await?;
    effects.ready.extend(queues);
    for lane in lanes.of(tx, &unparked).await?.values() {
        effects.ready.insert((lane.tenant, lane.queue.clone()));
    }
    Ok(())
}

const FREE_UNIQUE: Sql = Sql::new(
    &["delete from unique_keys where tenant = $1 and key = $2 and job = $3
       and queue = (select queue from lanes where lane = $4)"],
    "delete from unique_keys u using unnest($1::bigint[], $2::text[], $3::uuid[], $4::bigint[]) as n(tenant, key, job, lane),
         lanes l
     where l.lane = n.lane and u.tenant = n.tenant and u.queue = l.queue and u.key = n.key and u.job = n.job",
);

/// A key that holds until its job ends is free again.
pub(crate) async fn free_unique_keys<'g>(
    tx: &mut Tx<'_>,
    ended: impl Iterator<Item = &'g Gone>,
) -> Result<(), StoreError> {
    let keyed: Vec<(&Gone, &str)> = ended.filter_map(|gone| Some((gone, gone.unique_key.as_deref()?))).collect();
    let columns = [
        Column::ints(keyed.iter().map(|(gone, _)| gone.tenant.0)),
        Column::texts(keyed.iter().map(|(_, key)| *key)),
        Column::jobs(keyed.iter().map(|(gone, _)| gone.id)),
        Column::ints(keyed.iter().map(|(gone, _)| gone.lane)),
    ];
    tx.execute_each(&FREE_UNIQUE, &columns, &[]).await.map(|_| ())
}

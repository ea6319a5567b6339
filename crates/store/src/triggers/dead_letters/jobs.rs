//! Dead letters of jobs. A job without remaining attempts becomes a dead letter in the transaction that ends it.

use std::collections::{HashMap, HashSet};

use domain::queue::job_origin::Cause;
use domain::triggers::trigger::Source;
use domain::{EventId, JobError, JobId, Origin, TenantId};
use uuid::Uuid;

use crate::db::codec::error_from_json;
use crate::db::tx::{Column, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::{StoredJob, read};
use crate::triggers::dead_letters::insert::{NewDeadLetter, insert_all};
use crate::triggers::dead_letters::{FailedAttempt, work};

/// A job that has just failed for good, with its last error.
pub(crate) struct DeadJob {
    pub(crate) job: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) error: JobError,
}

// The columns of `queue::get::read`.
const JOBS: Sql = Sql::new(
    &["select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at, attempt, max_attempts,
           epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry, subject, process, run,
           unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent, retried_as, principal,
           actor, triggered_by, depth, version, parked, lane
       from ended_jobs where id = $1"],
    "select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at, attempt, max_attempts,
         epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry, subject, process, run,
         unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent, retried_as, principal,
         actor, triggered_by, depth, version, parked, lane
     from ended_jobs where id = any($1::uuid[])",
);
const ATTEMPTS: Sql = Sql::new(
    &[
        "select job, epoch, at, error, cause from history where job = $1 and event in ('failed', 'expired') order by epoch",
    ],
    "select job, epoch, at, error, cause from history where job = any($1::uuid[]) and event in ('failed', 'expired')
     order by job, epoch",
);

/// Writes a dead letter for each of these jobs whose origin requires one.
pub(crate) async fn insert_for_failed_jobs(tx: &mut Tx<'_>, failed: Vec<DeadJob>) -> Result<(), StoreError> {
    if failed.is_empty() {
        return Ok(());
    }
    let now = tx.now();
    let ids = [Column::jobs(failed.iter().map(|failed| failed.job))];
    let rows = tx.query_each(&JOBS, &ids, &[]).await?;
    let mut jobs: HashMap<JobId, StoredJob> = HashMap::new();
    for row in &rows {
        let job = read(row)?;
        jobs.insert(job.id, job);
    }
    let mut attempts: HashMap<JobId, Vec<FailedAttempt>> = HashMap::new();
    for row in tx.query_each(&ATTEMPTS, &ids, &[]).await? {
        let (job, epoch) = (row.job("job")?, row.int("epoch")?);
        // The last attempt is added with the error that ended the job.
        if jobs.get(&job).is_some_and(|job| job.epoch.0 == epoch) {
            continue;
        }
        let error = match row.opt_text("error")? {
            Some(error) => error_from_json(&error)?,
            None => error_of_cause(row.opt_text("cause")?),
        };
        attempts.entry(job).or_default().push(FailedAttempt { at: row.time("at")?, error });
    }
    let awaited = awaited(tx, &jobs).await?;
    let mut letters = Vec::new();
    for DeadJob { job, tenant, error } in failed {
        if awaited.contains(&job) {
            continue;
        }
        let stored = jobs.get(&job).ok_or_else(|| StoreError::unexpected("an ended job is missing"))?;
        let mut attempts = attempts.remove(&job).unwrap_or_default();
        attempts.push(FailedAttempt { at: now, error });
        letters.extend(letter(tenant, stored, attempts));
    }
    insert_all(tx, &letters).await.map(|_| ())
}

const AWAITED: Sql = Sql::new(
    &["select job from trigger_runs where event_id = $1 and job = $2"],
    "select r.job from trigger_runs r join unnest($1::uuid[], $2::uuid[]) as n(event_id, job)
         on r.event_id = n.event_id and r.job = n.job",
);

/// Returns the jobs that `sync` hooks started: their callers get the error. Only the runs of `sync` triggers name a job.
async fn awaited(tx: &mut Tx<'_>, jobs: &HashMap<JobId, StoredJob>) -> Result<HashSet<JobId>, StoreError> {
    let event = |job: &StoredJob| match Origin::parse(job.triggered_by.as_deref()) {
        Origin::Trigger { cause, .. } if cause.source == Source::Http.as_str() => {
            Some((cause.event.uuid(), job.id.uuid()))
        }
        _ => None,
    };
    let caused: Vec<(Uuid, Uuid)> = jobs.values().filter_map(event).collect();
    if caused.is_empty() {
        return Ok(HashSet::new());
    }
    let columns =
        [Column::uuids(caused.iter().map(|(event, _)| *event)), Column::uuids(caused.iter().map(|(_, job)| *job))];
    tx.query_each(&AWAITED, &columns, &[]).await?.iter().map(|row| row.job("job")).collect()
}

/// Builds an error from the cause alone, for old history entries that have no error.
fn error_of_cause(cause: Option<String>) -> JobError {
    JobError { code: cause.unwrap_or_else(|| "unknown".into()), message: String::new(), retryable: true }
}

fn letter(tenant: TenantId, job: &StoredJob, attempts: Vec<FailedAttempt>) -> Option<NewDeadLetter> {
    let origin = Origin::parse(job.triggered_by.as_deref());
    if !origin.creates_dead_letter() {
        return None;
    }
    let own = Cause { event: EventId::new(job.id.uuid()), source: "job".into(), op: "failed".into() };
    let (trigger, cause) = match origin {
        Origin::Trigger { trigger, cause } | Origin::Script { trigger, cause } => (Some(trigger), cause),
        Origin::Replay { cause, .. } => (None, cause),
        _ => (None, own),
    };
    Some(NewDeadLetter {
        tenant,
        event: cause.event,
        source: cause.source,
        op: cause.op,
        trigger,
        script: None,
        job: Some(job.id),
        queue: Some(job.lane.queue.to_string()),
        kind: Some(job.lane.kind.to_string()),
        payload: job.payload.clone(),
        work: Some(work::of_job(job)),
        depth: job.depth,
        attempts,
    })
}

//! Jobs that are out of retries become dead letters in the transaction that ends them; the end of a handler's job
//! resolves the letter it was for (T6, T8).

use std::collections::HashMap;

use domain::origin::Cause;
use domain::{EventId, JobError, JobId, Origin, Resolution, TenantId};

use crate::codec::error_from_json;
use crate::dead_letters::insert::{NewDeadLetter, insert_all};
use crate::dead_letters::resolve::resolve;
use crate::dead_letters::{Attempt, work};
use crate::error::StoreError;
use crate::jobs::get::{StoredJob, read};
use crate::tx::{Column, Sql, Tx};

/// A job that has just failed for good, and its last error.
pub(crate) struct Failed {
    pub(crate) job: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) error: JobError,
}

// The columns that `get::read` wants.
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
    &["select job, at, error, cause from history where job = $1 and event in ('failed', 'expired') order by epoch"],
    "select job, at, error, cause from history where job = any($1::uuid[]) and event in ('failed', 'expired')
     order by job, epoch",
);

/// Writes a letter for each of these jobs whose origin asks for one.
pub(crate) async fn bury(tx: &mut Tx<'_>, failed: Vec<Failed>) -> Result<(), StoreError> {
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
    let mut attempts: HashMap<JobId, Vec<Attempt>> = HashMap::new();
    for row in tx.query_each(&ATTEMPTS, &ids, &[]).await? {
        let error = match row.opt_text(2)? {
            Some(error) => error_from_json(&error)?,
            None => without_words(row.opt_text(3)?),
        };
        attempts.entry(row.job(0)?).or_default().push(Attempt { at: row.time(1)?, error });
    }
    let mut letters = Vec::new();
    for Failed { job, tenant, error } in failed {
        let stored = jobs.get(&job).ok_or_else(|| StoreError::unexpected("a job that ended is not there"))?;
        let mut attempts = attempts.remove(&job).unwrap_or_default();
        attempts.push(Attempt { at: now, error });
        letters.extend(letter(tenant, stored, attempts));
    }
    insert_all(tx, &letters).await.map(|_| ())
}

/// History written before errors were kept in it knows the code alone.
fn without_words(cause: Option<String>) -> JobError {
    JobError { code: cause.unwrap_or_else(|| "unknown".into()), message: String::new(), retryable: true }
}

fn letter(tenant: TenantId, job: &StoredJob, attempts: Vec<Attempt>) -> Option<NewDeadLetter> {
    let origin = Origin::parse(job.triggered_by.as_deref());
    if !origin.leaves_a_dead_letter() {
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

/// A handler has ended, well or not: its letter is resolved by that. Called with the origin of whatever a trigger ran;
/// most are no handlers, and nothing is done.
pub(crate) async fn handler_ended(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    origin: &Origin,
    resolution: Resolution,
) -> Result<(), StoreError> {
    let (Some(letter), Origin::Trigger { trigger, .. }) = (origin.handles(), origin) else { return Ok(()) };
    resolve(tx, tenant, letter, resolution, &format!("trigger:{trigger}"), None).await.map(|_| ())
}

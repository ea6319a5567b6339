//! Applies the start and the end of attempts to the job's subject: its backoffs, facts, eligibility and timeline.
//!
//! Called in the transaction that changes the job's state, only for jobs that have a subject.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use domain::{Backoff, JobError, JobId, Name, Origin, RetryPolicy, TenantId, Time, WorkerId};

use crate::db::clock::random_unit;
use crate::db::codec::to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::backoffs::StoredBackoff;
use crate::fleet::backoffs::lockout::until_detail;
use crate::fleet::processes::codec::settings_from_json;
use crate::fleet::subjects;
use crate::fleet::subjects::SubjectRow;
use crate::fleet::subjects::eligibility;
use crate::fleet::subjects::eligibility::EndedWork;
use crate::fleet::subjects::facts::FactChanges;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::queue::lanes::LaneCache;
use crate::queue::queues;

/// A job on a subject whose attempt started or ended.
#[derive(Clone, Copy)]
pub(crate) struct SubjectWork<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) subject: &'a str,
    pub(crate) process: Option<&'a str>,
    pub(crate) queue: &'a Name,
    pub(crate) kind: &'a Name,
    pub(crate) job: JobId,
    pub(crate) attempt: i32,
    pub(crate) worker: Option<WorkerId>,
}

/// The end of an attempt, or the end of a job that was still waiting.
pub(crate) struct AttemptEnd<'a> {
    pub(crate) work: SubjectWork<'a>,
    /// Event name on the timeline.
    pub(crate) event: &'a str,
    pub(crate) actor: Option<&'a str>,
    pub(crate) outcome: AttemptOutcome<'a>,
    /// True if the job itself has ended.
    pub(crate) job_ended: bool,
}

/// How an attempt changed the job's state.
#[derive(Clone, Copy)]
pub(crate) enum AttemptOutcome<'a> {
    /// A worker claimed the job.
    Started,
    Success {
        facts: Option<&'a FactChanges>,
    },
    Failure {
        error: &'a JobError,
        /// The job's own policy, if it has one.
        retry: Option<RetryPolicy>,
        triggered_by: Option<&'a str>,
        /// The time of the next attempt and the wait that the retry policy computed; `None` if there is no retry.
        retry_at: Option<(Time, Option<u64>)>,
        /// The end of the backoff that the worker chose.
        chosen_until: Option<Time>,
    },
    /// Canceled, released or snoozed.
    Neither,
}

impl<'a> SubjectWork<'a> {
    fn entry(&self, event: &'a str) -> Entry<'a> {
        Entry {
            process: Some(self.process.unwrap_or(self.kind.as_str())),
            job: Some(self.job),
            attempt: Some(self.attempt),
            worker: self.worker,
            ..Entry::of_subject(self.tenant, self.subject, event)
        }
    }
}

/// Records started attempts on the timeline.
pub(crate) async fn started(tx: &mut Tx<'_>, work: &[SubjectWork<'_>]) -> Result<(), StoreError> {
    let entries: Vec<Entry<'_>> = work.iter().map(|work| work.entry("started")).collect();
    timeline::write(tx, &entries).await
}

/// Applies ended attempts to their subjects.
pub(crate) async fn ended(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    attempts: &[AttemptEnd<'_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let mut by_tenant: BTreeMap<TenantId, Vec<&AttemptEnd<'_>>> = BTreeMap::new();
    for attempt in attempts {
        by_tenant.entry(attempt.work.tenant).or_default().push(attempt);
    }
    for (tenant, mut attempts) in by_tenant {
        attempts.sort_by_key(|attempt| (attempt.work.subject, attempt.work.process));
        ended_of_tenant(tx, lanes, tenant, &attempts, effects).await?;
    }
    Ok(())
}

/// Locks rows in the order used everywhere, to avoid deadlocks: selectors, subjects, backoffs, `standings`.
async fn ended_of_tenant(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    tenant: TenantId,
    attempts: &[&AttemptEnd<'_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let reported = reported_facts(attempts);
    let selectors = if reported.is_empty() { Vec::new() } else { eligibility::selectors(tx, tenant).await? };
    let mut rows = lock_subjects(tx, tenant, attempts).await?;
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut touched = clear_backoffs(tx, lanes, attempts, effects).await?;
    let mut written = Vec::with_capacity(attempts.len());
    for attempt in attempts {
        written.push(back_off(tx, attempt).await?);
    }
    for (attempt, backoff) in attempts.iter().zip(&written) {
        let AttemptEnd { work, event, actor, outcome, .. } = attempt;
        let entry = Entry { actor: *actor, ..work.entry(event) };
        let AttemptOutcome::Failure { error, .. } = outcome else {
            entries.push(entry);
            continue;
        };
        let detail = Some(to_json(&BTreeMap::from([("message", &error.message)])));
        entries.push(Entry { cause: Some(&error.code), detail, ..entry });
        if let Some(backoff) = backoff {
            touched.insert(work.subject);
            let detail = Some(until_detail(backoff.until));
            entries.push(Entry { cause: Some(&backoff.cause), detail, worker: None, ..work.entry("backed_off") });
        }
    }
    for subject in touched {
        eligibility::recompute_ready(tx, tenant, subject).await?;
    }
    effects.scan |= free(tx, tenant, attempts).await?;
    let mut changed: Vec<(&SubjectWork<'_>, String)> = Vec::new();
    rows.retain(|row| reported.contains_key(row.id.as_str()));
    for row in &mut rows {
        for (work, facts) in &reported[row.id.as_str()] {
            let change = row.facts.change(facts, tx.now())?;
            if !change.values.is_empty() || change.rejected > 0 {
                changed.push((*work, change.detail()));
            }
        }
    }
    subjects::write(tx, tenant, &rows).await?;
    effects.scan |= eligibility::evaluate(tx, tenant, &rows, &selectors).await?;
    for (work, detail) in &changed {
        entries.push(Entry { detail: Some(detail.clone()), ..work.entry("facts_changed") });
    }
    timeline::write(tx, &entries).await
}

/// Returns the facts that workers reported with successful attempts, by subject.
fn reported_facts<'l, 'a>(
    attempts: &[&'l AttemptEnd<'a>],
) -> BTreeMap<&'a str, Vec<(&'l SubjectWork<'a>, &'a FactChanges)>> {
    let mut reported: BTreeMap<&'a str, Vec<(&'l SubjectWork<'a>, &'a FactChanges)>> = BTreeMap::new();
    for attempt in attempts {
        if let AttemptOutcome::Success { facts: Some(facts) } = attempt.outcome
            && !facts.is_empty()
        {
            reported.entry(attempt.work.subject).or_default().push((&attempt.work, facts));
        }
    }
    reported
}

/// Locks and returns the rows of the subjects. Inserts a missing row if the attempt sets facts or writes a backoff.
async fn lock_subjects(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    attempts: &[&AttemptEnd<'_>],
) -> Result<Vec<SubjectRow>, StoreError> {
    let ids: BTreeSet<&str> = attempts.iter().map(|attempt| attempt.work.subject).collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    let rows = subjects::lock(tx, tenant, &ids).await?;
    let existing: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let needs_row = |attempt: &&&AttemptEnd<'_>| match &attempt.outcome {
        AttemptOutcome::Success { facts } => facts.is_some_and(|facts| !facts.is_empty()),
        AttemptOutcome::Failure { .. } => attempt.work.process.is_some(),
        AttemptOutcome::Started | AttemptOutcome::Neither => false,
    };
    let missing =
        attempts.iter().filter(needs_row).map(|attempt| attempt.work.subject).filter(|id| !existing.contains(id));
    let missing: BTreeSet<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(rows);
    }
    subjects::insert_missing(tx, tenant, &missing.into_iter().collect::<Vec<_>>()).await?;
    subjects::lock(tx, tenant, &ids).await
}

/// Frees the subjects of ended jobs for their processes. After a failure this uses the backoff written before.
async fn free(tx: &mut Tx<'_>, tenant: TenantId, attempts: &[&AttemptEnd<'_>]) -> Result<bool, StoreError> {
    let ended = attempts.iter().filter(|attempt| attempt.job_ended).filter_map(|attempt| {
        let paced = !matches!(attempt.outcome, AttemptOutcome::Failure { .. });
        let SubjectWork { subject, process, job, .. } = attempt.work;
        Some(EndedWork { subject, process: process?, job, paced })
    });
    eligibility::free(tx, tenant, &ended.collect::<Vec<_>>()).await
}

/// Removes the backoffs of successful (subject, process) pairs. Returns the subjects that had one.
async fn clear_backoffs<'a>(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    attempts: &[&AttemptEnd<'a>],
    effects: &mut Effects,
) -> Result<BTreeSet<&'a str>, StoreError> {
    let successes = attempts.iter().filter(|attempt| matches!(attempt.outcome, AttemptOutcome::Success { .. }));
    let keys = successes.filter_map(|attempt| Some((attempt.work.tenant, attempt.work.subject, attempt.work.process?)));
    let removed = backoffs::remove(tx, lanes, &keys.collect::<Vec<_>>(), effects).await?;
    Ok(removed.into_iter().map(|(_, subject)| subject).collect())
}

const PROCESS: Sql =
    Sql::both(&["select queue, kind, settings from processes where tenant = $1 and name = $2 and dropped_at is null"]);

/// Writes the backoff after a failure and returns it. Returns `None` for a job without a process, and for a job that is
/// queued again immediately.
async fn back_off(tx: &mut Tx<'_>, attempt: &AttemptEnd<'_>) -> Result<Option<Backoff>, StoreError> {
    let AttemptOutcome::Failure { error, retry, triggered_by, retry_at, chosen_until } = &attempt.outcome else {
        return Ok(None);
    };
    let SubjectWork { tenant, subject, process: Some(process), job, worker, .. } = attempt.work else {
        return Ok(None);
    };
    if !attempt.job_ended && retry_at.is_none() {
        // The job is queued again at once, as after the loss of its worker.
        return Ok(None);
    }
    let stored = backoffs::find(tx, tenant, subject, process).await?;
    let before = stored.as_ref().map(|stored| &stored.backoff);
    let by = worker.map_or_else(|| format!("job {job}"), |worker| format!("worker {worker}"));
    let backoff = match (retry_at, chosen_until) {
        // The worker's choice replaces the backoff on record, also if it is shorter.
        (_, Some(until)) => {
            let wait_s = before.and_then(|before| before.wait_s);
            Backoff { until: Some(*until), cause: error.summary(), by, wait_s, at: tx.now() }
        }
        (Some((run_at, wait_s)), None) => {
            Backoff { until: Some(*run_at), cause: error.summary(), by, wait_s: *wait_s, at: tx.now() }
                .not_shorter(before, tx.now())
        }
        (None, None) => {
            let made_by_process = matches!(Origin::parse(*triggered_by), Origin::Process(_));
            let declared = if made_by_process { policy_of(tx, tenant, process).await? } else { *retry };
            let policy = match declared {
                Some(policy) => policy,
                None => queues::settings(tx, tenant, attempt.work.queue).await?.retry_for(attempt.work.kind),
            };
            // For a producer's own job even a permanent error only backs off: the producer decides what to do about it.
            // A permanent error of a process's job locks the process out.
            let error = JobError { retryable: error.retryable || !made_by_process, ..(*error).clone() };
            Backoff::after_failure(before, &policy, &error, &by, random_unit(), tx.now())
        }
    };
    let stored = StoredBackoff { process: process.into(), backoff: backoff.clone(), job: Some(job.uuid()) };
    backoffs::write(tx, tenant, subject, &stored).await?;
    Ok(Some(backoff))
}

/// Returns the backoff policy that a process declares, if any.
async fn policy_of(tx: &mut Tx<'_>, tenant: TenantId, process: &str) -> Result<Option<RetryPolicy>, StoreError> {
    let row = tx.query_opt(&PROCESS, &[Param::Int(tenant.0), Param::Text(process)]).await?;
    let Some(row) = row else { return Ok(None) };
    let settings = settings_from_json(
        Name::stored(&row.text("queue")?),
        Name::stored(&row.text("kind")?),
        &row.text("settings")?,
    )?;
    Ok(settings.backoff)
}

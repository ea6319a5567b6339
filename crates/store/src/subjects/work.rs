//! Follows jobs on subjects: what claims and outcomes mean for the subject's backoffs, facts, standings and timeline.
//!
//! Called by claim, settle and whatever else moves a job, in their own transactions, only for jobs that have a subject.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use domain::{Backoff, JobError, JobId, Name, Origin, RetryPolicy, TenantId, Time, WorkerId};

use crate::backoffs::by_hand::until_detail;
use crate::backoffs::{self, StoredBackoff};
use crate::clock::dice;
use crate::codec::to_json;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::lanes::LaneCache;
use crate::processes::codec::settings_from_json;
use crate::queues;
use crate::subjects::facts::FactChanges;
use crate::subjects::standings::{self, Over};
use crate::subjects::{self, SubjectRow};
use crate::timeline::{self, Entry};
use crate::tx::{Param, Sql, Tx};

/// A job on a subject that was claimed or left its worker's hands.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) subject: &'a str,
    pub(crate) process: Option<&'a str>,
    pub(crate) queue: &'a Name,
    pub(crate) kind: &'a Name,
    pub(crate) job: JobId,
    pub(crate) attempt: i32,
    pub(crate) worker: Option<WorkerId>,
}

/// How an attempt, or a job that waited, came to its end.
pub(crate) struct Left<'a> {
    pub(crate) work: Work<'a>,
    /// What the timeline calls it.
    pub(crate) event: &'a str,
    pub(crate) actor: Option<&'a str>,
    pub(crate) outcome: LeftWith<'a>,
    /// The job itself is over.
    pub(crate) over: bool,
}

pub(crate) enum LeftWith<'a> {
    Success {
        facts: Option<&'a FactChanges>,
    },
    Failure {
        error: &'a JobError,
        /// The job's own policy, if it has one.
        retry: Option<RetryPolicy>,
        triggered_by: Option<&'a str>,
        /// When it is tried again, and the wait that was asked for.
        again: Option<(Time, Option<u64>)>,
    },
    /// Canceled, released, snoozed.
    Neither,
}

impl<'a> Work<'a> {
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

pub(crate) async fn started(tx: &mut Tx<'_>, work: &[Work<'_>]) -> Result<(), StoreError> {
    let entries: Vec<Entry<'_>> = work.iter().map(|work| work.entry("started")).collect();
    timeline::write(tx, &entries).await
}

/// Writes all that follows for the subjects.
pub(crate) async fn left(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    left: &[Left<'_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let mut by_tenant: BTreeMap<TenantId, Vec<&Left<'_>>> = BTreeMap::new();
    for left in left {
        by_tenant.entry(left.work.tenant).or_default().push(left);
    }
    for (tenant, mut left) in by_tenant {
        left.sort_by_key(|left| (left.work.subject, left.work.process));
        left_of_tenant(tx, lanes, tenant, &left, effects).await?;
    }
    Ok(())
}

/// Rows are locked in one order everywhere: selectors, subjects, backoffs, standings. So nobody waits in a circle.
async fn left_of_tenant(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    tenant: TenantId,
    left: &[&Left<'_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let given = facts_given(left);
    let selectors = if given.is_empty() { Vec::new() } else { standings::selectors(tx, tenant).await? };
    let mut rows = lock_subjects(tx, tenant, left).await?;
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut touched = clear_backoffs(tx, lanes, left, effects).await?;
    for left in left {
        let Left { work, event, actor, outcome, .. } = left;
        let entry = Entry { actor: *actor, ..work.entry(event) };
        let LeftWith::Failure { error, .. } = outcome else {
            entries.push(entry);
            continue;
        };
        let detail = Some(to_json(&BTreeMap::from([("message", &error.message)])));
        entries.push(Entry { cause: Some(&error.code), detail, ..entry });
        if let Some(backoff) = back_off(tx, left).await? {
            touched.insert(work.subject);
            let detail = Some(until_detail(backoff.until));
            entries.push(Entry { cause: Some(&error.code), detail, worker: None, ..work.entry("backed_off") });
        }
    }
    for subject in touched {
        standings::recompute_ready(tx, tenant, subject).await?;
    }
    effects.scan |= free(tx, tenant, left).await?;
    let mut changed: Vec<(&Work<'_>, String)> = Vec::new();
    rows.retain(|row| given.contains_key(row.id.as_str()));
    for row in &mut rows {
        for (work, facts) in &given[row.id.as_str()] {
            let change = row.facts.change(facts, tx.now())?;
            if !change.values.is_empty() || change.left_out > 0 {
                changed.push((*work, change.detail()));
            }
        }
    }
    subjects::write(tx, tenant, &rows).await?;
    effects.scan |= standings::judge(tx, tenant, &rows, &selectors).await?;
    for (work, detail) in &changed {
        entries.push(Entry { detail: Some(detail.clone()), ..work.entry("facts_changed") });
    }
    timeline::write(tx, &entries).await
}

/// What workers handed over with their successes, by subject (W3).
fn facts_given<'l, 'a>(left: &[&'l Left<'a>]) -> BTreeMap<&'a str, Vec<(&'l Work<'a>, &'a FactChanges)>> {
    let mut given: BTreeMap<&'a str, Vec<(&'l Work<'a>, &'a FactChanges)>> = BTreeMap::new();
    for left in left {
        if let LeftWith::Success { facts: Some(facts) } = left.outcome
            && !facts.is_empty()
        {
            given.entry(left.work.subject).or_default().push((&left.work, facts));
        }
    }
    given
}

/// The rows of the subjects; those of which something is to be told are made where they are missing.
async fn lock_subjects(tx: &mut Tx<'_>, tenant: TenantId, left: &[&Left<'_>]) -> Result<Vec<SubjectRow>, StoreError> {
    let ids: BTreeSet<&str> = left.iter().map(|left| left.work.subject).collect();
    let ids: Vec<&str> = ids.into_iter().collect();
    let rows = subjects::lock(tx, tenant, &ids).await?;
    let known: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let tells = |left: &&&Left<'_>| match &left.outcome {
        LeftWith::Success { facts } => facts.is_some_and(|facts| !facts.is_empty()),
        LeftWith::Failure { .. } => left.work.process.is_some(),
        LeftWith::Neither => false,
    };
    let missing = left.iter().filter(tells).map(|left| left.work.subject).filter(|id| !known.contains(id));
    let missing: BTreeSet<&str> = missing.collect();
    if missing.is_empty() {
        return Ok(rows);
    }
    subjects::make(tx, tenant, &missing.into_iter().collect::<Vec<_>>()).await?;
    subjects::lock(tx, tenant, &ids).await
}

/// The subjects' places in their processes are free again, those that a failure gives back with the backoff it wrote.
async fn free(tx: &mut Tx<'_>, tenant: TenantId, left: &[&Left<'_>]) -> Result<bool, StoreError> {
    let over = left.iter().filter(|left| left.over).filter_map(|left| {
        let paced = !matches!(left.outcome, LeftWith::Failure { .. });
        let Work { subject, process, job, .. } = left.work;
        Some(Over { subject, process: process?, job, paced })
    });
    standings::free(tx, tenant, &over.collect::<Vec<_>>()).await
}

/// Success clears the backoff. Gives the subjects that had one.
async fn clear_backoffs<'a>(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    left: &[&Left<'a>],
    effects: &mut Effects,
) -> Result<BTreeSet<&'a str>, StoreError> {
    let successes = left.iter().filter(|left| matches!(left.outcome, LeftWith::Success { .. }));
    let on = successes.filter_map(|left| Some((left.work.tenant, left.work.subject, left.work.process?)));
    let removed = backoffs::remove(tx, lanes, &on.collect::<Vec<_>>(), effects).await?;
    Ok(removed.into_iter().map(|(_, subject)| subject).collect())
}

const PROCESS: Sql =
    Sql::both(&["select queue, kind, settings from processes where tenant = $1 and name = $2 and dropped_at is null"]);

/// Writes the backoff that a failure asks for; only a job with a process has one.
async fn back_off(tx: &mut Tx<'_>, left: &Left<'_>) -> Result<Option<Backoff>, StoreError> {
    let LeftWith::Failure { error, retry, triggered_by, again } = &left.outcome else { return Ok(None) };
    let Work { tenant, subject, process: Some(process), job, worker, .. } = left.work else { return Ok(None) };
    if !left.over && again.is_none() {
        // It is back in line at once, as after a worker's death.
        return Ok(None);
    }
    let on_record = backoffs::find(tx, tenant, subject, process).await?;
    let before = on_record.as_ref().map(|stored| &stored.backoff);
    let by = worker.map_or_else(|| format!("job {job}"), |worker| format!("worker {worker}"));
    let backoff = match again {
        Some((run_at, wait_s)) => {
            Backoff { until: Some(*run_at), cause: error.code.clone(), by, wait_s: *wait_s, at: tx.now() }
                .not_shorter(before, tx.now())
        }
        None => {
            let made_by_process = matches!(Origin::parse(*triggered_by), Origin::Process(_));
            let declared = if made_by_process { policy_of(tx, tenant, process).await? } else { *retry };
            let policy = match declared {
                Some(policy) => policy,
                None => queues::settings(tx, tenant, left.work.queue).await?.retry_for(left.work.kind),
            };
            // A producer decides for itself what to do about a job that cannot succeed.
            let error = JobError { retryable: error.retryable || !made_by_process, ..(*error).clone() };
            Backoff::after_failure(before, &policy, &error, &by, dice(), tx.now())
        }
    };
    let stored = StoredBackoff { process: process.into(), backoff: backoff.clone(), job: Some(job.uuid()) };
    backoffs::write(tx, tenant, subject, &stored).await?;
    Ok(Some(backoff))
}

/// The backoff that a process declares.
async fn policy_of(tx: &mut Tx<'_>, tenant: TenantId, process: &str) -> Result<Option<RetryPolicy>, StoreError> {
    let row = tx.query_opt(&PROCESS, &[Param::Int(tenant.0), Param::Text(process)]).await?;
    let Some(row) = row else { return Ok(None) };
    let settings = settings_from_json(Name::stored(&row.text(0)?), Name::stored(&row.text(1)?), &row.text(2)?)?;
    Ok(settings.backoff)
}

//! Finds what blocks a queued job apart from its position: a subject, a concurrency key or a backoff. `why`, ETAs and
//! the dashboard use it.
//!
//! A claim parks a job when it reaches it. Until then the row does not record the obstacle. This module computes it
//! with the rules of the claim but without its locks, because the result is informational.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::{Backoff, JobId, JobState, Label, Name, TenantId};

use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::backoffs::StoredBackoff;
use crate::fleet::subjects::guard::{ActiveBackoffs, Exclusions, SubjectProcess};
use crate::queue::get::StoredJob;
use crate::queue::holds;
use crate::queue::holds::Want;
use crate::queue::queues;

/// Sets `parked` to the scope that the job is, or would be, parked for. Returns the backoff if that scope is one.
pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: &mut StoredJob,
) -> Result<Option<Backoff>, StoreError> {
    complete(tx, tenant, std::slice::from_mut(job)).await?;
    let Some((subject, scope)) = blocking_backoff(job) else { return Ok(None) };
    let all = backoffs::of_subject(tx, tenant, subject).await?;
    Ok(backoff_of(&all, subject, scope))
}

/// Batch form of [`find`]: a constant number of statements for all jobs.
pub(crate) async fn find_all(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &mut [StoredJob],
) -> Result<Vec<Option<Backoff>>, StoreError> {
    complete(tx, tenant, jobs).await?;
    let subjects: BTreeSet<&str> = jobs.iter().filter_map(blocking_backoff).map(|(subject, _)| subject).collect();
    let subjects: Vec<&str> = subjects.into_iter().collect();
    let all = backoffs::of_subjects(tx, tenant, &subjects).await?;
    let backoff = |job: &StoredJob| {
        let (subject, scope) = blocking_backoff(job)?;
        backoff_of(all.get(subject)?, subject, scope)
    };
    Ok(jobs.iter().map(backoff).collect())
}

async fn complete(tx: &mut Tx<'_>, tenant: TenantId, jobs: &mut [StoredJob]) -> Result<(), StoreError> {
    let mut parked = expected_scopes(tx, tenant, jobs).await?;
    for job in jobs.iter_mut() {
        if let Some(scope) = parked.remove(&job.id) {
            job.parked = Some(scope);
        }
    }
    Ok(())
}

/// Returns the subject and the scope of the backoff that blocks the job.
fn blocking_backoff(job: &StoredJob) -> Option<(&str, &str)> {
    let scope = job.parked.as_deref().filter(|scope| scope.starts_with(backoffs::SCOPE))?;
    Some((job.subject.as_deref().filter(|_| job.state == JobState::Queued)?, scope))
}

fn backoff_of(all: &[StoredBackoff], subject: &str, scope: &str) -> Option<Backoff> {
    let stored = all.iter().find(|stored| backoffs::scope(&stored.process, subject) == scope)?;
    Some(stored.backoff.clone())
}

/// The holds that a job requires and the scopes that must be free.
struct Needs {
    job: JobId,
    wants: Vec<Want>,
    excludes: Vec<String>,
}

impl Needs {
    fn scopes(&self) -> impl Iterator<Item = &str> {
        self.wants.iter().map(|want| &want.scope).chain(&self.excludes).map(String::as_str)
    }

    /// Returns the first scope that is unavailable, given the number of holders of each scope.
    fn missing(&self, holders: &BTreeMap<String, u32>) -> Option<&String> {
        let count = |scope: &str| holders.get(scope).copied().unwrap_or(0);
        let full = self.wants.iter().find(|want| count(&want.scope) >= want.limit).map(|want| &want.scope);
        full.or_else(|| self.excludes.iter().find(|scope| count(scope) > 0))
    }
}

/// Returns, by job, the scope that a claim would park it for now. Jobs that a claim could take are absent.
async fn expected_scopes(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[StoredJob],
) -> Result<HashMap<JobId, String>, StoreError> {
    let is_unchecked = |job: &&StoredJob| job.state == JobState::Queued && job.parked.is_none() && job.lane.guarded;
    let unchecked: Vec<&StoredJob> = jobs.iter().filter(is_unchecked).collect();
    let subjects: Vec<SubjectProcess> = unchecked.iter().filter_map(|job| subject_process(job)).collect();
    let active_backoffs = ActiveBackoffs::find(tx, tenant, subjects.iter()).await?;
    let mut parked = HashMap::new();
    let mut free = Vec::new();
    for job in unchecked {
        match active_backoffs.scope(subject_process(job).as_ref()) {
            Some(scope) => drop(parked.insert(job.id, scope)),
            None => free.push(job),
        }
    }
    let needs = load_needs(tx, tenant, &free).await?;
    let scopes: BTreeSet<&str> = needs.iter().flat_map(Needs::scopes).collect();
    let holders = holds::count(tx, tenant, &scopes).await?;
    for job_needs in &needs {
        parked.extend(job_needs.missing(&holders).map(|scope| (job_needs.job, scope.clone())));
    }
    Ok(parked)
}

fn subject_process(job: &StoredJob) -> Option<SubjectProcess> {
    let subject = job.subject.clone()?;
    Some(SubjectProcess { subject, process: job.process.clone().unwrap_or_else(|| job.lane.kind.to_string()) })
}

/// Loads the key limits and exclusions and returns the needs of each job, without locks.
async fn load_needs(tx: &mut Tx<'_>, tenant: TenantId, jobs: &[&StoredJob]) -> Result<Vec<Needs>, StoreError> {
    let queue_names: BTreeSet<&Name> = jobs.iter().map(|job| &job.lane.queue).collect();
    let mut per_key: BTreeMap<&Name, u32> = BTreeMap::new();
    for queue in queue_names {
        per_key.insert(queue, queues::settings(tx, tenant, queue).await?.per_key_limit());
    }
    let subjects: Vec<SubjectProcess> = jobs.iter().filter_map(|job| subject_process(job)).collect();
    let exclusions = Exclusions::load(tx, tenant, subjects.iter()).await?;
    let needs_of = |job: &&StoredJob| {
        let (queue, kind) = (&job.lane.queue, &job.lane.kind);
        let [subject, key] = [&job.subject, &job.concurrency_key].map(|text| text.as_deref().map(Label::stored));
        let per_key = per_key[queue];
        Needs {
            job: job.id,
            wants: holds::wants(queue, kind, subject.as_ref(), job.process.as_deref(), key.as_ref(), per_key),
            excludes: exclusions.scopes(subject_process(job).as_ref()),
        }
    };
    Ok(jobs.iter().map(needs_of).collect())
}

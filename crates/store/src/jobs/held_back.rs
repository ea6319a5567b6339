//! What holds a queued job back beside its turn (Q15, S1).
//!
//! A job is parked when a claim comes to it. Until then its row does not say what stands in its way, so that is worked out
//! here by the rules of the claim, without its locks: who asks only wants to know.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::{Backoff, JobId, JobState, Label, Name, TenantId};

use crate::backoffs::{self, StoredBackoff};
use crate::error::StoreError;
use crate::jobs::get::StoredJob;
use crate::jobs::holds::{self, Want};
use crate::queues;
use crate::subjects::guard::{Exclusions, HeldOff, OnSubject};
use crate::tx::Tx;

/// Completes the job by what it is, or would be, parked for. Gives the backoff, when it is one.
pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: &mut StoredJob,
) -> Result<Option<Backoff>, StoreError> {
    complete(tx, tenant, std::slice::from_mut(job)).await?;
    let Some((subject, scope)) = held_off(job) else { return Ok(None) };
    let all = backoffs::of_subject(tx, tenant, subject).await?;
    Ok(backoff_of(&all, subject, scope))
}

/// The same of each of several jobs, with a few statements for all of them.
pub(crate) async fn find_all(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &mut [StoredJob],
) -> Result<Vec<Option<Backoff>>, StoreError> {
    complete(tx, tenant, jobs).await?;
    let subjects: BTreeSet<&str> = jobs.iter().filter_map(held_off).map(|(subject, _)| subject).collect();
    let subjects: Vec<&str> = subjects.into_iter().collect();
    let all = backoffs::of_subjects(tx, tenant, &subjects).await?;
    let by = |job: &StoredJob| {
        let (subject, scope) = held_off(job)?;
        backoff_of(all.get(subject)?, subject, scope)
    };
    Ok(jobs.iter().map(by).collect())
}

async fn complete(tx: &mut Tx<'_>, tenant: TenantId, jobs: &mut [StoredJob]) -> Result<(), StoreError> {
    let mut parked = would_be_parked_for(tx, tenant, jobs).await?;
    for job in jobs.iter_mut() {
        if let Some(scope) = parked.remove(&job.id) {
            job.parked = Some(scope);
        }
    }
    Ok(())
}

/// The subject on which a backoff holds the job off, and the backoff's scope.
fn held_off(job: &StoredJob) -> Option<(&str, &str)> {
    let scope = job.parked.as_deref().filter(|scope| scope.starts_with(backoffs::SCOPE))?;
    Some((job.subject.as_deref().filter(|_| job.state == JobState::Queued)?, scope))
}

fn backoff_of(all: &[StoredBackoff], subject: &str, scope: &str) -> Option<Backoff> {
    let by = all.iter().find(|stored| backoffs::scope(&stored.process, subject) == scope)?;
    Some(by.backoff.clone())
}

/// What a job must hold, and what nobody else may.
struct Needs {
    job: JobId,
    wants: Vec<Want>,
    excludes: Vec<String>,
}

impl Needs {
    fn scopes(&self) -> impl Iterator<Item = &str> {
        self.wants.iter().map(|want| &want.scope).chain(&self.excludes).map(String::as_str)
    }

    /// The first scope that is not to be had while so many hold each.
    fn missing(&self, holders: &BTreeMap<String, u32>) -> Option<&String> {
        let held = |scope: &str| holders.get(scope).copied().unwrap_or(0);
        let full = self.wants.iter().find(|want| held(&want.scope) >= want.limit).map(|want| &want.scope);
        full.or_else(|| self.excludes.iter().find(|scope| held(scope) > 0))
    }
}

/// By job, what a claim that came to it now would park it for. Those that it would not park are left out.
async fn would_be_parked_for(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[StoredJob],
) -> Result<HashMap<JobId, String>, StoreError> {
    let is_unseen = |job: &&StoredJob| job.state == JobState::Queued && job.parked.is_none() && job.lane.guarded;
    let unseen: Vec<&StoredJob> = jobs.iter().filter(is_unseen).collect();
    let on: Vec<OnSubject> = unseen.iter().filter_map(|job| on_subject(job)).collect();
    let held_off = HeldOff::look(tx, tenant, on.iter()).await?;
    let mut parked = HashMap::new();
    let mut free = Vec::new();
    for job in unseen {
        match held_off.scope(on_subject(job).as_ref()) {
            Some(scope) => drop(parked.insert(job.id, scope)),
            None => free.push(job),
        }
    }
    let needs = needs(tx, tenant, &free).await?;
    let scopes: BTreeSet<&str> = needs.iter().flat_map(Needs::scopes).collect();
    let holders = holds::count(tx, tenant, &scopes).await?;
    for needs in &needs {
        parked.extend(needs.missing(&holders).map(|scope| (needs.job, scope.clone())));
    }
    Ok(parked)
}

fn on_subject(job: &StoredJob) -> Option<OnSubject> {
    let subject = job.subject.clone()?;
    Some(OnSubject { subject, process: job.process.clone().unwrap_or_else(|| job.lane.kind.to_string()) })
}

async fn needs(tx: &mut Tx<'_>, tenant: TenantId, jobs: &[&StoredJob]) -> Result<Vec<Needs>, StoreError> {
    let of: BTreeSet<&Name> = jobs.iter().map(|job| &job.lane.queue).collect();
    let mut per_key: BTreeMap<&Name, u32> = BTreeMap::new();
    for queue in of {
        per_key.insert(queue, queues::settings(tx, tenant, queue).await?.per_key_limit());
    }
    let on: Vec<OnSubject> = jobs.iter().filter_map(|job| on_subject(job)).collect();
    let exclusions = Exclusions::load(tx, tenant, on.iter()).await?;
    let needs = |job: &&StoredJob| {
        let (queue, kind) = (&job.lane.queue, &job.lane.kind);
        let [subject, key] = [&job.subject, &job.concurrency_key].map(|word| word.as_deref().map(Label::stored));
        let per_key = per_key[queue];
        Needs {
            job: job.id,
            wants: holds::wants(queue, kind, subject.as_ref(), job.process.as_deref(), key.as_ref(), per_key),
            excludes: exclusions.scopes(on_subject(job).as_ref()),
        }
    };
    Ok(jobs.iter().map(needs).collect())
}

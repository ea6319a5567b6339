//! What holds a queued job back beside its turn (Q15, S1).
//!
//! A job is parked when a claim comes to it. Until then its row does not say what stands in its way, so that is worked out
//! here by the rules of the claim, without its locks: who asks only wants to know.

use std::collections::BTreeSet;

use domain::{Backoff, JobState, Label, TenantId};

use crate::backoffs;
use crate::error::StoreError;
use crate::jobs::get::StoredJob;
use crate::jobs::holds;
use crate::queues;
use crate::subjects::guard::{Exclusions, HeldOff, OnSubject};
use crate::tx::Tx;

/// Completes the job by what it is, or would be, parked for. Gives the backoff, when it is one.
pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: &mut StoredJob,
) -> Result<Option<Backoff>, StoreError> {
    if job.state != JobState::Queued {
        return Ok(None);
    }
    if job.parked.is_none() && job.lane.guarded {
        job.parked = would_be_parked_for(tx, tenant, job).await?;
    }
    match (&job.parked, &job.subject) {
        (Some(scope), Some(subject)) if scope.starts_with(backoffs::SCOPE) => {
            let all = backoffs::of_subject(tx, tenant, subject).await?;
            let by = all.into_iter().find(|stored| backoffs::scope(&stored.process, subject) == *scope);
            Ok(by.map(|stored| stored.backoff))
        }
        _ => Ok(None),
    }
}

async fn would_be_parked_for(tx: &mut Tx<'_>, tenant: TenantId, job: &StoredJob) -> Result<Option<String>, StoreError> {
    let (queue, kind) = (&job.lane.queue, &job.lane.kind);
    let on = job.subject.as_ref().map(|subject| OnSubject {
        subject: subject.clone(),
        process: job.process.clone().unwrap_or_else(|| kind.to_string()),
    });
    if let Some(scope) = HeldOff::look(tx, tenant, on.iter()).await?.scope(on.as_ref()) {
        return Ok(Some(scope));
    }
    let per_key = queues::settings(tx, tenant, queue).await?.per_key_limit();
    let [subject, key] = [&job.subject, &job.concurrency_key].map(|word| word.as_deref().map(Label::stored));
    let wants = holds::wants(queue, kind, subject.as_ref(), job.process.as_deref(), key.as_ref(), per_key);
    let excludes = Exclusions::load(tx, tenant, on.iter()).await?.scopes(on.as_ref());
    let scopes: BTreeSet<&str> = wants.iter().map(|want| &want.scope).chain(&excludes).map(String::as_str).collect();
    let holders = holds::count(tx, tenant, &scopes).await?;
    let held = |scope: &str| holders.get(scope).copied().unwrap_or(0);
    let full = wants.iter().find(|want| held(&want.scope) >= want.limit).map(|want| &want.scope);
    Ok(full.or_else(|| excludes.iter().find(|scope| held(scope) > 0)).cloned())
}

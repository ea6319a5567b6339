//! A cached index of a tenant's compiled signatures, and the prediction of failures from it.
//!
//! Signatures are few and change rarely; jobs are many. So the compiled signatures are cached for a second, and a job
//! that has not started is matched against them in memory. A prediction costs an enqueue nothing and a read almost
//! nothing.

use std::sync::Arc;

use domain::limits::SIGNATURES;
use domain::signals::signal::Evidence;
use domain::signals::signature::{FailureCase, Matcher};
use domain::{JobState, TenantId, Time};

use super::{Signature, SignatureStatus, read};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::StoredJob;
use crate::signals::failures::learn::subject_of;
use crate::signals::read::SignalSource;
use crate::store::Store;

/// The active signatures of a tenant.
#[derive(Clone, Debug, Default)]
pub struct SignatureIndex {
    /// Ordered by confidence, then by number of samples, both descending.
    compiled: Vec<CompiledSignature>,
}

#[derive(Clone, Debug)]
struct CompiledSignature {
    signature: Signature,
    matcher: Matcher,
}

/// A signature that a job may match before it has started, with the evidence for it.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub signature: Signature,
    pub evidence: Option<Evidence>,
}

impl Store {
    /// Returns the index of a tenant, at most a second old.
    pub async fn signature_index(&self, tenant: TenantId) -> Result<Arc<SignatureIndex>, StoreError> {
        let store = self.clone();
        let (index, _) =
            self.signature_cache().get(tenant, || async move { store.read(ReadIndex { tenant }).await }).await?;
        Ok(index)
    }
}

struct ReadIndex {
    tenant: TenantId,
}

impl Operation for ReadIndex {
    type Output = SignatureIndex;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignatureIndex, StoreError> {
        read_index(tx, self.tenant).await
    }
}

const ACTIVE: Sql = Sql::both(&["select id, phase, error_code, kind, subject_pattern, likely_cause, mttr_p50_s,
         mttr_p95_s, suggested_action, remediation_url, confidence, version, samples, last_match_at, enabled, muted,
         status, fixed_at, recurred_at, created_by, created_at, updated_at, expires_at
     from signatures where tenant = $1 and enabled and not muted and (expires_at is null or expires_at > $2)
     order by confidence desc, samples desc, id limit $3"]);

/// Reads and compiles the active signatures within a transaction.
pub(crate) async fn read_index(tx: &mut Tx<'_>, tenant: TenantId) -> Result<SignatureIndex, StoreError> {
    let params = [Param::Int(tenant.0), Param::Time(tx.now()), Param::Int(SIGNATURES as i64)];
    let mut compiled = Vec::new();
    for row in tx.query(&ACTIVE, &params).await? {
        let signature = read(&row)?;
        // A newer version may have written a pattern that this version cannot compile. It is skipped.
        if let Ok(matcher) = signature.pattern.clone().matcher() {
            compiled.push(CompiledSignature { signature, matcher });
        }
    }
    Ok(SignatureIndex { compiled })
}

impl SignatureIndex {
    /// Returns the matching signature with the highest confidence, then the most samples.
    pub fn best(&self, case: FailureCase<'_>, now: Time) -> Option<&Signature> {
        let is_match =
            |compiled: &&CompiledSignature| compiled.signature.is_active(now) && compiled.matcher.matches(case);
        self.compiled.iter().find(is_match).map(|compiled| &compiled.signature)
    }

    /// Returns the signature that explains why this job failed.
    pub fn explain(&self, job: &StoredJob, now: Time) -> Option<&Signature> {
        let error = job.error.as_ref().filter(|_| job.state == JobState::Failed)?;
        let subject = subject_of(job);
        let case = FailureCase {
            phase: job.phase.as_deref(),
            error_code: Some(&error.code),
            kind: Some(job.lane.kind.as_str()),
            subject: subject.as_deref(),
        };
        self.best(case, now)
    }

    /// Predicts how a job that has not started may fail.
    ///
    /// A prediction needs evidence. A signature that a user wrote or confirmed applies to the kind or subject that it
    /// names, unless none of the previous jobs with the same key failed this way. A learned one needs at least two of
    /// these failures or, for a job without previous jobs, failures of this subject.
    pub fn predict(&self, source: &SignalSource, now: Time) -> Option<Prediction> {
        let job = &source.job;
        let has_started =
            job.attempt > 0 || !matches!(job.state, JobState::Waiting | JobState::Scheduled | JobState::Queued);
        if has_started || self.compiled.is_empty() {
            return None;
        }
        let kind = job.lane.kind.as_str();
        let subject = subject_of(job);
        self.compiled
            .iter()
            .filter(|compiled| compiled.signature.is_active(now))
            .filter(|compiled| compiled.matcher.may_match_job(Some(kind), subject.as_deref()))
            .find_map(|compiled| {
                let evidence = evidence(compiled, source, kind, subject.as_deref());
                let pattern = compiled.matcher.pattern();
                let names_job = pattern.kind.is_some() || pattern.subject_pattern.is_some();
                let failed = evidence.as_ref().map_or(0, |evidence| evidence.failed);
                let is_learned = compiled.signature.status == SignatureStatus::Proposed;
                let applies = match (source.previous.is_empty(), is_learned) {
                    (true, true) => pattern.subject_pattern.is_some(),
                    (true, false) => names_job,
                    (false, true) => failed >= 2,
                    (false, false) => names_job && failed >= 1,
                };
                applies.then(|| Prediction { signature: compiled.signature.clone(), evidence })
            })
    }
}

/// Returns how many of the previous jobs failed this way; `None` if none did.
fn evidence(
    compiled: &CompiledSignature,
    source: &SignalSource,
    kind: &str,
    subject: Option<&str>,
) -> Option<Evidence> {
    let failed = source.previous.iter().filter(|previous| {
        let case = FailureCase {
            phase: previous.phase.as_deref(),
            error_code: previous.error_code.as_deref(),
            kind: Some(kind),
            subject,
        };
        previous.state == JobState::Failed && compiled.matcher.matches(case)
    });
    let failed = failed.count() as u64;
    let by = source.previous_by.filter(|_| failed > 0)?;
    Some(Evidence { failed, of: source.previous.len() as u64, by })
}

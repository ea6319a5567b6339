//! The signatures of a tenant, compiled, and what they foretell (S6, S8).
//!
//! Signatures are few and change seldom; jobs are many. So they are kept compiled for a second, and a job that has not
//! begun is held against them in memory: telling what may go wrong costs an enqueue nothing and a read next to nothing.

use std::sync::Arc;

use domain::limits::SIGNATURES;
use domain::signal::Evidence;
use domain::signature::{Case, Matcher};
use domain::{JobState, TenantId, Time};

use super::{Signature, Status, read};
use crate::error::StoreError;
use crate::failures::learn::subject_of;
use crate::signals::read::SignalSource;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, Default)]
pub struct SignatureIndex {
    /// Surest first, then those with most samples.
    known: Vec<Known>,
}

#[derive(Clone, Debug)]
struct Known {
    signature: Signature,
    matcher: Matcher,
}

/// A signature that a job which has not begun matches, and what speaks for it.
#[derive(Clone, Debug)]
pub struct Prediction {
    pub signature: Signature,
    pub evidence: Option<Evidence>,
}

impl Store {
    pub async fn signature_index(&self, tenant: TenantId) -> Result<Arc<SignatureIndex>, StoreError> {
        let store = self.clone();
        let (index, _) =
            self.kept_signatures().get(tenant, || async move { store.read(ReadIndex { tenant }).await }).await?;
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

pub(crate) async fn read_index(tx: &mut Tx<'_>, tenant: TenantId) -> Result<SignatureIndex, StoreError> {
    let params = [Param::Int(tenant.0), Param::Time(tx.now()), Param::Int(SIGNATURES as i64)];
    let mut known = Vec::new();
    for row in tx.query(&ACTIVE, &params).await? {
        let signature = read(&row)?;
        // One that was written by a newer program may be more than this one reads.
        if let Ok(matcher) = signature.pattern.clone().matcher() {
            known.push(Known { signature, matcher });
        }
    }
    Ok(SignatureIndex { known })
}

impl SignatureIndex {
    /// The signature that tells most of a failure: the surest, then the one with most samples.
    pub fn best(&self, case: Case<'_>, now: Time) -> Option<&Signature> {
        let found = self.known.iter().find(|known| known.signature.is_active(now) && known.matcher.matches(case));
        found.map(|known| &known.signature)
    }

    /// What may go wrong with a job that has not begun.
    ///
    /// A person's signature counts for the kind or subject that it names. A learnt one needs evidence: that at least two of
    /// the last jobs with the same key failed so or, for a job without a past, that it was learnt from this very subject.
    pub fn foretell(&self, source: &SignalSource, now: Time) -> Option<Prediction> {
        let job = &source.job;
        let begun = job.attempt > 0 || !matches!(job.state, JobState::Scheduled | JobState::Queued);
        if begun || self.known.is_empty() {
            return None;
        }
        let kind = job.lane.kind.as_str();
        let subject = subject_of(job);
        self.known
            .iter()
            .filter(|known| known.signature.is_active(now))
            .filter(|known| known.matcher.could_befall(Some(kind), subject.as_deref()))
            .find_map(|known| {
                let evidence = evidence(known, source, kind, subject.as_deref());
                let pattern = known.matcher.pattern();
                let names_it = pattern.kind.is_some() || pattern.subject_pattern.is_some();
                let believed = match known.signature.status {
                    Status::Manual | Status::Confirmed => names_it,
                    Status::Proposed if source.previous.is_empty() => pattern.subject_pattern.is_some(),
                    Status::Proposed => evidence.as_ref().is_some_and(|evidence| evidence.failed >= 2),
                };
                believed.then(|| Prediction { signature: known.signature.clone(), evidence })
            })
    }
}

/// How many of the last jobs with the same key failed this way; nothing when none did.
fn evidence(known: &Known, source: &SignalSource, kind: &str, subject: Option<&str>) -> Option<Evidence> {
    let failed = source.previous.iter().filter(|previous| {
        let case = Case {
            phase: previous.phase.as_deref(),
            error_code: previous.error_code.as_deref(),
            kind: Some(kind),
            subject,
        };
        previous.state == JobState::Failed && known.matcher.matches(case)
    });
    let failed = failed.count() as u64;
    let by = source.previous_by.filter(|_| failed > 0)?;
    Some(Evidence { failed, of: source.previous.len() as u64, by })
}

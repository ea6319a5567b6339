//! Creates, changes and deletes signatures. The caller has compiled the pattern, so an invalid one cannot get here.

use domain::signals::signature::{Matcher, portable};
use domain::{TenantId, Time};
use serde_json::json;
use uuid::Uuid;

use super::get::get;
use super::{Signature, SignatureOutcome, SignatureStatus, pattern_hash};
use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

/// A signature that a user creates.
#[derive(Clone, Debug)]
pub struct NewSignature {
    pub matcher: Matcher,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
    pub expires_at: Option<Time>,
    pub by: String,
}

/// A change of a signature. `None` leaves a value unchanged.
#[derive(Clone, Debug, Default)]
pub struct SignatureChange {
    pub matcher: Option<Matcher>,
    pub outcome: Option<SignatureOutcome>,
    pub confidence: Option<f64>,
    pub enabled: Option<bool>,
    pub muted: Option<bool>,
    pub confirmed: Option<bool>,
    /// Whether the cause is fixed.
    pub fixed: Option<bool>,
    /// `Some(None)` removes the expiry.
    pub expires_at: Option<Option<Time>>,
    /// The principal that makes the change.
    pub by: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SignatureChanged {
    Done(Box<Signature>),
    /// Another signature, with this id, has the same pattern.
    Exists(Uuid),
    NotFound,
}

/// Minimum confidence of a signature that a user has confirmed.
const CONFIRMED_CONFIDENCE: f64 = 0.8;

impl Store {
    /// Creates a signature, unless another one has the same pattern.
    pub async fn create_signature(&self, tenant: TenantId, new: NewSignature) -> Result<SignatureChanged, StoreError> {
        let changed = self.write(CreateSignature { tenant, new }).await?;
        self.signature_cache().invalidate(&tenant);
        Ok(changed)
    }

    /// Changes a signature and increments its version.
    pub async fn change_signature(
        &self,
        tenant: TenantId,
        id: Uuid,
        change: SignatureChange,
    ) -> Result<SignatureChanged, StoreError> {
        let changed = self.write(ChangeSignature { tenant, id, change }).await?;
        self.signature_cache().invalidate(&tenant);
        Ok(changed)
    }

    /// Deletes a signature and unlinks its failure groups. Returns true if it existed.
    pub async fn delete_signature(&self, tenant: TenantId, id: Uuid, by: &str) -> Result<bool, StoreError> {
        let deleted = self.write(DeleteSignature { tenant, id, by: by.to_owned() }).await?;
        self.signature_cache().invalidate(&tenant);
        Ok(deleted)
    }
}

struct CreateSignature {
    tenant: TenantId,
    new: NewSignature,
}

const OTHER: Sql = Sql::both(&["select id from signatures where tenant = $1 and hash = $2"]);
const INSERT: Sql = Sql::both(&["insert into signatures
         (id, tenant, hash, phase, error_code, kind, subject_pattern, subject_regex, likely_cause, mttr_p50_s, mttr_p95_s,
          suggested_action, remediation_url, confidence, version, samples, enabled, muted, status, created_by,
          created_at, updated_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 1, 0, $15, $16, 'manual', $17, $18, $18, $19)
     on conflict (tenant, hash) do nothing"]);

impl Operation for CreateSignature {
    type Output = SignatureChanged;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignatureChanged, StoreError> {
        let NewSignature { matcher, outcome, confidence, expires_at, by } = &self.new;
        let pattern = matcher.pattern();
        let id = new_uuid(tx.now());
        let hash = pattern_hash(pattern);
        let regex = pattern.subject_pattern.as_deref().and_then(|text| portable(text).ok());
        let (tenant, hash) = (Param::Int(self.tenant.0), Param::Text(&hash));
        let params = [
            Param::Uuid(id),
            tenant,
            hash,
            Param::text(pattern.phase.as_deref()),
            Param::text(pattern.error_code.as_deref()),
            Param::text(pattern.kind.as_deref()),
            Param::text(pattern.subject_pattern.as_deref()),
            Param::text(regex.as_deref()),
            Param::text(outcome.likely_cause.as_deref()),
            outcome.mttr_p50_s.map_or(Param::Null, Param::Real),
            outcome.mttr_p95_s.map_or(Param::Null, Param::Real),
            Param::text(outcome.suggested_action.as_deref()),
            Param::text(outcome.remediation_url.as_deref()),
            Param::Real(*confidence),
            Param::Bool(true),
            Param::Bool(false),
            Param::Text(by),
            Param::Time(tx.now()),
            Param::time(*expires_at),
        ];
        if tx.execute(&INSERT, &params).await? == 0 {
            let row = tx.query_opt(&OTHER, &[tenant, hash]).await?;
            let row = row.ok_or_else(|| StoreError::unexpected("the signature with the same pattern is missing"))?;
            return Ok(SignatureChanged::Exists(row.uuid("id")?));
        }
        let created =
            get(tx, self.tenant, id).await?.ok_or_else(|| StoreError::unexpected("the new signature is missing"))?;
        record(tx, self.tenant, by, "signature_created", id).await?;
        Ok(SignatureChanged::Done(Box::new(created)))
    }
}

struct ChangeSignature {
    tenant: TenantId,
    id: Uuid,
    change: SignatureChange,
}

const UPDATE: Sql = Sql::both(&["update signatures set hash = $2, phase = $3, error_code = $4, kind = $5,
         subject_pattern = $6, subject_regex = $7, likely_cause = $8, mttr_p50_s = $9, mttr_p95_s = $10,
         suggested_action = $11, remediation_url = $12, confidence = $13, enabled = $14, muted = $15, status = $16,
         fixed_at = $17, recurred_at = $18, expires_at = $19, updated_at = $20, version = version + 1
     where id = $1"]);

impl Operation for ChangeSignature {
    type Output = SignatureChanged;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignatureChanged, StoreError> {
        let now = tx.now();
        let Some(before) = get(tx, self.tenant, self.id).await? else { return Ok(SignatureChanged::NotFound) };
        let after = self.apply(before, now);
        let hash = pattern_hash(&after.pattern);
        let key = [Param::Int(self.tenant.0), Param::Text(&hash)];
        if let Some(row) = tx.query_opt(&OTHER, &key).await?
            && row.uuid("id")? != self.id
        {
            return Ok(SignatureChanged::Exists(row.uuid("id")?));
        }
        let regex = after.pattern.subject_pattern.as_deref().and_then(|text| portable(text).ok());
        let params = [
            Param::Uuid(self.id),
            key[1],
            Param::text(after.pattern.phase.as_deref()),
            Param::text(after.pattern.error_code.as_deref()),
            Param::text(after.pattern.kind.as_deref()),
            Param::text(after.pattern.subject_pattern.as_deref()),
            Param::text(regex.as_deref()),
            Param::text(after.outcome.likely_cause.as_deref()),
            after.outcome.mttr_p50_s.map_or(Param::Null, Param::Real),
            after.outcome.mttr_p95_s.map_or(Param::Null, Param::Real),
            Param::text(after.outcome.suggested_action.as_deref()),
            Param::text(after.outcome.remediation_url.as_deref()),
            Param::Real(after.confidence),
            Param::Bool(after.enabled),
            Param::Bool(after.muted),
            Param::Text(after.status.as_str()),
            Param::time(after.fixed_at),
            Param::time(after.recurred_at),
            Param::time(after.expires_at),
            Param::Time(now),
        ];
        tx.execute(&UPDATE, &params).await?;
        record(tx, self.tenant, &self.change.by, "signature_changed", self.id).await?;
        let changed = get(tx, self.tenant, self.id).await?;
        Ok(changed.map_or(SignatureChanged::NotFound, |signature| SignatureChanged::Done(Box::new(signature))))
    }
}

impl ChangeSignature {
    fn apply(&self, mut signature: Signature, now: Time) -> Signature {
        let SignatureChange { matcher, outcome, confidence, enabled, muted, confirmed, fixed, expires_at, by: _ } =
            &self.change;
        if let Some(matcher) = matcher {
            signature.pattern = matcher.pattern().clone();
        }
        if let Some(outcome) = outcome {
            signature.outcome = outcome.clone();
        }
        match confirmed {
            Some(true) if signature.status == SignatureStatus::Proposed => {
                signature.status = SignatureStatus::Confirmed;
                signature.confidence = signature.confidence.max(CONFIRMED_CONFIDENCE);
            }
            Some(false) if signature.status == SignatureStatus::Confirmed => {
                signature.status = SignatureStatus::Proposed
            }
            _ => {}
        }
        match fixed {
            Some(true) => (signature.fixed_at, signature.recurred_at) = (Some(now), None),
            Some(false) => (signature.fixed_at, signature.recurred_at) = (None, None),
            None => {}
        }
        signature.confidence = confidence.unwrap_or(signature.confidence);
        signature.enabled = enabled.unwrap_or(signature.enabled);
        signature.muted = muted.unwrap_or(signature.muted);
        signature.expires_at = expires_at.unwrap_or(signature.expires_at);
        signature
    }
}

struct DeleteSignature {
    tenant: TenantId,
    id: Uuid,
    by: String,
}

/// Records who changed a signature.
async fn record(tx: &mut Tx<'_>, tenant: TenantId, by: &str, event: &str, id: Uuid) -> Result<(), StoreError> {
    let detail = json!({"signature": id}).to_string();
    timeline::write(tx, &[Entry::by(tenant, by, event, detail)]).await
}

const UNLINK: Sql = Sql::both(&["update failure_groups set signature = null where tenant = $1 and signature = $2"]);
const DELETE: Sql = Sql::both(&["delete from signatures where tenant = $1 and id = $2"]);

impl Operation for DeleteSignature {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Uuid(self.id)];
        tx.execute(&UNLINK, &params).await?;
        let is_deleted = tx.execute(&DELETE, &params).await? > 0;
        if is_deleted {
            record(tx, self.tenant, &self.by, "signature_deleted", self.id).await?;
        }
        Ok(is_deleted)
    }
}

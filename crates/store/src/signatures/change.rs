//! Writes, changes and deletes signatures (S6, S7). A bad pattern never comes this far: the caller has compiled it.

use domain::signature::{Matcher, portable};
use domain::{TenantId, Time};
use uuid::Uuid;

use super::get::get;
use super::{Signature, SignatureOutcome, Status, pattern_hash};
use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// What a person writes.
#[derive(Clone, Debug)]
pub struct NewSignature {
    pub matcher: Matcher,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
    pub expires_at: Option<Time>,
    pub by: String,
}

/// What changes; what is left out stays.
#[derive(Clone, Debug, Default)]
pub struct SignatureChange {
    pub matcher: Option<Matcher>,
    pub outcome: Option<SignatureOutcome>,
    pub confidence: Option<f64>,
    pub enabled: Option<bool>,
    pub muted: Option<bool>,
    pub confirmed: Option<bool>,
    /// The cause is mended, or it is not after all.
    pub fixed: Option<bool>,
    pub expires_at: Option<Option<Time>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    Done(Box<Signature>),
    /// Another signature has this pattern.
    Exists(Uuid),
    NotFound,
}

/// A person's word is worth at least this.
const CONFIRMED: f64 = 0.8;

impl Store {
    pub async fn make_signature(&self, tenant: TenantId, new: NewSignature) -> Result<Changed, StoreError> {
        let changed = self.write(Make { tenant, new }).await?;
        self.kept_signatures().forget(&tenant);
        Ok(changed)
    }

    pub async fn change_signature(
        &self,
        tenant: TenantId,
        id: Uuid,
        change: SignatureChange,
    ) -> Result<Changed, StoreError> {
        let changed = self.write(Change { tenant, id, change }).await?;
        self.kept_signatures().forget(&tenant);
        Ok(changed)
    }

    /// Whether there was one.
    pub async fn delete_signature(&self, tenant: TenantId, id: Uuid) -> Result<bool, StoreError> {
        let deleted = self.write(Delete { tenant, id }).await?;
        self.kept_signatures().forget(&tenant);
        Ok(deleted)
    }
}

struct Make {
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

impl Operation for Make {
    type Output = Changed;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Changed, StoreError> {
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
            let row = row.ok_or_else(|| StoreError::unexpected("a signature went away"))?;
            return Ok(Changed::Exists(row.uuid(0)?));
        }
        let made = get(tx, self.tenant, id).await?.ok_or_else(|| StoreError::unexpected("a signature is missing"))?;
        Ok(Changed::Done(Box::new(made)))
    }
}

struct Change {
    tenant: TenantId,
    id: Uuid,
    change: SignatureChange,
}

const UPDATE: Sql = Sql::both(&["update signatures set hash = $2, phase = $3, error_code = $4, kind = $5,
         subject_pattern = $6, subject_regex = $7, likely_cause = $8, mttr_p50_s = $9, mttr_p95_s = $10,
         suggested_action = $11, remediation_url = $12, confidence = $13, enabled = $14, muted = $15, status = $16,
         fixed_at = $17, recurred_at = $18, expires_at = $19, updated_at = $20, version = version + 1
     where id = $1"]);

impl Operation for Change {
    type Output = Changed;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Changed, StoreError> {
        let now = tx.now();
        let Some(before) = get(tx, self.tenant, self.id).await? else { return Ok(Changed::NotFound) };
        let after = self.apply(before, now);
        let hash = pattern_hash(&after.pattern);
        let key = [Param::Int(self.tenant.0), Param::Text(&hash)];
        if let Some(row) = tx.query_opt(&OTHER, &key).await?
            && row.uuid(0)? != self.id
        {
            return Ok(Changed::Exists(row.uuid(0)?));
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
        let changed = get(tx, self.tenant, self.id).await?;
        Ok(changed.map_or(Changed::NotFound, |signature| Changed::Done(Box::new(signature))))
    }
}

impl Change {
    fn apply(&self, mut signature: Signature, now: Time) -> Signature {
        let SignatureChange { matcher, outcome, confidence, enabled, muted, confirmed, fixed, expires_at } =
            &self.change;
        if let Some(matcher) = matcher {
            signature.pattern = matcher.pattern().clone();
        }
        if let Some(outcome) = outcome {
            signature.outcome = outcome.clone();
        }
        match confirmed {
            Some(true) if signature.status == Status::Proposed => {
                signature.status = Status::Confirmed;
                signature.confidence = signature.confidence.max(CONFIRMED);
            }
            Some(false) if signature.status == Status::Confirmed => signature.status = Status::Proposed,
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

struct Delete {
    tenant: TenantId,
    id: Uuid,
}

const UNLINK: Sql = Sql::both(&["update failure_groups set signature = null where tenant = $1 and signature = $2"]);
const DELETE: Sql = Sql::both(&["delete from signatures where tenant = $1 and id = $2"]);

impl Operation for Delete {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Uuid(self.id)];
        tx.execute(&UNLINK, &params).await?;
        Ok(tx.execute(&DELETE, &params).await? > 0)
    }
}

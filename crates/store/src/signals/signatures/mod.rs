//! Failure signatures: a pattern that recognizes a known failure, with its likely cause and remedy.

pub mod change;
pub mod get;
pub mod index;
pub mod merge;

use domain::Time;
use domain::signals::signature::SignaturePattern;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::db::tx::Row;
use crate::error::StoreError;

#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    pub id: Uuid,
    pub pattern: SignaturePattern,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
    pub version: i64,
    pub samples: u64,
    pub last_match_at: Option<Time>,
    pub enabled: bool,
    pub muted: bool,
    pub status: SignatureStatus,
    /// When a user marked the cause as fixed.
    pub fixed_at: Option<Time>,
    /// When the failure first happened again after that.
    pub recurred_at: Option<Time>,
    pub created_by: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub expires_at: Option<Time>,
}

/// The cause and the remedy of a failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignatureOutcome {
    pub likely_cause: Option<String>,
    pub mttr_p50_s: Option<f64>,
    pub mttr_p95_s: Option<f64>,
    pub suggested_action: Option<String>,
    pub remediation_url: Option<String>,
}

/// The origin of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignatureStatus {
    /// Learned from a group of failures.
    Proposed,
    /// Learned, and confirmed by a user.
    Confirmed,
    /// Written by a user.
    Manual,
}

impl SignatureStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proposed => "proposed",
            Self::Confirmed => "confirmed",
            Self::Manual => "manual",
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "confirmed" => Self::Confirmed,
            "manual" => Self::Manual,
            _ => Self::Proposed,
        }
    }
}

impl Signature {
    /// True if the signature is used for matches and predictions.
    pub fn is_active(&self, now: Time) -> bool {
        self.enabled && !self.muted && self.expires_at.is_none_or(|at| at > now)
    }
}

/// Returns the SHA-256 of the canonical pattern in hexadecimal. It is unique per tenant.
pub(crate) fn pattern_hash(pattern: &SignaturePattern) -> String {
    Sha256::digest(pattern.canonical()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the columns that every query of this module selects.
pub(crate) fn read(row: &Row) -> Result<Signature, StoreError> {
    Ok(Signature {
        id: row.uuid("id")?,
        pattern: SignaturePattern {
            phase: row.opt_text("phase")?,
            error_code: row.opt_text("error_code")?,
            kind: row.opt_text("kind")?,
            subject_pattern: row.opt_text("subject_pattern")?,
        },
        outcome: SignatureOutcome {
            likely_cause: row.opt_text("likely_cause")?,
            mttr_p50_s: row.opt_real("mttr_p50_s")?,
            mttr_p95_s: row.opt_real("mttr_p95_s")?,
            suggested_action: row.opt_text("suggested_action")?,
            remediation_url: row.opt_text("remediation_url")?,
        },
        confidence: row.opt_real("confidence")?.unwrap_or(0.0),
        version: row.int("version")?,
        samples: row.int("samples")?.max(0) as u64,
        last_match_at: row.opt_time("last_match_at")?,
        enabled: row.bool("enabled")?,
        muted: row.bool("muted")?,
        status: SignatureStatus::parse(&row.text("status")?),
        fixed_at: row.opt_time("fixed_at")?,
        recurred_at: row.opt_time("recurred_at")?,
        created_by: row.text("created_by")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        expires_at: row.opt_time("expires_at")?,
    })
}

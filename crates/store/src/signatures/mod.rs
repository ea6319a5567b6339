//! Failure signatures: what a known failure looks like, and what is known of it (S6).

pub mod change;
pub mod get;
pub mod index;
pub mod merge;

use domain::Time;
use domain::signature::Pattern;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::error::StoreError;
use crate::tx::Row;

#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    pub id: Uuid,
    pub pattern: Pattern,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
    pub version: i64,
    pub samples: u64,
    pub last_match_at: Option<Time>,
    pub enabled: bool,
    pub muted: bool,
    pub status: Status,
    /// When somebody said that the cause is mended, and when it came back all the same.
    pub fixed_at: Option<Time>,
    pub recurred_at: Option<Time>,
    pub created_by: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub expires_at: Option<Time>,
}

/// What is known of the failure.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SignatureOutcome {
    pub likely_cause: Option<String>,
    pub mttr_p50_s: Option<f64>,
    pub mttr_p95_s: Option<f64>,
    pub suggested_action: Option<String>,
    pub remediation_url: Option<String>,
}

/// Who stands behind a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Learnt from a group of failures.
    Proposed,
    /// Learnt, and a person agreed.
    Confirmed,
    /// Written by a person.
    Manual,
}

impl Status {
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
    /// Counts for matches and predictions.
    pub fn is_active(&self, now: Time) -> bool {
        self.enabled && !self.muted && self.expires_at.is_none_or(|at| at > now)
    }
}

/// SHA-256 of the canonical pattern, in hexadecimal: what makes a signature unique in its tenant.
pub(crate) fn pattern_hash(pattern: &Pattern) -> String {
    Sha256::digest(pattern.canonical()).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn read(row: &Row) -> Result<Signature, StoreError> {
    Ok(Signature {
        id: row.uuid(0)?,
        pattern: Pattern {
            phase: row.opt_text(1)?,
            error_code: row.opt_text(2)?,
            kind: row.opt_text(3)?,
            subject_pattern: row.opt_text(4)?,
        },
        outcome: SignatureOutcome {
            likely_cause: row.opt_text(5)?,
            mttr_p50_s: row.opt_real(6)?,
            mttr_p95_s: row.opt_real(7)?,
            suggested_action: row.opt_text(8)?,
            remediation_url: row.opt_text(9)?,
        },
        confidence: row.opt_real(10)?.unwrap_or(0.0),
        version: row.int(11)?,
        samples: row.int(12)?.max(0) as u64,
        last_match_at: row.opt_time(13)?,
        enabled: row.bool(14)?,
        muted: row.bool(15)?,
        status: Status::parse(&row.text(16)?),
        fixed_at: row.opt_time(17)?,
        recurred_at: row.opt_time(18)?,
        created_by: row.text(19)?,
        created_at: row.time(20)?,
        updated_at: row.time(21)?,
        expires_at: row.opt_time(22)?,
    })
}

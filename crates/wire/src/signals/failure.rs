//! Failure groups and signatures.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// The properties of a failure that a signature matches. A part that is left out matches anything.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignaturePattern {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// A regular expression that matches the subject or, for a job without one, the payload's `image`.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "image_pattern")]
    pub subject_pattern: Option<String>,
}

/// Knowledge about the failure.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignatureOutcome {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mttr_p50_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mttr_p95_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested_action: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_url: Option<String>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignatureRequest {
    pub pattern: SignaturePattern,
    #[serde(default)]
    pub outcome: SignatureOutcome,
    /// From 0 to 1. Default: 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// Changes to a signature. A field that is left out keeps its value.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignatureUpdate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<SignaturePattern>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<SignatureOutcome>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// A muted signature is counted, but it neither matches nor predicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub muted: Option<bool>,
    /// Confirms a learned signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confirmed: Option<bool>,
    /// The cause is fixed: a later failure counts as a recurrence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SignatureView {
    pub id: Uuid,
    pub pattern: SignaturePattern,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
    pub signature_version: i64,
    pub sample_count: u64,
    pub last_match_at: Option<Timestamp>,
    pub enabled: bool,
    pub muted: bool,
    /// `proposed` (learned), `confirmed` (learned and confirmed by a person) or `manual`.
    pub status: String,
    pub fixed_at: Option<Timestamp>,
    /// When the failure occurred again after the cause was marked as fixed.
    pub recurred_at: Option<Timestamp>,
    pub created_by: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MatchRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "image")]
    pub subject: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MatchView {
    pub signature_id: Uuid,
    pub outcome: SignatureOutcome,
    pub confidence: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MergeRequest {
    /// The signature to retain.
    pub into: Uuid,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FailureView {
    pub group_id: Uuid,
    pub error_code: String,
    /// The message with variable parts replaced.
    pub message_pattern: String,
    /// The newest message, unchanged.
    pub example: String,
    pub phase: Option<String>,
    pub kind: String,
    pub count: i64,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    pub last_job_id: Uuid,
    /// The most affected subjects, at most ten.
    pub subjects: Vec<String>,
    pub subject_count: i64,
    pub signature_id: Option<Uuid>,
    /// `new`, `rising`, `steady`, `falling` or `quiet`: the last six hours compared with the six hours before.
    pub trend: String,
    /// Failures in each of the last 24 hours, oldest first.
    pub hourly: Vec<i64>,
    /// Median time from a failure to the next success of the same key; `null` until one was observed.
    pub repair_p50_seconds: Option<f64>,
    pub recurred_at: Option<Timestamp>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayFailures {
    /// Maximum number of jobs, newest first. Default: 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ReplayedView {
    /// The new jobs.
    pub jobs: Vec<Uuid>,
    /// Jobs of the group that were already retried.
    pub retried_before: u64,
    /// Jobs of the group that were deleted by retention.
    pub gone: u64,
}

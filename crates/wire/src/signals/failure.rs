//! Failure groups and signatures.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// The properties of a failure that a signature matches. A part that is left out matches anything.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignaturePattern {
    /// The phase of the failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The kind of the job.
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
    /// The likely cause, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub likely_cause: Option<String>,
    /// The median time to repair in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mttr_p50_seconds: Option<f64>,
    /// The 95th percentile of the time to repair in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mttr_p95_seconds: Option<f64>,
    /// What to do, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggested_action: Option<String>,
    /// A link to instructions: `https://…`, `http://…`, or a path of this server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediation_url: Option<String>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignatureRequest {
    /// Which failures the signature matches.
    pub pattern: SignaturePattern,
    /// What is known about these failures.
    #[serde(default)]
    pub outcome: SignatureOutcome,
    /// From 0 to 1. Default: 0.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// When the signature stops matching. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

/// Changes to a signature. A field that is left out keeps its value.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignatureUpdate {
    /// The new pattern.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<SignaturePattern>,
    /// The new knowledge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<SignatureOutcome>,
    /// From 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// Whether the signature matches and predicts.
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
    /// When the signature stops matching.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SignatureView {
    /// The signature's id.
    pub id: Uuid,
    /// Which failures the signature matches.
    pub pattern: SignaturePattern,
    /// What is known about these failures.
    pub outcome: SignatureOutcome,
    /// From 0 to 1.
    pub confidence: f64,
    /// Incremented by every change.
    pub signature_version: i64,
    /// Failures that matched.
    pub sample_count: u64,
    /// When a failure last matched.
    pub last_match_at: Option<Timestamp>,
    /// Whether the signature matches and predicts.
    pub enabled: bool,
    /// Whether it is counted without matching or predicting.
    pub muted: bool,
    /// `proposed` (learned), `confirmed` (learned and confirmed by a person) or `manual`.
    pub status: String,
    /// When the cause was marked as fixed.
    pub fixed_at: Option<Timestamp>,
    /// When the failure occurred again after the cause was marked as fixed.
    pub recurred_at: Option<Timestamp>,
    /// The principal that created it, or the component that learned it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it stops matching; `null` means never.
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MatchRequest {
    /// The phase of the failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The code of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The kind of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The subject of the job.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "image")]
    pub subject: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MatchView {
    /// The matching signature.
    pub signature_id: Uuid,
    /// What is known about the failure.
    pub outcome: SignatureOutcome,
    /// From 0 to 1.
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
    /// The group's id.
    pub group_id: Uuid,
    /// A stable code of the error, for example `timeout`.
    pub error_code: String,
    /// The message with variable parts replaced.
    pub message_pattern: String,
    /// The newest message, unchanged.
    pub example: String,
    /// The phase of the failed attempts.
    pub phase: Option<String>,
    /// The kind of the failed jobs.
    pub kind: String,
    /// Number of failures.
    pub count: i64,
    /// When the first failure happened.
    pub first_seen: Timestamp,
    /// When the newest failure happened.
    pub last_seen: Timestamp,
    /// The job of the newest failure.
    pub last_job_id: Uuid,
    /// The most affected subjects, at most ten.
    pub subjects: Vec<String>,
    /// Number of affected subjects.
    pub subject_count: i64,
    /// The signature that explains the group.
    pub signature_id: Option<Uuid>,
    /// `new`, `rising`, `steady`, `falling` or `quiet`: the last six hours compared with the six hours before.
    pub trend: String,
    /// Failures in each of the last 24 hours, oldest first.
    pub hourly: Vec<i64>,
    /// Median time from a failure to the next success of the same key; `null` until one was observed.
    pub repair_p50_seconds: Option<f64>,
    /// When the failure occurred again after the cause was marked as fixed.
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

//! Jobs: the enqueue request and the views of a job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    pub queue: String,
    pub kind: String,
    /// Any JSON; passed to the worker unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// What a worker must have loaded to run the job, for example the name of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Jobs with a higher priority run first, from -32768 to 32767. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The group of jobs that this job belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// While an unfinished job with this key exists in the queue, an enqueue with the same key returns that job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Derives the unique key from these fields instead: any of `kind`, `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_by: Option<Vec<String>>,
    /// The unique key is reserved for this many seconds, instead of until the job ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_for_s: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Receives every state change of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
}

/// Backoff between attempts: `initial_s` seconds (default: 1), multiplied by `exponent` (default: 1) after each
/// failure, at most `maximum_s` (default: 24 hours), plus a random share of up to `jitter` (0 to 1, default: 0).
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrySettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exponent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSettings {
    pub url: String,
    /// `whsec_` followed by base64. Requests are signed with it according to Standard Webhooks. Never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Additional secrets; each adds a signature. To rotate a secret, send the new and the old one until receivers have
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Vec<String>>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    pub jobs: Vec<JobRequest>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchAccepted {
    pub ids: Vec<Uuid>,
}

/// The response to an enqueue. A request with the same idempotency key gets the same response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAccepted {
    pub id: Uuid,
    pub state: String,
    pub queue: String,
    pub kind: String,
    pub run_at: Timestamp,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    pub code: String,
    #[serde(default)]
    pub message: String,
    #[serde(default = "default_retryable")]
    pub retryable: bool,
}

fn default_retryable() -> bool {
    true
}

/// A job as returned by the API.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    pub id: Uuid,
    pub queue: String,
    pub kind: String,
    /// `scheduled`, `queued`, `loading`, `working`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    pub affinity: Option<String>,
    pub priority: i64,
    pub run_at: Timestamp,
    pub subject: Option<String>,
    pub process: Option<String>,
    pub run: Option<String>,
    pub unique_key: Option<String>,
    pub concurrency_key: Option<String>,
    pub attempt: i64,
    pub max_attempts: i64,
    /// The job's own retry policy; `null` if the queue's policy applies.
    pub retry: Option<RetrySettings>,
    pub timeout_s: Option<i64>,
    pub tags: Vec<String>,
    pub phase: Option<String>,
    /// From 0 to 1, as last reported by the worker.
    pub progress: Option<f64>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    pub error: Option<JobError>,
    pub worker: Option<Uuid>,
    pub epoch: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// The job that this job is a retry of.
    pub parent: Option<Uuid>,
    /// The job that is a retry of this job.
    pub retried_as: Option<Uuid>,
    /// The principal that enqueued the job.
    pub principal: String,
    /// `api`, or the trigger that enqueued the job.
    pub triggered_by: Option<String>,
    pub depth: i64,
    /// The URL that receives every state change. The secret is never shown.
    pub webhook_url: Option<String>,
    /// Fields that the job has and the caller may not read; they are `null` or empty in this response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelView {
    pub id: Uuid,
    pub state: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelByKey {
    pub queue: String,
    pub unique_key: String,
}

/// A manual retry creates a new job that is linked to the old one. `payload` replaces the payload.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HistoryItem {
    /// `enqueued`, `started`, `finished`, `failed`, `canceled`, `expired`, `released`, `snoozed`, …
    pub event: String,
    pub at: Timestamp,
    pub attempt: i64,
    pub epoch: i64,
    pub worker: Option<Uuid>,
    pub actor: Option<String>,
    pub cause: Option<String>,
}

/// The reason why a job is not running.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WhyView {
    /// `not_due`, `behind`, `queue_paused`, `limit_reached`, `subject_busy`, `backoff`, `no_worker`, `loading`,
    /// `over_quota`, `running` or `ended`.
    pub reason: String,
    pub detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
}

//! Jobs: what a producer sends and what anyone may read back (Q1).

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
    /// Any JSON; handed to the worker as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// What a worker must have loaded to run it, say a model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Higher first; 0 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// The group of jobs it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// While a job with this key lives in the queue, the same key gives that job instead of a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// The key is made from these instead: any of `kind`, `payload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_by: Option<Vec<String>>,
    /// The key holds for this long instead of until the job ends.
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
    /// Where to send each change of state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
}

/// How long to wait between attempts: `initial_s`, then times `exponent`, at most `maximum_s`.
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
    /// `whsec_` and base64; what is sent is signed with it as Standard Webhooks. It is never shown again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Further secrets; each signs. Give the new and the old one while receivers change over.
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

/// The answer to an enqueue: the job as it was made, the same again for the same idempotency key.
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
    #[serde(default = "retryable_unless_said")]
    pub retryable: bool,
}

fn retryable_unless_said() -> bool {
    true
}

/// A job as anyone may read it.
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
    /// The job's own retry policy; `null` when it takes its queue's.
    pub retry: Option<RetrySettings>,
    pub timeout_s: Option<i64>,
    pub tags: Vec<String>,
    pub phase: Option<String>,
    /// From 0 to 1, as the worker last said.
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
    /// The job this one retries.
    pub parent: Option<Uuid>,
    /// The job that retried this one.
    pub retried_as: Option<Uuid>,
    /// Who made it.
    pub principal: String,
    /// What made it: `api`, or a trigger.
    pub triggered_by: Option<String>,
    pub depth: i64,
    /// Where to send each change of state; its secret is never shown.
    pub webhook_url: Option<String>,
    /// What the job has and the caller may not see; it is `null`, or empty, above.
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

/// A retry by a person makes a new job, linked to the old one; its payload may be changed on the way.
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

/// The one reason why a job is not running.
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

//! Jobs: the enqueue request and the views of a job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::artifact::ArtifactView;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The queue's name. The first job creates the queue.
    pub queue: String,
    /// The kind of work, for example `welcome`.
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
    /// The earliest time at which the job may start. Default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The subject that the job works on. At most one job per subject and process runs at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The process that the job counts for. Requires `subject`.
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
    /// Requests with the same unique key become one job that runs with the last payload. Requires a unique key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub debounce: Option<DebounceSettings>,
    /// Requests with the same unique key become one job with the array of their payloads. Requires a unique key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchSettings>,
    /// At most `per_key` jobs (a setting of the queue) with the same key run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// Maximum number of attempts, from 1 to 1000. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// The backoff between attempts. Default: the queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// Seconds after which a running attempt is stopped and counts as failed. Default: the queue's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Seconds from its creation after which the job fails with the code `deadline`, in any state. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<i64>,
    /// The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context. Workers, children and
    /// webhooks get it. Default: the header of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Labels for listings, at most 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Receives every state change of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
}

/// The job runs `delay_s` after the last request with its unique key, at most `max_s` after the first.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DebounceSettings {
    /// Seconds without another request, from 1 to 604,800.
    pub delay_s: i64,
    /// The longest delay in seconds after the first request. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_s: Option<i64>,
}

/// The job runs with `max` payloads, or `within_s` after the first request with its unique key.
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchSettings {
    /// The largest number of payloads, from 1 to 10,000. A batch also ends before its payload exceeds 1 MiB.
    pub max: i64,
    /// Seconds after the first request, from 1 to 604,800.
    pub within_s: i64,
}

/// Backoff between attempts: `initial_s` seconds (default: 1), multiplied by `exponent` (default: 1) after each
/// failure, at most `maximum_s` (default: 24 hours), plus a random share of up to `jitter` (0 to 1, default: 0).
#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetrySettings {
    /// Seconds before the second attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_s: Option<u64>,
    /// The longest backoff in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_s: Option<u64>,
    /// The factor by which each backoff grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exponent: Option<f64>,
    /// The random share that is added, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WebhookSettings {
    /// The address of the receiver, `https://…` or `http://…`.
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
    /// The jobs, at most 10,000. All are enqueued or none.
    pub jobs: Vec<JobRequest>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchAccepted {
    /// The ids of the jobs, in the order of the request.
    pub ids: Vec<Uuid>,
}

/// The response to an enqueue. A request with the same idempotency key gets the same response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobAccepted {
    /// The job's id.
    pub id: Uuid,
    /// `queued`, or `scheduled` for a job that is not due.
    pub state: String,
    /// The queue's name.
    pub queue: String,
    /// The kind of work, for example `welcome`.
    pub kind: String,
    /// The earliest time at which the job may start.
    pub run_at: Timestamp,
    /// When the job was enqueued.
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    /// A stable code, for example `smtp_unavailable`. Failures are grouped by it.
    pub code: String,
    /// The error for people.
    #[serde(default)]
    pub message: String,
    /// False: the job fails without further attempts. Default: true.
    #[serde(default = "default_retryable")]
    pub retryable: bool,
}

fn default_retryable() -> bool {
    true
}

/// A job as returned by the API.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// The job's id.
    pub id: Uuid,
    /// The queue's name.
    pub queue: String,
    /// The kind of work, for example `welcome`.
    pub kind: String,
    /// `scheduled`, `queued`, `loading`, `working`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// The payload, unchanged.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// What a worker must have loaded to run the job, or `null`.
    pub affinity: Option<String>,
    /// Jobs with a higher priority run first.
    pub priority: i64,
    /// The earliest time at which the next attempt may start.
    pub run_at: Timestamp,
    /// The subject that the job works on.
    pub subject: Option<String>,
    /// The process that created the job, or `null`.
    pub process: Option<String>,
    /// The run that the job belongs to, or `null`.
    pub run: Option<String>,
    /// The key that keeps other jobs with it out of the queue.
    pub unique_key: Option<String>,
    /// The key whose running jobs are limited.
    pub concurrency_key: Option<String>,
    /// The number of attempts that were started.
    pub attempt: i64,
    /// Maximum number of attempts.
    pub max_attempts: i64,
    /// The job's own retry policy; `null` if the queue's policy applies.
    pub retry: Option<RetrySettings>,
    /// Seconds after which a running attempt is stopped.
    pub timeout_s: Option<i64>,
    /// Seconds from its creation after which the live job fails. Only `GET /jobs/{id}` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<i64>,
    /// The trace that the job belongs to. Only `GET /jobs/{id}` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Labels.
    pub tags: Vec<String>,
    /// The phase of the running attempt.
    pub phase: Option<String>,
    /// From 0 to 1, as last reported by the worker.
    pub progress: Option<f64>,
    /// The result of a succeeded job.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of the last failed attempt.
    pub error: Option<JobError>,
    /// The worker that has claimed the job.
    pub worker: Option<Uuid>,
    /// The fencing token of the newest claim.
    pub epoch: i64,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When the current or last attempt started.
    pub started_at: Option<Timestamp>,
    /// When the job ended.
    pub finished_at: Option<Timestamp>,
    /// The job that this job is a retry of.
    pub parent: Option<Uuid>,
    /// The job that is a retry of this job.
    pub retried_as: Option<Uuid>,
    /// The principal that enqueued the job.
    pub principal: String,
    /// `api`, or the trigger that enqueued the job.
    pub triggered_by: Option<String>,
    /// How many triggers led to the job.
    pub depth: i64,
    /// The URL that receives every state change. The secret is never shown.
    pub webhook_url: Option<String>,
    /// The artifacts by name, without their content. Only `GET /jobs/{id}` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<ArtifactView>>,
    /// Fields that the job has and the caller may not read; they are `null` or empty in this response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelView {
    /// The job's id.
    pub id: Uuid,
    /// The job's state: `canceled`; with `compensate` the state in which the job waits for its undo steps.
    pub state: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelByKey {
    /// The queue's name.
    pub queue: String,
    /// The unique key of the job to cancel.
    pub unique_key: String,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelRequest {
    /// Let the handler of a job with a journal undo its steps: the job runs once more, with the entry `$cancel` in its
    /// journal, and ends as canceled when the handler has settled it. A job without a journal is canceled at once.
    /// Default: false.
    #[serde(default)]
    pub compensate: bool,
}

/// A manual retry creates a new job that is linked to the old one. `payload` replaces the payload.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// The payload of the new job. Default: the old job's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HistoryItem {
    /// `enqueued`, `started`, `finished`, `failed`, `canceled`, `expired`, `released`, `snoozed`, …
    pub event: String,
    /// When it happened.
    pub at: Timestamp,
    /// The attempt that the event belongs to.
    pub attempt: i64,
    /// The fencing token of the claim.
    pub epoch: i64,
    /// The worker of the attempt.
    pub worker: Option<Uuid>,
    /// The principal or the component that caused the event.
    pub actor: Option<String>,
    /// The reason, for example an error code.
    pub cause: Option<String>,
    /// The message of the error. Requires the right to read results or logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The reason why a job is not running.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WhyView {
    /// `not_due`, `behind`, `queue_paused`, `limit_reached`, `subject_busy`, `backoff`, `no_worker`, `loading`,
    /// `waiting`, `running` or `ended`.
    pub reason: String,
    /// The reason for people, with names and figures.
    pub detail: String,
    /// When the reason may end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The job's position in the queue, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The estimated seconds until the job ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<u64>,
}

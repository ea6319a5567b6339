//! Dead letters: work that failed permanently, and its resolution.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::JobError;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterView {
    /// The letter's id.
    pub id: Uuid,
    /// The original event; for a plain job, the job's own id.
    pub event_id: Uuid,
    /// The source of the event; `job` for a plain job.
    pub source: String,
    /// The operation of the event, for example `put`; for a plain job `failed`.
    pub op: String,
    /// `null` for a plain job and for a manual replay.
    pub trigger_id: Option<Uuid>,
    /// The script's id, or `null`.
    pub script_id: Option<Uuid>,
    /// The job that failed, or `null`.
    pub job_id: Option<Uuid>,
    /// The queue of the job.
    pub queue: Option<String>,
    /// The kind of the job.
    pub kind: Option<String>,
    /// The payload, unchanged.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// How many triggers led to the work.
    pub depth: i64,
    /// Oldest first.
    pub attempts: Vec<AttemptView>,
    /// Number of attempts.
    pub attempt_count: i64,
    /// When the first attempt failed.
    pub first_attempt_at: Timestamp,
    /// When the last attempt failed.
    pub last_attempt_at: Timestamp,
    /// The error of the last attempt.
    pub last_error: JobError,
    /// When the letter was written.
    pub created_at: Timestamp,
    /// When the letter was resolved; `null` means open.
    pub resolved_at: Option<Timestamp>,
    /// `replayed`, `ignored`, `handled_by_script` or `handler_failed`.
    pub resolution: Option<String>,
    /// The principal or the handler that resolved it.
    pub resolved_by: Option<String>,
    /// A note by the person who resolved it.
    pub note: Option<String>,
    /// The job or the event that replayed it.
    pub replayed_as: Option<Uuid>,
    /// The dead-letter triggers that ran for the letter, each with its outcome.
    #[serde(default)]
    pub handlers: Vec<HandlerView>,
}

/// A dead-letter trigger that ran for a letter.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HandlerView {
    /// The trigger's id.
    pub trigger_id: Uuid,
    /// `succeeded`, `failed`, or `started` while an operation on a runtime is in progress.
    pub outcome: String,
    /// When it ended, or started.
    pub at: Timestamp,
    /// The error of a failed run.
    pub error: Option<JobError>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// When the attempt failed.
    pub at: Timestamp,
    /// The error of the attempt.
    pub error: JobError,
}

/// Counted up to 10,000; `capped` is true if there are more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountView {
    /// Number of matches, at most 10,000.
    pub count: usize,
    /// Whether there are more.
    pub capped: bool,
}

/// The body of a replay. `payload` replaces the payload.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The payload of the new work. Default: the original payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

/// The new work: a job, an event (for a trigger's run), or a delivery that is sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayView {
    /// The new job.
    pub job_id: Option<Uuid>,
    /// The new event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Uuid>,
    /// The delivery that is sent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// `ignored` or `handled_by_script`. For a replay, use the `replay` route.
    pub resolution: String,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The dead letters to replay: by id, or all unresolved ones that match a filter.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayManyRequest {
    /// The ids of the letters, at most 10,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
    /// All unresolved letters that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<DeadLetterFilter>,
    /// Count the matching dead letters without replaying them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterFilter {
    /// The source of the letter: `job`, or the source of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The trigger of the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<Uuid>,
    /// The job of the letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// The queue of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The kind of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The code of the last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Created at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The number of matching dead letters and the results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayManyView {
    /// Dead letters found, at most 10,000.
    pub matched: usize,
    /// Letters that were replayed.
    pub replayed: usize,
    /// Already resolved, or resolved by someone else in the meantime.
    pub already_resolved: usize,
    /// Ids without a letter.
    pub not_found: usize,
    /// Contain nothing that can be replayed.
    pub not_replayable: usize,
    /// Whether this was a dry run.
    pub dry_run: bool,
}

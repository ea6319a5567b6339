//! Dead letters: what failed for good, and what a person does about it (T6–T9).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::job::JobError;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeadLetterView {
    pub id: Uuid,
    /// The event at the beginning; of a plain job, the job's own id.
    pub event_id: Uuid,
    /// Where the event came from; `job` for a plain job.
    pub source: String,
    pub op: String,
    /// `null` for a plain job and for a replay by hand.
    pub trigger_id: Option<Uuid>,
    pub script_id: Option<Uuid>,
    pub job_id: Option<Uuid>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// Verbatim.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    pub depth: i64,
    /// Oldest first.
    pub attempts: Vec<AttemptView>,
    pub attempt_count: i64,
    pub first_attempt_at: Timestamp,
    pub last_attempt_at: Timestamp,
    pub last_error: JobError,
    pub created_at: Timestamp,
    pub resolved_at: Option<Timestamp>,
    /// `replayed`, `ignored`, `handled_by_script` or `handler_failed`.
    pub resolution: Option<String>,
    pub resolved_by: Option<String>,
    pub note: Option<String>,
    /// The job, or the event, that it was replayed as.
    pub replayed_as: Option<Uuid>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    pub at: Timestamp,
    pub error: JobError,
}

/// Counted up to ten thousand; `capped` when there are more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountView {
    pub count: usize,
    pub capped: bool,
}

/// The payload may be changed before the letter is played again.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

/// The new work: a job, a new event where a trigger's run is played again, or a delivery that is sent once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayView {
    pub job_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// `ignored` or `handled_by_script`; a replay has a route of its own.
    pub resolution: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Which letters to play again: by their ids, or all unresolved ones that match.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayManyRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<Uuid>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<DeadLetterFilter>,
    /// Only tell how many there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetterFilter {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Written at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Written before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// How many letters matched and what became of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplayManyView {
    /// Letters that were found, at most ten thousand.
    pub matched: usize,
    pub replayed: usize,
    /// Dealt with before, or by someone else meanwhile.
    pub already_resolved: usize,
    pub not_found: usize,
    /// Nothing of them can be played again.
    pub not_replayable: usize,
    pub dry_run: bool,
}

//! The journal of a job: recorded operations.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::{JobError, JobRequest};
use crate::queue::worker::OutcomeStatus;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JournalRequest {
    /// The operations to record, by job: at most 1,000 writes with at most 1,000 operations together.
    pub writes: Vec<JournalWrite>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JournalWrite {
    /// The job's id.
    pub job_id: Uuid,
    /// The fencing token that came with the claim.
    pub epoch: i64,
    /// Refuse an operation whose recorded `hash` differs. Default: false; the job's signal then has a warning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// The operations, in order.
    pub ops: Vec<JournalOperation>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JournalOp {
    /// Work of the handler, with `result` or `error`.
    #[default]
    Step,
    /// Resolves when the database clock reaches `until`, or after `for_s`.
    Sleep,
    /// Resolves with the data of a signal event `name`, or with the error `timeout`.
    Event,
    /// Resolves with the answer of a person, or with the error `timeout`.
    Approval,
    /// Starts `jobs`, and resolves with their outcomes when all of them have ended.
    Child,
    /// An event on a `topic` with `data`, published once, in the commit that records it.
    Publish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventsSince {
    /// Events that were sent since the job was created.
    Start,
    /// Events that are sent after the operation is recorded.
    Now,
}

/// One operation. The first record of a key counts; a repeated one gets the recorded answer. `result`, `error`,
/// `attempt` and `duration_ms` go with `step`; `topic` and `data` with `publish`; `until` or `for_s` with `sleep`; `name`,
/// `match`, `since` and `timeout_s` with `event`; `title`, `detail`, `right` and `timeout_s` with `approval`; `jobs` with
/// `child`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JournalOperation {
    /// The kind of operation.
    pub op: JournalOp,
    /// The name of the operation in the journal.
    pub key: String,
    /// A digest of operation, name and input, at most 128 bytes. A recorded operation that is met with another digest
    /// is reported as drift.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// The result of a finished step: any JSON, at most 1 MiB.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of a failed step. A retryable error is recorded as an attempt, any other as the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// The number of the attempt, from 1. An attempt that is recorded already is not recorded again. Default: the next
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
    /// How long the step ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// The topic of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// The data of the event: any JSON, at most 1 MiB.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Box<RawValue>>,
    /// The end of a sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The length of a sleep in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<f64>,
    /// The name of the awaited event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Members of the event's data that must have these values, at most 16.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<BTreeMap<String, serde_json::Value>>,
    /// The first event that counts. Default: `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<EventsSince>,
    /// Seconds after which the operation resolves with the error `timeout`. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<f64>,
    /// What is to be approved, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// More about what is to be approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The right that the approver needs. Default: `operate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub right: Option<String>,
    /// The jobs to start, at most 10,000. They cannot have a unique key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<Vec<JobRequest>>,
}

/// Reads a member that may be `null`: a step without a value has the result `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JournalWritten {
    /// One result per write, in the order of the request.
    pub results: Vec<JournalResult>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JournalResult {
    /// The job's id.
    pub job_id: Uuid,
    /// What became of the write.
    pub status: OutcomeStatus,
    /// What is recorded for each operation, in order. Empty unless the write was applied. An entry that this write
    /// resolved has no `result` and `error`.
    pub entries: Vec<JournalEntry>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JournalEntry {
    /// The name of the operation in the journal.
    pub key: String,
    /// `step`, `sleep`, `event`, `approval`, `child` or `publish`.
    pub op: String,
    /// `open` or `resolved`.
    pub status: String,
    /// The operation was resolved before this write. Only in the response to a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<bool>,
    /// Number of the entry, from 1, in the order in which the operations were recorded first.
    pub position: i64,
    /// Place in the order of resolution, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    /// The digest of operation, name and input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    /// Number of attempts.
    pub attempt: i64,
    /// The last failed attempts, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<JournalAttempt>,
    /// The result of a resolved operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of a resolved operation that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// Size of the entry.
    pub bytes: i64,
    /// How long the operation ran, as the worker measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// When the operation was recorded first.
    pub created_at: Timestamp,
    /// When the operation was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<Timestamp>,
    /// What the operation waits for: the event or the approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub input: Option<Box<RawValue>>,
    /// When the open operation resolves by itself: the end of a sleep, or a timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JournalAttempt {
    /// The number of the attempt.
    pub attempt: i64,
    /// When it was recorded.
    pub at: Timestamp,
    /// The error's code.
    pub code: String,
    /// The error's message, at most 1 KiB.
    pub message: String,
}

/// The journal of a claimed job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedJournal {
    /// The first entries.
    pub entries: Vec<JournalEntry>,
    /// The cursor of the remaining entries for `GET /jobs/{id}/journal`, if there are any.
    pub next_cursor: Option<String>,
}

/// One page of a journal.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JournalView {
    /// The entries, by position.
    pub items: Vec<JournalEntry>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
    /// Number of entries of the whole journal, at most 10,000.
    pub entries: i64,
    /// Number of resolved entries.
    pub resolved: i64,
    /// Size of the whole journal, at most 64 MiB.
    pub bytes: i64,
    /// Warnings: a journal that is nearly full, or a handler that changed since the job began.
    pub warnings: Vec<String>,
    /// Fields that entries have and the caller may not read; they are missing or empty in this response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub redacted: Vec<String>,
}

/// A fork creates a new job that starts with the part of a journal before one entry.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// The key of the first entry that is not copied: the new job runs this operation again.
    pub from: String,
    /// The payload of the new job. Default: the old job's payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

/// The answer to an approval.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalRequest {
    /// True to approve, false to reject.
    pub approve: bool,
    /// A note for the workflow, at most 1 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The recorded answer to an approval.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ApprovalView {
    /// The answer.
    pub approved: bool,
    /// Who answered.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// The note of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// What wakes a suspended job. Exactly one of `any`, `all` and `count`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WakeRequest {
    /// One of these entries of the journal is resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<String>>,
    /// All of these entries are resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<String>>,
    /// This many of the entries `of` are resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// The entries that `count` counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_may_be_null_and_may_be_missing() {
        let result = |json| serde_json::from_str::<JournalOperation>(json).unwrap().result;
        assert_eq!(result(r#"{"op": "step", "key": "a", "result": null}"#).unwrap().get(), "null");
        assert!(result(r#"{"op": "step", "key": "a"}"#).is_none());
    }
}

//! Subjects: long-lived objects that jobs work on, with facts, backoffs and a timeline.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// The body of `PUT /subjects/{id}`. A field that is left out keeps its value.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectRequest {
    /// The kind of subject, for example `machine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Facts to set. Setting a fact to the same value still updates its time. `null` removes a fact.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub facts: BTreeMap<String, Box<RawValue>>,
}

/// Facts that a subject's own agent reports with `PUT /subjects/{id}/facts`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FactsReport {
    /// Facts to set, by name. `null` removes a fact.
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub facts: BTreeMap<String, Box<RawValue>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FactView {
    /// The fact's value.
    #[schema(value_type = serde_json::Value)]
    pub value: Box<RawValue>,
    /// When the fact was last reported.
    pub at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubjectView {
    /// The subject's id.
    pub id: String,
    /// The kind of subject.
    pub kind: Option<String>,
    /// The facts by name.
    pub facts: BTreeMap<String, FactView>,
    /// Active backoffs.
    pub backoffs: Vec<BackoffView>,
    /// When the subject was created.
    pub created_at: Timestamp,
    /// When a fact or the kind last changed.
    pub updated_at: Timestamp,
    /// Unfinished jobs on the subject. Not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Vec<WorkView>>,
    /// The subject's state in every process that selects it. Not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<StandingView>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BackoffView {
    /// The process that is held back; `*` means every process.
    pub process: String,
    /// `null` means until it is cleared.
    pub until: Option<Timestamp>,
    /// The reason, for people.
    pub cause: String,
    /// The principal or the component that set the backoff.
    pub by: String,
    /// When the backoff was set.
    pub at: Timestamp,
    /// The failed job that set the backoff.
    pub job_id: Option<Uuid>,
}

/// An unfinished job on a subject.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkView {
    /// The unfinished job.
    pub job_id: Uuid,
    /// The process, or the job's kind if the job belongs to no process.
    pub process: String,
    /// The job's state.
    pub state: String,
    /// The worker that has claimed the job.
    pub worker: Option<Uuid>,
    /// When the attempt started.
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// The process's name.
    pub process: String,
    /// `eligible`, `active`, `in_backoff`, `waiting` (until `every_s` has passed) or `ineligible`.
    pub standing: String,
    /// When the subject's facts made it eligible.
    pub since: Option<Timestamp>,
    /// The earliest time at which a job can be created; `null` also for a backoff without end.
    pub ready_at: Option<Timestamp>,
    /// When the state may change without a new fact, because a fact has reached the age that a condition tests.
    pub check_at: Option<Timestamp>,
    /// The unfinished job of the process on the subject.
    pub job_id: Option<Uuid>,
}

/// Prevents a process from creating jobs for a subject: `until` a time, `for_s` seconds, or until cleared if neither is
/// set.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackoffRequest {
    /// The end of the backoff.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The length of the backoff in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<i64>,
    /// The reason, for people.
    pub cause: String,
}

/// An event of a subject or a runtime, or a change that a principal made to it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TimelineItem {
    /// What happened, for example `claimed`, `failed` or `fact_changed`.
    pub event: String,
    /// When it happened.
    pub at: Timestamp,
    /// The subject, if the event belongs to one.
    pub subject: Option<String>,
    /// The runtime, if the event belongs to one.
    pub runtime: Option<String>,
    /// The process, if the event belongs to one.
    pub process: Option<String>,
    /// The job, if the event belongs to one.
    pub job_id: Option<Uuid>,
    /// The attempt of the job.
    pub attempt: Option<i64>,
    /// The worker of the attempt.
    pub worker: Option<Uuid>,
    /// The principal or the component that caused the event.
    pub actor: Option<String>,
    /// The reason, for example an error code.
    pub cause: Option<String>,
    /// Further details: `message`, `until`, `facts`.
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
}

/// A subject's credential. The token is shown only in this response.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubjectCredential {
    /// The subject's id.
    pub subject: String,
    /// The credential. Store it now: the server keeps only a hash.
    pub token: String,
}

//! Subjects: long-lived things that work is done on, with facts, backoffs and one timeline (W1 to W8).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// What `PUT /subjects/{id}` sets. What is left out stays as it is.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubjectRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Each is set now, also if it says the same as before; `null` takes a fact away.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub facts: BTreeMap<String, Box<RawValue>>,
}

/// What a subject's own agent says with `PUT /subjects/{id}/facts`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FactsReport {
    #[schema(value_type = BTreeMap<String, serde_json::Value>)]
    pub facts: BTreeMap<String, Box<RawValue>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FactView {
    #[schema(value_type = serde_json::Value)]
    pub value: Box<RawValue>,
    /// When it was said last.
    pub at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubjectView {
    pub id: String,
    pub kind: Option<String>,
    pub facts: BTreeMap<String, FactView>,
    /// What keeps processes off it now.
    pub backoffs: Vec<BackoffView>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Unfinished jobs on it. Not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Vec<WorkView>>,
    /// How it stands with the processes that have to do with it. Not in listings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<Vec<StandingView>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BackoffView {
    /// `*` stands for every process.
    pub process: String,
    /// `null`: without end.
    pub until: Option<Timestamp>,
    pub cause: String,
    /// Who or what wrote it.
    pub by: String,
    pub at: Timestamp,
    /// The job whose failure wrote it.
    pub job_id: Option<Uuid>,
}

/// An unfinished job on a subject.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkView {
    pub job_id: Uuid,
    /// The process, or the kind of a job that has none.
    pub process: String,
    pub state: String,
    pub worker: Option<Uuid>,
    pub started_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    pub process: String,
    /// `eligible`, `active`, `in_backoff`, `waiting` (for its next turn) or `ineligible` (as yet).
    pub standing: String,
    /// Since when its facts have made it eligible.
    pub since: Option<Timestamp>,
    /// From when a job may be made; `null` also for a lockout without end.
    pub ready_at: Option<Timestamp>,
    /// When age alone may change the answer.
    pub check_at: Option<Timestamp>,
    pub job_id: Option<Uuid>,
}

/// Keeps a process off a subject: `until` a time, `for_s` seconds, or with neither without end.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackoffRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<i64>,
    pub cause: String,
}

/// One thing that happened to a subject or a runtime, or that someone changed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TimelineItem {
    pub event: String,
    pub at: Timestamp,
    pub subject: Option<String>,
    pub runtime: Option<String>,
    pub process: Option<String>,
    pub job_id: Option<Uuid>,
    pub attempt: Option<i64>,
    pub worker: Option<Uuid>,
    pub actor: Option<String>,
    pub cause: Option<String>,
    /// What there is to know beyond that: `message`, `until`, `facts`.
    #[schema(value_type = Option<serde_json::Value>)]
    pub detail: Option<Box<RawValue>>,
}

/// The secret is told this once.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SubjectCredential {
    pub subject: String,
    pub token: String,
}

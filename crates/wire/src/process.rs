//! Processes: what is to be done to which subjects (W1).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::job::RetrySettings;

/// What `PUT /processes/{name}` sets. What is left out goes back to its default.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessRequest {
    pub selector: Selector,
    pub queue: String,
    pub kind: String,
    /// What each job carries; the subject's id and facts, unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Unfinished jobs at once; any number, unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_active: Option<i64>,
    /// How soon a subject that is still eligible after its job is looked at again; 60 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<i64>,
    /// Processes that may not run on a subject while this one does, and the other way round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excludes: Option<Vec<String>>,
    /// How long a subject is left alone after a failure; the queue's retry policy, unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<RetrySettings>,
}

/// Eligible is a subject of this kind for which every condition of `all`, at least one of `any` and none of `not` holds.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Selector {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<Condition>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<Vec<Condition>>,
}

/// A fact and exactly one question about it. Only `exists: false` holds of a fact that is not there.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    pub fact: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub equals: Option<Box<RawValue>>,
    /// It was said last at least this long ago, and since the service was last away there was time to say it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    pub name: String,
    pub selector: Selector,
    pub queue: String,
    pub kind: String,
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    pub max_active: Option<i64>,
    pub every_s: i64,
    pub excludes: Vec<String>,
    pub backoff: Option<RetrySettings>,
    /// Subjects for which a job may be made now; each figure is counted up to a hundred thousand.
    pub eligible: i64,
    /// Subjects with an unfinished job.
    pub active: i64,
    /// Subjects that would be eligible, but for a backoff.
    pub in_backoff: i64,
    /// Since when the first of the eligible has been.
    pub oldest: Option<Timestamp>,
    /// Who declared it.
    pub principal: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EligibleView {
    pub subject: String,
    /// Since when its facts have made it eligible.
    pub since: Timestamp,
    /// From when a job could be made: its place in line.
    pub ready_at: Timestamp,
}

//! Processes: rules that create jobs for eligible subjects.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::queue::job::RetrySettings;

/// The body of `PUT /processes/{name}`. A field that is left out returns to its default.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessRequest {
    /// Which subjects are eligible.
    pub selector: Selector,
    /// The queue of the jobs that the process creates.
    pub queue: String,
    /// The kind of the jobs that the process creates.
    pub kind: String,
    /// The payload of each job. Default: the subject's id and facts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Maximum number of unfinished jobs of this process. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_active: Option<i64>,
    /// Seconds before a subject that is still eligible after its job gets another job. Default: 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_s: Option<i64>,
    /// Processes that must not run on a subject at the same time as this one. The exclusion holds in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excludes: Option<Vec<String>>,
    /// Backoff of a subject after a failed job. Default: the queue's retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff: Option<RetrySettings>,
}

/// A subject is eligible if it has this `kind` (when given), every condition in `all` holds, at least one condition in
/// `any` holds, and no condition in `not` holds.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Selector {
    /// The kind of subject. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Conditions that must all hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all: Option<Vec<Condition>>,
    /// Conditions of which at least one must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub any: Option<Vec<Condition>>,
    /// Conditions of which none may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not: Option<Vec<Condition>>,
}

/// A fact and exactly one test of it, or a group of conditions: `all`, `any` and `not`, combined as in a selector and
/// nested at most 4 levels deep. A missing fact satisfies only `exists: false`, and differs from a fact that exists.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// The name of the fact. Omit it for a group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fact: Option<String>,
    /// Whether the fact must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exists: Option<bool>,
    /// The value that the fact must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub equals: Option<Box<RawValue>>,
    /// The name of another fact that must have the same value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equals_fact: Option<String>,
    /// The name of another fact that must have a different value, or none. Also true if only the other fact exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs_from: Option<String>,
    /// A number, or a time in RFC 3339, that the fact must exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub greater_than: Option<Box<RawValue>>,
    /// A number, or a time in RFC 3339, that the fact must be below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub less_than: Option<Box<RawValue>>,
    /// True if the fact was last reported at least this many seconds ago. After server downtime, facts get a grace
    /// period (the shorter of `older_than_s` and 5 minutes), so that agents can report again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<i64>,
    /// For a group: conditions that must all hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub all: Option<Vec<Condition>>,
    /// For a group: conditions of which at least one must hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub any: Option<Vec<Condition>>,
    /// For a group: conditions of which none may hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub not: Option<Vec<Condition>>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    /// The process's name.
    pub name: String,
    /// Which subjects are eligible.
    pub selector: Selector,
    /// The queue of the jobs that the process creates.
    pub queue: String,
    /// The kind of the jobs that the process creates.
    pub kind: String,
    /// The payload of each job; `null` means the subject's id and facts.
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Maximum number of unfinished jobs; `null` means no limit.
    pub max_active: Option<i64>,
    /// Seconds before a subject that is still eligible gets another job.
    pub every_s: i64,
    /// Processes that must not run on a subject at the same time.
    pub excludes: Vec<String>,
    /// Backoff of a subject after a failed job; `null` means the queue's retry policy.
    pub backoff: Option<RetrySettings>,
    /// Subjects for which a job can be created now. Each figure is counted up to 100,000.
    pub eligible: i64,
    /// Subjects with an unfinished job.
    pub active: i64,
    /// Subjects that would be eligible without a backoff.
    pub in_backoff: i64,
    /// When the longest-eligible subject became eligible.
    pub oldest: Option<Timestamp>,
    /// The principal that declared the process.
    pub principal: String,
    /// When the process was declared.
    pub created_at: Timestamp,
    /// When the declaration last changed.
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EligibleView {
    /// The subject's id.
    pub subject: String,
    /// When the subject's facts made it eligible.
    pub since: Timestamp,
    /// The earliest time at which a job can be created; determines the order of subjects.
    pub ready_at: Timestamp,
}

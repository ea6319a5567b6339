//! Triggers: when this happens, start that (T1, T2).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// What `POST /triggers` makes and `PUT /triggers/{id}` replaces.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    pub name: String,
    /// `kv`, `cron`, `pubsub`, `queue`, `http`, `email`, `job`, `runtime` or `dead_letter`.
    pub source: String,
    /// What of the source: kv {collection, key?, ops?}, pubsub {topic}, http {secret?}, job {queue?, kind?, states?},
    /// queue {queue, ops?}, runtime {name?, health?, operations?}, email {to}, dead_letter {source?}, cron {schedule, timezone?, missed?}; and `when`, an expression over `event` and `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub filter: Option<Box<RawValue>>,
    /// `{job: {…}}`, `{http: {url, method?, headers?, timeout_s?}}`, `{script: "…"}`, which is Rhai, or `{runtime: {name,
    /// operation, image?}}`. Strings in a job's payload, a call's body and a runtime's name may hold expressions:
    /// `{{ data.user }}`.
    #[schema(value_type = serde_json::Value)]
    pub target: Box<RawValue>,
    /// `async` (the default), or `sync`: whoever causes the event waits for the run, which is tried once. For `kv`, `pubsub`
    /// and `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Copied when the trigger is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<TriggerRetry>,
    /// On unless said otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRetry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maximum_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exponent: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TriggerView {
    pub id: Uuid,
    pub name: String,
    pub source: String,
    /// A secret in it is not shown; given back as it stands here, it is kept.
    #[schema(value_type = serde_json::Value)]
    pub filter: Box<RawValue>,
    #[schema(value_type = serde_json::Value)]
    pub target: Box<RawValue>,
    pub mode: String,
    pub retry: TriggerRetry,
    pub enabled: bool,
    /// Who registered it: what it starts has that principal's rights.
    pub principal: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Runs that were started.
    pub fired: i64,
    /// Runs that became dead letters before anything was started.
    pub failed: i64,
    /// Runs that were not started because one thing had led to another too often.
    pub loops_stopped: i64,
    /// Slots of a schedule that passed while nobody could fire them and were left out, and when that was last noticed.
    pub missed: i64,
    pub last_missed_at: Option<Timestamp>,
    pub last_fired_at: Option<Timestamp>,
    pub last_error: Option<String>,
    /// Which script its target is; another text is another script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_id: Option<Uuid>,
    /// Where an `http` trigger is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// The next times a schedule fires: five, unless it is off.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_fires: Vec<Timestamp>,
}

/// Starts a trigger by hand; with `dry_run`, only shows what would be started.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FireRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Box<RawValue>>,
    /// For a dry run: the operation of the event to try, `set` or `succeeded` say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// For a dry run: what filters look at, `collection`, `key`, `topic`, `queue`, `kind` and so on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FireView {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<DryRunView>,
    /// Of a trigger that is waited for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<crate::SyncRunView>,
}

/// What a trigger would do about an event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRunView {
    pub matches: bool,
    /// Why not, or what went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Where the job would go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Where the call would go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// What a script would do, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeds: Vec<String>,
    /// What a script would log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// How one run went: of a script, or of a trigger that is waited for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TriggerRunView {
    pub id: Uuid,
    pub trigger_id: Uuid,
    pub event_id: Uuid,
    pub attempt: i64,
    pub at: Timestamp,
    /// `done`, `job`, `delivery`, `failed` or `skipped`.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::JobError>,
    /// What the script gave; needs the right to read results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

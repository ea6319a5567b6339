//! Triggers: a source of events and the action that each event starts.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// The body of `POST /triggers` (create) and `PUT /triggers/{id}` (replace).
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRequest {
    /// A unique name.
    pub name: String,
    /// `kv`, `cron`, `pubsub`, `queue`, `http`, `email`, `job`, `runtime`, `run` or `dead_letter`.
    pub source: String,
    /// Which events of the source match: kv {collection, key?, ops?}, pubsub {topic}, http {secret?}, job {queue?,
    /// kind?, states?}, queue {queue, ops?}, runtime {name?, health?, operations?}, email {to}, run {run?,
    /// name?, states?}, dead_letter {source?},
    /// cron {schedule, timezone?, missed?}. Every source also accepts `when`, an expression over `event` and `data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub filter: Option<Box<RawValue>>,
    /// The action: `{job: {…}}`, `{http: {url, method?, headers?, timeout_s?}}`, `{script: "…"}` (Rhai) or `{runtime:
    /// {name, operation, image?}}`. Strings in a job's payload, a request's body and a runtime's name may contain
    /// expressions: `{{ data.user }}`.
    #[schema(value_type = serde_json::Value)]
    pub target: Box<RawValue>,
    /// `async` (default) or `sync`. With `sync`, the request that causes the event waits for the run, which is
    /// attempted once. Only for `kv`, `pubsub` and `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The retry policy. Copied when the trigger is created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<TriggerRetry>,
    /// Default: true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Only for `dead_letter` triggers: a successful run resolves the letter as `handled_by_script`, and a failed one as
    /// `handler_failed`. Default: false, which leaves the letter unresolved unless a script calls `resolve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handles: Option<bool>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TriggerRetry {
    /// Maximum number of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
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

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TriggerView {
    /// The trigger's id.
    pub id: Uuid,
    /// The trigger's name.
    pub name: String,
    /// The source of events.
    pub source: String,
    /// Secrets are replaced by placeholders; a placeholder that is sent back retains the stored secret.
    #[schema(value_type = serde_json::Value)]
    pub filter: Box<RawValue>,
    /// The action. Secrets are replaced by placeholders.
    #[schema(value_type = serde_json::Value)]
    pub target: Box<RawValue>,
    /// `async` or `sync`.
    pub mode: String,
    /// The retry policy.
    pub retry: TriggerRetry,
    /// Whether events start runs.
    pub enabled: bool,
    /// Whether a successful run resolves the dead letter that it handles.
    #[serde(default)]
    pub handles: bool,
    /// The principal that registered the trigger. The trigger acts with that principal's rights.
    pub principal: String,
    /// When the trigger was created.
    pub created_at: Timestamp,
    /// When the trigger last changed.
    pub updated_at: Timestamp,
    /// Number of started runs.
    pub fired: i64,
    /// Number of runs that became dead letters before anything was started.
    pub failed: i64,
    /// Number of runs that were not started because the chain of triggers exceeded the depth limit.
    pub loops_stopped: i64,
    /// `missed`: due times of a schedule that were skipped because no node was up. `last_missed_at`: when that was last
    /// detected.
    pub missed: i64,
    /// When a slot of the schedule was last missed.
    pub last_missed_at: Option<Timestamp>,
    /// When the trigger last started a run.
    pub last_fired_at: Option<Timestamp>,
    /// The error of the last failed run.
    pub last_error: Option<String>,
    /// Identifies the text of the target's script; a changed script has another id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_id: Option<Uuid>,
    /// The path at which an `http` trigger is called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hook: Option<String>,
    /// The next five due times of an enabled schedule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_fires: Vec<Timestamp>,
}

/// Fires a trigger manually. With `dry_run`, only reports what would be started.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FireRequest {
    /// The data of the event. Default: `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Box<RawValue>>,
    /// For a dry run: the operation of the simulated event, for example `set` or `succeeded`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// For a dry run: the attributes that filters test, for example `collection`, `key`, `topic`, `queue`, `kind`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<BTreeMap<String, String>>,
    /// Evaluate the filter and the target without starting anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<bool>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FireView {
    /// The event that was written; `null` for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Uuid>,
    /// The result of a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dry_run: Option<DryRunView>,
    /// The run of a `sync` trigger.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<crate::SyncRunView>,
}

/// What a trigger would do with an event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DryRunView {
    /// Whether the filter matches.
    pub matches: bool,
    /// Why the event does not match, or the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The queue of the job that would be enqueued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The kind of the job that would be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The URL of the request that would be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The payload of the job that would be created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// The effects that a script would have, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub effects: Vec<String>,
    /// The lines that a script would log.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

/// The result of one run of a script or of a `sync` trigger.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TriggerRunView {
    /// The run's id.
    pub id: Uuid,
    /// The trigger's id.
    pub trigger_id: Uuid,
    /// The event's id.
    pub event_id: Uuid,
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// When it happened.
    pub at: Timestamp,
    /// `done`, `job`, `delivery`, `failed` or `skipped`.
    pub outcome: String,
    /// The job that the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// The request that the run sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
    /// The script that ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script_id: Option<Uuid>,
    /// How long the run took in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<i64>,
    /// The error of a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::JobError>,
    /// The script's result. Requires the right to read results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The lines that the script logged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<String>,
}

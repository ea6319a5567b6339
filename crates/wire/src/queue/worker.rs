//! Workers: registration, heartbeat, claim and settle.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::JobError;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRequest {
    pub name: String,
    pub queues: Vec<String>,
    /// Kinds that the worker can run. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Affinities that the worker can load. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinities: Option<Vec<String>>,
    /// Seconds without a heartbeat after which the worker's jobs are given to other workers, from 1 to 3600. Default:
    /// 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerRegistered {
    pub id: Uuid,
    pub lease_s: i64,
    /// Recommended interval between heartbeats.
    pub heartbeat_s: f64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The affinity that the worker has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Long poll: respond when a cancellation or a drain is requested, or after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatView {
    pub lease_until: Timestamp,
    /// Jobs of this worker that were canceled; settle each with `cancel`.
    pub cancel: Vec<Uuid>,
    /// Stop claiming jobs and exit when the running jobs have ended.
    pub drain: bool,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    pub max: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ClaimView {
    pub jobs: Vec<ClaimedJob>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedJob {
    pub id: Uuid,
    /// Fencing token. Send it with every signal, artifact and outcome of this attempt; a stale epoch is rejected.
    pub epoch: i64,
    pub queue: String,
    pub kind: String,
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    pub affinity: Option<String>,
    pub priority: i64,
    pub subject: Option<String>,
    pub process: Option<String>,
    pub run: Option<String>,
    pub attempt: i64,
    pub max_attempts: i64,
    pub timeout_s: Option<i64>,
    pub created_at: Timestamp,
    /// The job's tenant, if it differs from the worker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    pub outcomes: Vec<OutcomeRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    Finish,
    Fail,
    Cancel,
    Snooze,
    Release,
}

/// The outcome of one attempt. `result` and `facts` go with `finish`, `error` with `fail`, `delay_s` with `snooze`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRequest {
    pub job_id: Uuid,
    pub epoch: i64,
    pub outcome: OutcomeKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    pub facts: Option<BTreeMap<String, Box<RawValue>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SettleView {
    pub results: Vec<OutcomeView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    Applied,
    ClaimLost,
    AlreadyEnded,
    NotFound,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OutcomeView {
    pub job_id: Uuid,
    pub status: OutcomeStatus,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerView {
    pub id: Uuid,
    pub name: String,
    pub queues: Vec<String>,
    pub kinds: Option<Vec<String>>,
    pub affinities: Option<Vec<String>>,
    pub lease_s: i64,
    pub lease_until: Timestamp,
    /// The affinity that the worker last reported as loaded.
    pub affinity: Option<String>,
    /// Jobs that the worker has claimed and not settled.
    pub claims: i64,
    pub draining: bool,
    pub registered_at: Timestamp,
    pub last_claim_at: Option<Timestamp>,
}

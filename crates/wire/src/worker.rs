//! Workers: registration, heartbeat, claim and settle (X3, Q6, Q7).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::job::JobError;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRequest {
    pub name: String,
    pub queues: Vec<String>,
    /// Kinds it can run; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Affinities it can bring up; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinities: Option<Vec<String>>,
    /// Seconds of silence after which its jobs go to others: 1 to 3600, 30 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerRegistered {
    pub id: Uuid,
    pub lease_s: i64,
    /// How often to send a heartbeat.
    pub heartbeat_s: f64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// What the worker has loaded now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Answer as soon as there is a cancel or a drain, or after this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatView {
    pub lease_until: Timestamp,
    /// Jobs of this worker that were called off; settle each with `cancel`.
    pub cancel: Vec<Uuid>,
    /// Take no more work and stop when done.
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
    /// Say it with every signal, artifact and outcome of this attempt.
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
    /// Whose job it is, where that is another tenant's that the worker serves.
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

/// One attempt's end. `result` and `facts` go with `finish`, `error` with `fail`, `delay_s` with `snooze`.
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
    /// What it said it has loaded.
    pub affinity: Option<String>,
    /// Jobs it has claimed and not settled.
    pub claims: i64,
    pub draining: bool,
    pub registered_at: Timestamp,
    pub last_claim_at: Option<Timestamp>,
}

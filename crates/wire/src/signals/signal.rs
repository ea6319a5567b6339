//! Signals: the current state of one job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A worker's update to the signal of a job that it has claimed.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalUpdate {
    pub epoch: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// From 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub last_known_outcome: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_actions: Option<Vec<NextAction>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub diagnostics: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// `loading` or `working`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NextAction {
    pub label: String,
    /// `https://…`, `http://…`, or a path of this server.
    pub href: String,
    /// The HTTP method. Default: GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct EtaRange {
    pub p50: f64,
    pub p90: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SignalView {
    pub job_id: Uuid,
    /// `queued`, `started`, `phase`, `blocked`, `failed`, `succeeded`, `canceled` or `unavailable`.
    pub kind: String,
    pub phase: String,
    pub summary: String,
    pub eta_seconds: Option<EtaRange>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub last_known_outcome: Option<Box<RawValue>>,
    pub next_actions: Vec<NextAction>,
    #[schema(value_type = serde_json::Value)]
    pub diagnostics: Box<RawValue>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub predicted: Option<Box<RawValue>>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    pub progress: Option<f64>,
    pub run: Option<String>,
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

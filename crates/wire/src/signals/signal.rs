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
    /// The fencing token that came with the claim.
    pub epoch: i64,
    /// The phase that the attempt has reached: a built-in one, or one that the queue declares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// One sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// From 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<f64>,
    /// The worker's own estimate of the remaining seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_s: Option<f64>,
    /// The outcome of comparable work, any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub last_known_outcome: Option<Box<RawValue>>,
    /// Links for people. They replace the earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_actions: Option<Vec<NextAction>>,
    /// Details for people, any JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub diagnostics: Option<Box<RawValue>>,
    /// Additional data for user interfaces, any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// `loading` or `working`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// `blocked` or `unavailable`: the job cannot go on at present. The next update without a kind, or with `started` or
    /// `phase`, withdraws it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NextAction {
    /// The text of the link or the button.
    pub label: String,
    /// `https://…`, `http://…`, or a path of this server.
    pub href: String,
    /// The HTTP method. Default: GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
pub struct EtaRange {
    /// Half of comparable jobs end within this many seconds.
    pub p50: f64,
    /// Nine of ten comparable jobs end within this many seconds.
    pub p90: f64,
}

/// What an ETA is based on, and how often such ETAs held.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EtaBasis {
    /// One sentence for people, such as `from 214 jobs of this kind; 2 swaps ahead`.
    pub text: String,
    /// Earlier jobs of the same kind and affinity. Old ones lose weight.
    pub samples: u64,
    /// Models that are loaded before the job starts, its own included.
    pub swaps_ahead: u64,
    /// Earlier ETAs of the kind that were compared with the real end.
    pub answers: u64,
    /// The share of them that ended within the p50; `null` before the fifth.
    pub p50_held: Option<f64>,
    /// The share of them that ended within the p90.
    pub p90_held: Option<f64>,
    /// The job ends by this time with a probability of 90 %.
    pub finishes_by: Timestamp,
}

/// The ETA of a job that is not enqueued.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EstimateView {
    /// The estimated seconds until the job would end; `null` without enough evidence.
    pub eta_seconds: Option<EtaRange>,
    /// What the estimate is based on.
    pub eta_basis: Option<EtaBasis>,
    /// Jobs that would be claimed before it.
    pub ahead: u64,
    /// Live workers that serve such jobs.
    pub workers: u64,
    /// One sentence for people.
    pub summary: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SignalView {
    /// The job's id.
    pub job_id: Uuid,
    /// `queued`, `started`, `phase`, `blocked`, `failed`, `succeeded`, `canceled` or `unavailable`.
    pub kind: String,
    /// The phase of the attempt, or a word for the state.
    pub phase: String,
    /// One sentence for people.
    pub summary: String,
    /// The estimated seconds until the job ends; `null` without an estimate.
    pub eta_seconds: Option<EtaRange>,
    /// What the estimate is based on; `null` without an estimate.
    pub eta_basis: Option<EtaBasis>,
    /// The outcome of comparable work.
    #[schema(value_type = Option<serde_json::Value>)]
    pub last_known_outcome: Option<Box<RawValue>>,
    /// Links for people.
    pub next_actions: Vec<NextAction>,
    /// Details for people.
    #[schema(value_type = serde_json::Value)]
    pub diagnostics: Box<RawValue>,
    /// The signature that predicts a failure, with its confidence.
    #[schema(value_type = Option<serde_json::Value>)]
    pub predicted: Option<Box<RawValue>>,
    /// The signature that matches the failure of the job: its likely cause, suggested action and link.
    #[schema(value_type = Option<serde_json::Value>)]
    pub signature: Option<Box<RawValue>>,
    /// Additional data from the worker.
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// From 0 to 1, as last reported by the worker.
    pub progress: Option<f64>,
    /// The run that the job belongs to, or `null`.
    pub run: Option<String>,
    /// Incremented by every change.
    pub version: i64,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// When the signal last changed.
    pub updated_at: Timestamp,
}

//! Time to first signal (TTFS), as measured by user interfaces.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TtfsEvent {
    /// The sender's id for the event. An event with the same id is counted once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<Uuid>,
    /// When the event happened. A late event counts for its own hour. Default: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// `ui`, `cli` or `ci`.
    pub surface: String,
    /// `signal.start`, `.rendered`, `.timeout`, `.error`, `.cache_hit` or `.cold_start`.
    pub event_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttfs_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_state: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub metadata: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TtfsEvents {
    pub events: Vec<TtfsEvent>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsAccepted {
    /// Number of new events.
    pub accepted: usize,
}

/// One hour (split by cache hit) or one day of one surface.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsSummary {
    /// Start of the hour or day, UTC.
    pub at: Timestamp,
    pub surface: String,
    /// Only in hourly rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit: Option<bool>,
    pub event_count: i64,
    pub avg_ms: Option<f64>,
    pub p50_ms: Option<i64>,
    pub p95_ms: Option<i64>,
    pub p99_ms: Option<i64>,
    pub min_ms: Option<i64>,
    pub max_ms: Option<i64>,
    /// Events over the p50 target of 2 s.
    pub over_p50_slo: i64,
    /// Events over the p95 target of 5 s.
    pub over_p95_slo: i64,
    /// From 0 to 1.
    pub cache_hit_rate: f64,
    pub error_count: i64,
}

/// Rendered signals of one hour compared with the targets.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsSloHour {
    pub at: Timestamp,
    pub surface: String,
    pub total_signals: i64,
    pub p50_breaches: i64,
    pub p95_breaches: i64,
    pub p50_compliance_pct: f64,
    pub p95_compliance_pct: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsSlo {
    /// The last 24 hours, newest first.
    pub items: Vec<TtfsSloHour>,
    pub next_cursor: Option<String>,
    /// Alerts that are active now.
    pub alerts: Vec<TtfsAlert>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsAlert {
    pub surface: String,
    /// `p95_over_target`, `hit_rate_low`, `error_rate_high` or `breaches`.
    pub alert: String,
    pub since: Timestamp,
    pub value: f64,
    pub detail: String,
}

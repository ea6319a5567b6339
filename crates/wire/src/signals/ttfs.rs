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
    /// The job whose signal was shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// `ui`, `cli` or `ci`.
    pub surface: String,
    /// `signal.start`, `.rendered`, `.timeout`, `.error`, `.cache_hit` or `.cold_start`.
    pub event_type: String,
    /// Milliseconds from the request to the event.
    pub ttfs_ms: i64,
    /// Whether the signal came from a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit: Option<bool>,
    /// Where the signal came from: `snapshot`, `cold_start` or `failure_index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_source: Option<String>,
    /// The kind of the signal, for example `phase`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The phase of the signal. A phase that a queue declares is reported as `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The run of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The state of the network, for example `4g`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_state: Option<String>,
    /// The class of device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The version of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// An id shared by related events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The W3C trace id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// The W3C span id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub span_id: Option<String>,
    /// The code of the error, for `signal.error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// The error for people, for `signal.error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_message: Option<String>,
    /// Additional data, any JSON object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub metadata: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TtfsEvents {
    /// The events, at most 1,000.
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
    /// `ui`, `cli` or `ci`.
    pub surface: String,
    /// Only in hourly rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit: Option<bool>,
    /// Number of events.
    pub event_count: i64,
    /// The mean in milliseconds.
    pub avg_ms: Option<f64>,
    /// The median in milliseconds.
    pub p50_ms: Option<i64>,
    /// The 95th percentile in milliseconds.
    pub p95_ms: Option<i64>,
    /// The 99th percentile in milliseconds.
    pub p99_ms: Option<i64>,
    /// The smallest value in milliseconds.
    pub min_ms: Option<i64>,
    /// The largest value in milliseconds.
    pub max_ms: Option<i64>,
    /// Events over the p50 target of 2 s.
    pub over_p50_slo: i64,
    /// Events over the p95 target of 5 s.
    pub over_p95_slo: i64,
    /// From 0 to 1.
    pub cache_hit_rate: f64,
    /// Number of errors.
    pub error_count: i64,
}

/// Rendered signals of one hour compared with the targets.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsSloHour {
    /// Start of the hour, UTC.
    pub at: Timestamp,
    /// `ui`, `cli` or `ci`.
    pub surface: String,
    /// Number of rendered signals.
    pub total_signals: i64,
    /// Signals over the p50 target of 2 s.
    pub p50_breaches: i64,
    /// Signals over the p95 target of 5 s.
    pub p95_breaches: i64,
    /// Percentage of signals within the p50 target.
    pub p50_compliance_pct: f64,
    /// Percentage of signals within the p95 target.
    pub p95_compliance_pct: f64,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsSlo {
    /// The last 24 hours, newest first.
    pub items: Vec<TtfsSloHour>,
    /// Pass it as `?cursor=` to get the next page; `null` on the last page.
    pub next_cursor: Option<String>,
    /// Alerts that are active now.
    pub alerts: Vec<TtfsAlert>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TtfsAlert {
    /// `ui`, `cli` or `ci`.
    pub surface: String,
    /// `p95_over_target`, `hit_rate_low`, `error_rate_high` or `breaches`.
    pub alert: String,
    /// When the alert became active.
    pub since: Timestamp,
    /// The value that crossed the threshold.
    pub value: f64,
    /// The alert for people.
    pub detail: String,
}

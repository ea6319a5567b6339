//! Deliveries: outgoing HTTP requests with their attempts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A delivery as shown in a listing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    pub id: Uuid,
    /// The value of the `webhook-id` header: the same for every attempt.
    pub message_id: String,
    /// `pending`, `delivering`, `delivered` or `failed`.
    pub state: String,
    /// `job`, or the source of the trigger's event.
    pub source: String,
    /// The operation of the event; for a job, the state that it entered.
    pub op: String,
    pub job_id: Option<Uuid>,
    pub trigger_id: Option<Uuid>,
    pub event_id: Option<Uuid>,
    pub url: String,
    pub method: String,
    pub attempt: i64,
    pub max_attempts: i64,
    /// The HTTP status of the last response.
    pub status: Option<u16>,
    /// The last error.
    pub error: Option<String>,
    pub created_at: Timestamp,
    /// When the next attempt is due; `null` if the delivery has ended or is in progress.
    pub next_attempt_at: Option<Timestamp>,
    /// The circuit breaker is open: after repeated failures nothing is sent to the receiver before this time.
    pub circuit_open_until: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// One delivery with its body and every attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryDetails {
    #[serde(flatten)]
    pub delivery: DeliveryView,
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// Oldest first.
    pub attempts: Vec<DeliveryAttemptView>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryAttemptView {
    pub attempt: i64,
    pub at: Timestamp,
    pub duration_ms: i64,
    pub status: Option<u16>,
    pub error: Option<String>,
    /// The beginning of the response body.
    pub response: Option<String>,
}

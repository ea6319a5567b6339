//! Deliveries: outgoing HTTP requests with their attempts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A delivery as shown in a listing.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    /// The delivery's id.
    pub id: Uuid,
    /// The value of the `webhook-id` header: the same for every attempt.
    pub message_id: String,
    /// `pending`, `delivering`, `delivered` or `failed`.
    pub state: String,
    /// `job`, or the source of the trigger's event.
    pub source: String,
    /// The operation of the event; for a job, the state that it entered.
    pub op: String,
    /// The job whose change is delivered, or `null`.
    pub job_id: Option<Uuid>,
    /// The trigger that sends the request, or `null`.
    pub trigger_id: Option<Uuid>,
    /// The event that the trigger received, or `null`.
    pub event_id: Option<Uuid>,
    /// The address of the receiver, without secrets.
    pub url: String,
    /// The HTTP method.
    pub method: String,
    /// The number of attempts that were made.
    pub attempt: i64,
    /// Maximum number of attempts.
    pub max_attempts: i64,
    /// The HTTP status of the last response.
    pub status: Option<u16>,
    /// The last error.
    pub error: Option<String>,
    /// When the delivery was created.
    pub created_at: Timestamp,
    /// When the next attempt is due; `null` if the delivery has ended or is in progress.
    pub next_attempt_at: Option<Timestamp>,
    /// The circuit breaker is open: after repeated failures nothing is sent to the receiver before this time.
    pub circuit_open_until: Option<Timestamp>,
    /// When the delivery was delivered or given up.
    pub ended_at: Option<Timestamp>,
}

/// One delivery with its body and every attempt.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryDetails {
    /// The delivery.
    #[serde(flatten)]
    pub delivery: DeliveryView,
    /// The request body.
    #[schema(value_type = serde_json::Value)]
    pub body: Box<RawValue>,
    /// Oldest first.
    pub attempts: Vec<DeliveryAttemptView>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryAttemptView {
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// When the attempt started.
    pub at: Timestamp,
    /// How long the attempt took in milliseconds.
    pub duration_ms: i64,
    /// The HTTP status of the response.
    pub status: Option<u16>,
    /// Why no response arrived.
    pub error: Option<String>,
    /// The beginning of the response body.
    pub response: Option<String>,
}

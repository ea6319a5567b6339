//! Deliveries: requests that are owed to someone, with every attempt (Q10).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

/// A delivery as a listing shows it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeliveryView {
    pub id: Uuid,
    /// What the receiver knows it by, the same for every attempt: the header `webhook-id`.
    pub message_id: String,
    /// `pending`, `delivering`, `delivered` or `failed`.
    pub state: String,
    /// What happened: `job`, or the source of a trigger's event.
    pub source: String,
    /// What exactly: for a job, the state it came to.
    pub op: String,
    pub job_id: Option<Uuid>,
    pub trigger_id: Option<Uuid>,
    pub event_id: Option<Uuid>,
    pub url: String,
    pub method: String,
    pub attempt: i64,
    pub max_attempts: i64,
    /// What the receiver answered last.
    pub status: Option<u16>,
    /// What went wrong last.
    pub error: Option<String>,
    pub created_at: Timestamp,
    /// When it is tried next; `null` when it has ended or is under way.
    pub next_attempt_at: Option<Timestamp>,
    /// The receiver failed so often that nothing is sent to it before this.
    pub circuit_open_until: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// One delivery with what is sent and every attempt.
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
    /// The beginning of what the receiver said.
    pub response: Option<String>,
}

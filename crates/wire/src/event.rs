//! Events that come in from outside, and key-value collections (T1).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventAccepted {
    pub event_id: Uuid,
    /// Of a batch, one per event in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_ids: Vec<Uuid>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KvView {
    pub collection: String,
    pub key: String,
    #[schema(value_type = serde_json::Value)]
    pub value: Box<RawValue>,
    /// Grows by one with each change.
    pub version: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

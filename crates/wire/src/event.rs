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
    /// What became of it at triggers that are waited for (`mode: sync`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<SyncRunView>,
}

/// What a `sync` trigger made of an event while whoever caused it waited.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SyncRunView {
    pub trigger_id: Uuid,
    pub event_id: Uuid,
    /// `succeeded`, `failed`, `canceled`, `skipped`, or `pending` when it took longer than is waited for.
    pub state: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::JobError>,
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
    /// What became of a change at triggers that are waited for (`mode: sync`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<SyncRunView>,
}

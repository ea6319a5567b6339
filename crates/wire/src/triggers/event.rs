//! Events received over HTTP, and key-value collections.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventAccepted {
    /// The event's id; for a batch, the id of the first event.
    pub event_id: Uuid,
    /// For a batch: one id per event, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub event_ids: Vec<Uuid>,
    /// The runs of `sync` triggers that the event caused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<SyncRunView>,
}

/// The result of a `sync` trigger, for which the request that caused the event waited.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SyncRunView {
    /// The trigger's id.
    pub trigger_id: Uuid,
    /// The event's id.
    pub event_id: Uuid,
    /// `succeeded`, `failed`, `canceled` or `skipped`; `pending` if the run took longer than the request waited.
    pub state: String,
    /// The job that the run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<Uuid>,
    /// The request that the run sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_id: Option<Uuid>,
    /// The result of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of a failed run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<crate::JobError>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct KvView {
    /// The collection's name.
    pub collection: String,
    /// The key.
    pub key: String,
    /// The value, any JSON.
    #[schema(value_type = serde_json::Value)]
    pub value: Box<RawValue>,
    /// Incremented by every change.
    pub version: i64,
    /// When the key was first set.
    pub created_at: Timestamp,
    /// When the value last changed.
    pub updated_at: Timestamp,
    /// The runs of `sync` triggers that the change caused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<SyncRunView>,
}

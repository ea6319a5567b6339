//! Synchronous calls, and responses that arrived after their caller disconnected.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::JobError;

/// The response to a synchronous call.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CallView {
    pub job_id: Uuid,
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
}

/// A response that arrived after its caller had disconnected or timed out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AbandonedView {
    pub job_id: Uuid,
    pub queue: String,
    pub kind: String,
    /// `succeeded`, `failed` or `canceled`.
    pub state: String,
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    pub error: Option<JobError>,
    pub principal: String,
    pub called_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub abandoned_at: Timestamp,
}

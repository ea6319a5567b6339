//! Synchronous calls, and answers that came when their caller was gone (Q5).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::job::JobError;

/// The answer to a call.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CallView {
    pub job_id: Uuid,
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
}

/// An answer that nobody was there to hear.
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

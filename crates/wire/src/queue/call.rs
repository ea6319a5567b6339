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
    /// The job that ran the call.
    pub job_id: Uuid,
    /// The job's result.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
}

/// A response that arrived after its caller had disconnected or timed out.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AbandonedView {
    /// The job that ran the call.
    pub job_id: Uuid,
    /// The queue's name.
    pub queue: String,
    /// The kind of work, for example `welcome`.
    pub kind: String,
    /// `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// The job's result.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of a failed job.
    pub error: Option<JobError>,
    /// The principal that made the call.
    pub principal: String,
    /// When the call was made.
    pub called_at: Timestamp,
    /// When the job ended.
    pub ended_at: Option<Timestamp>,
    /// When the caller disconnected or the wait ended.
    pub abandoned_at: Timestamp,
}

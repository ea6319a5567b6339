//! Artifacts: named blobs that belong to a job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    pub name: String,
    pub size: i64,
    pub content_type: String,
    /// SHA-256 digest in hexadecimal.
    pub sha256: String,
    pub created_at: Timestamp,
}

//! Artifacts: named blobs that belong to a job.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ArtifactView {
    /// The artifact's name, unique within the attempt.
    pub name: String,
    /// The size in bytes.
    pub size: i64,
    /// The media type as uploaded.
    pub content_type: String,
    /// SHA-256 digest in hexadecimal.
    pub sha256: String,
    /// When the upload was complete.
    pub created_at: Timestamp,
}

//! Background tasks, pruning and health.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The recent activity of a background task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    pub name: String,
    pub every_ms: u64,
    pub last_run_at: Option<Timestamp>,
    pub last_took_ms: Option<u64>,
    pub runs: u64,
    pub errors: u64,
    pub last_error: Option<String>,
    /// A description of the last run that changed something.
    pub last_work: Option<String>,
    pub last_work_at: Option<Timestamp>,
}

/// The background tasks of the responding node, and recent pruning of the whole database.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TasksView {
    pub items: Vec<TaskView>,
    pub next_cursor: Option<String>,
    /// Newest first.
    #[serde(default)]
    pub prunings: Vec<PruningView>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PruningView {
    pub at: Timestamp,
    /// `jobs`, `history` or `idempotency`.
    pub kind: String,
    pub rows: i64,
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

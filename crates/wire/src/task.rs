//! Background tasks, pruning and health.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The recent activity of a background task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// The task's name.
    pub name: String,
    /// The interval between runs in milliseconds.
    pub every_ms: u64,
    /// When the task last ran.
    pub last_run_at: Option<Timestamp>,
    /// How long the last run took in milliseconds.
    pub last_took_ms: Option<u64>,
    /// Number of runs since the node started.
    pub runs: u64,
    /// Number of failed runs since the node started.
    pub errors: u64,
    /// The error of the last failed run.
    pub last_error: Option<String>,
    /// A description of the last run that changed something.
    pub last_work: Option<String>,
    /// When a run last changed something.
    pub last_work_at: Option<Timestamp>,
}

/// The background tasks of the responding node, and recent pruning of the whole database.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TasksView {
    /// The tasks.
    pub items: Vec<TaskView>,
    /// Pass it as `?cursor=` to get the next page; `null` on the last page.
    pub next_cursor: Option<String>,
    /// Newest first.
    #[serde(default)]
    pub prunings: Vec<PruningView>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PruningView {
    /// When the rows were deleted.
    pub at: Timestamp,
    /// `jobs`, `history` or `idempotency`.
    pub kind: String,
    /// Number of deleted rows.
    pub rows: i64,
    /// The retention rule that applied.
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// `ok` or `unavailable`.
    pub status: String,
    /// Why the service is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

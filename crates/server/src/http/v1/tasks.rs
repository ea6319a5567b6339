//! Status of the background tasks.

use axum::Json;
use axum::extract::State;
use engine::TaskStatus;
use store::db::prunings::Pruning;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{PruningView, TaskView, TasksView};

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

/// Number of prunings shown.
const PRUNINGS: usize = 20;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List the background tasks of this node, their last results, and the latest prunings.
///
/// Every node runs every task; ask each node for its own figures.
#[utoipa::path(get, path = "/api/v1/tasks", tag = "tasks", responses((status = 200, body = TasksView)))]
pub(crate) async fn list(State(state): State<AppState>, principal: Principal) -> Result<Json<TasksView>, ApiError> {
    let mut items: Vec<TaskView> = state.engine.tasks().into_iter().map(task).collect();
    // Results and prunings concern the whole database, so other tenants must not see them.
    let limit = if principal.sees_installation() { PRUNINGS } else { 0 };
    if !principal.sees_installation() {
        items.iter_mut().for_each(|task| (task.last_error, task.last_work) = (None, None));
    }
    let prunings = state.store.recent_prunings(limit).await?.into_iter().map(pruning).collect();
    Ok(Json(TasksView { items, next_cursor: None, prunings }))
}

fn pruning(pruning: Pruning) -> PruningView {
    PruningView { at: view::time(pruning.at), kind: pruning.kind, rows: pruning.rows, why: pruning.why }
}

fn task(status: TaskStatus) -> TaskView {
    TaskView {
        name: status.name.into(),
        every_ms: status.every_ms,
        last_run_at: status.last_run_at.map(view::time),
        last_took_ms: status.last_took_ms,
        runs: status.runs,
        errors: status.errors,
        last_error: status.last_error,
        last_work: status.last_work,
        last_work_at: status.last_work_at.map(view::time),
    }
}

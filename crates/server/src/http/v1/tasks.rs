//! What the engine does by itself.

use axum::Json;
use axum::extract::State;
use engine::TaskStatus;
use store::maintenance::prunings::Pruning;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{PruningView, TaskView, TasksView};

use crate::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

/// Prunings that are shown.
const PRUNINGS: usize = 20;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists the background tasks of this node, how they went, and what was pruned lately.
#[utoipa::path(get, path = "/api/v1/tasks", tag = "tasks", responses((status = 200, body = TasksView)))]
pub(crate) async fn list(State(state): State<AppState>, principal: Principal) -> Result<Json<TasksView>, ApiError> {
    let mut items: Vec<TaskView> = state.engine.tasks().into_iter().map(task).collect();
    // What tasks did and what was pruned is of the whole database.
    let shown = if principal.is_of_the_house() { PRUNINGS } else { 0 };
    if !principal.is_of_the_house() {
        items.iter_mut().for_each(|task| (task.last_error, task.last_work) = (None, None));
    }
    let prunings = state.store.recent_prunings(shown).await?.into_iter().map(pruning).collect();
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

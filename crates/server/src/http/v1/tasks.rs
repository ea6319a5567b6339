//! What the engine does by itself.

use axum::Json;
use axum::extract::State;
use engine::TaskStatus;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TaskView};

use crate::auth::Principal;
use crate::state::AppState;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// Lists the background tasks of this node and how they went.
#[utoipa::path(get, path = "/tasks", tag = "tasks", responses((status = 200, body = Page<TaskView>)))]
async fn list(State(state): State<AppState>, _: Principal) -> Json<Page<TaskView>> {
    let items = state.engine.tasks().into_iter().map(task).collect();
    Json(Page { items, next_cursor: None, partial: false })
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

//! `/workers/{id}`: one worker and the jobs that it holds.

use axum::extract::State;
use axum::response::Response;
use domain::limits::OVERVIEW_WORKERS;
use pages::queue::worker::{HeldJobRow, WorkerPage};
use pages::{Crumb, DashboardPage};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::render;
use crate::error::ApiError;
use crate::extract::{Params, PathWorker};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show one live worker.
#[utoipa::path(get, path = "/workers/{id}", tag = "pages", operation_id = "worker", params(("id" = Uuid, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer, PathWorker(id): PathWorker) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let stored = state.store.worker(principal.tenant, id).await?.ok_or_else(|| ApiError::not_found("worker"))?;
    let query = PageQuery { limit: Some(OVERVIEW_WORKERS.to_string()), cursor: None };
    let live = v1::queue::workers::list(State(state.clone()), principal.clone(), Params(query)).await?.0.items;
    let worker = live.into_iter().find(|worker| worker.id == id.uuid()).ok_or_else(|| ApiError::not_found("worker"))?;
    // A principal that sees only its own jobs does not see what the worker runs for others.
    let held = match principal.sees_all() {
        true => state.store.jobs_of_worker(principal.tenant, id).await?,
        false => Vec::new(),
    };
    let row = |job: store::queue::workers::jobs::HeldJob| HeldJobRow {
        id: job.id.uuid(),
        queue: job.queue,
        kind: job.kind,
        state: job.state,
        attempt: job.attempt,
        phase: job.phase,
        progress: job.progress,
        started_at: job.started_at.map(view::time),
    };
    let trail = vec![Crumb::here(&worker.name)];
    let frame = viewer.frame_below(&state, DashboardPage::Workers, &worker.name, trail).await?;
    Ok(render(&WorkerPage { frame, worker, node: stored.node, jobs: held.into_iter().map(row).collect() }))
}

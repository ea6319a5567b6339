//! `/runs/{id}`: one run as a graph and as a waterfall.

use axum::extract::State;
use axum::response::Response;
use pages::workflows::run::RunPage;
use pages::{Crumb, DashboardPage};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::render;
use crate::error::ApiError;
use crate::extract::PathRun;
use crate::http::v1::workflows::run_signals::signal_of;
use crate::state::AppState;
use crate::view::workflows as view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show one run with its nodes.
#[utoipa::path(get, path = "/runs/{id}", tag = "pages", operation_id = "run", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer, PathRun(id): PathRun) -> Result<Response, ApiError> {
    let found = state.store.run(viewer.principal.tenant, id).await?;
    let (run, nodes) = found.ok_or_else(|| ApiError::not_found("run"))?;
    let signal = signal_of(&state.store, viewer.principal.tenant, &run, &nodes).await?;
    let mut run = view::run(run, Some(nodes), &viewer.principal);
    let nodes = run.nodes.take().unwrap_or_default();
    let title = run.name.clone().unwrap_or_else(|| run.id.clone());
    let frame = viewer.frame_below(&state, DashboardPage::Runs, &title, vec![Crumb::here(&title)]).await?;
    Ok(render(&RunPage { frame, run, nodes, signal }))
}

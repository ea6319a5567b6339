//! `/triggers` and `/triggers/{id}`: triggers, their schedules and their runs.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use pages::DashboardPage;
use pages::triggers::declarations::{TriggerPage, Triggers};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::{Params, PathTrigger};
use crate::http::v1;
use crate::http::v1::triggers::declarations::runs;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// List triggers and schedules.
#[utoipa::path(get, path = "/triggers", tag = "pages", operation_id = "triggers", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) =
        viewer.listing(&state, DashboardPage::Triggers, v1::triggers::declarations::list, query).await?;
    Ok(render(&Triggers { frame, page }))
}

/// Show one trigger and its runs.
#[utoipa::path(get, path = "/triggers/{id}", tag = "pages", operation_id = "trigger",
    params(("id" = Uuid, Path), PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn one(
    State(state): State<AppState>,
    viewer: Viewer,
    PathTrigger(id): PathTrigger,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let trigger = v1::triggers::declarations::get(State(state.clone()), principal.clone(), PathTrigger(id)).await?.0;
    let runs = match principal.may(&Method::GET, "/api/v1/triggers/{id}/runs") {
        true => Some(runs(State(state.clone()), principal.clone(), PathTrigger(id), Params(query)).await?.0),
        false => None,
    };
    let frame = viewer.frame_of(&state, DashboardPage::Triggers, &trigger.name).await?;
    Ok(render(&TriggerPage { frame, trigger, runs }))
}

//! `/triggers` and `/triggers/{id}`: what starts by itself, when, and how its runs went.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use pages::Place;
use pages::triggers::{TriggerPage, Triggers};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::{Params, PathTrigger};
use crate::http::v1;
use crate::http::v1::triggers::runs;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// Triggers and schedules.
#[utoipa::path(get, path = "/triggers", tag = "pages", operation_id = "triggers", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, Place::Triggers, v1::triggers::list, query).await?;
    Ok(shown(&Triggers { frame, page }))
}

/// One trigger, and how its runs went.
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
    let trigger = v1::triggers::get(State(state.clone()), principal.clone(), PathTrigger(id)).await?.0;
    let runs = match principal.may(&Method::GET, "/api/v1/triggers/{id}/runs") {
        true => Some(runs(State(state.clone()), principal.clone(), PathTrigger(id), Params(query)).await?.0),
        false => None,
    };
    let frame = viewer.frame_of(&state, Place::Triggers, &trigger.name).await?;
    Ok(shown(&TriggerPage { frame, trigger, runs }))
}

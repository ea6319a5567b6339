//! `/triggers`: what starts by itself, and when.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::triggers::Triggers;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
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

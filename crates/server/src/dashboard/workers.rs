//! `/workers`: who works.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::workers::Workers;
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

/// Living workers, newest first.
#[utoipa::path(get, path = "/workers", tag = "pages", operation_id = "workers", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, Place::Workers, v1::workers::list, query).await?;
    Ok(shown(&Workers { frame, page }))
}

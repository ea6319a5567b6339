//! `/workers`: registered workers.

use axum::extract::State;
use axum::response::Response;
use pages::DashboardPage;
use pages::queue::workers::Workers;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List live workers, newest first.
#[utoipa::path(get, path = "/workers", tag = "pages", operation_id = "workers", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, DashboardPage::Workers, v1::queue::workers::list, query).await?;
    Ok(render(&Workers { frame, page }))
}

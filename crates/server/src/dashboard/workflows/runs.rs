//! `/runs`: runs and their filters.

use axum::extract::State;
use axum::response::Response;
use pages::DashboardPage;
use pages::workflows::runs::{RunFilters, Runs};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::RunQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List runs, newest first.
#[utoipa::path(get, path = "/runs", tag = "pages", operation_id = "runs", params(RunQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<RunQuery>,
) -> Result<Response, ApiError> {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    let filter = RunFilters {
        state: text(&query.state),
        name: text(&query.name),
        tag: text(&query.tag),
        cursor: text(&query.cursor),
    };
    let (frame, page) = viewer.listing(&state, DashboardPage::Runs, v1::workflows::runs::list, query).await?;
    Ok(render(&Runs { frame, filter, page }))
}

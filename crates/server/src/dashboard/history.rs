//! `/history`: everything that was done.

use axum::extract::State;
use axum::response::Response;
use domain::RuntimeName;
use pages::Place;
use pages::history::History;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::http::v1::history::HistoryQuery;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Everything done to anything, newest first.
#[utoipa::path(get, path = "/history", tag = "pages", operation_id = "history", params(HistoryQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<HistoryQuery>,
) -> Result<Response, ApiError> {
    let query = by_subject(query);
    let subject = query.subject.clone().unwrap_or_default();
    let (frame, page) = viewer.listing(&state, Place::History, v1::history::list, query).await?;
    Ok(shown(&History { frame, subject, page }))
}

/// A runtime is a subject too, and the page has one field for both.
fn by_subject(mut query: HistoryQuery) -> HistoryQuery {
    if query.subject.is_none() {
        query.subject = query.runtime.take().map(|runtime| RuntimeName::stored(&runtime).subject());
    }
    query
}

//! `/history`: audit trail of all subjects and runtimes.

use axum::extract::State;
use axum::response::Response;
use domain::RuntimeName;
use pages::DashboardPage;
use pages::access::history::History;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::http::v1::access::history::HistoryQuery;
use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show the history of all objects, newest first.
#[utoipa::path(get, path = "/history", tag = "pages", operation_id = "history", params(HistoryQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<HistoryQuery>,
) -> Result<Response, ApiError> {
    let query = by_subject(query);
    let subject = query.subject.clone().unwrap_or_default();
    let (frame, page) = viewer.listing(&state, DashboardPage::History, v1::access::history::list, query).await?;
    Ok(render(&History { frame, subject, page }))
}

/// The page has one field for both subjects and runtimes; a runtime is a subject too.
fn by_subject(mut query: HistoryQuery) -> HistoryQuery {
    if query.subject.is_none() {
        query.subject = query.runtime.take().map(|runtime| RuntimeName::stored(&runtime).subject());
    }
    query
}

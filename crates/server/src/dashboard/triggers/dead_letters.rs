//! `/dead-letters`: permanently failed work.

use axum::extract::State;
use axum::response::Response;
use pages::DashboardPage;
use pages::triggers::dead_letters::{DeadLetterFilters, DeadLetters};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::triggers::dead_letter::DeadLetterQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List dead letters, newest first (default: unresolved only).
#[utoipa::path(get, path = "/dead-letters", tag = "pages", operation_id = "dead_letters", params(DeadLetterQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeadLetterQuery>,
) -> Result<Response, ApiError> {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    let filter = DeadLetterFilters {
        resolved: text(&query.resolved),
        source: text(&query.source),
        queue: text(&query.queue),
        kind: text(&query.kind),
        error_code: text(&query.error_code),
        job_id: text(&query.job_id),
        trigger_id: text(&query.trigger_id),
    };
    // A link to the dead letter of one job must show it even if it is resolved.
    let is_single_job = query.job_id.is_some();
    let resolved = query.resolved.clone().or_else(|| (!is_single_job).then(|| "false".to_owned()));
    let query = DeadLetterQuery { resolved, ..query };
    let (frame, page) =
        viewer.listing(&state, DashboardPage::DeadLetters, v1::triggers::dead_letters::list, query).await?;
    Ok(render(&DeadLetters { frame, filter, page }))
}

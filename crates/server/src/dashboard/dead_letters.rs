//! `/dead-letters`: what failed for good.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::dead_letters::{DeadLetters, Filter};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::dead_letter::DeadLetterQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Dead letters, newest first; those that wait for somebody unless asked otherwise.
#[utoipa::path(get, path = "/dead-letters", tag = "pages", operation_id = "dead_letters", params(DeadLetterQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeadLetterQuery>,
) -> Result<Response, ApiError> {
    let text = |member: &Option<String>| member.clone().unwrap_or_default();
    let filter = Filter {
        resolved: text(&query.resolved),
        source: text(&query.source),
        queue: text(&query.queue),
        kind: text(&query.kind),
        error_code: text(&query.error_code),
        job_id: text(&query.job_id),
        trigger_id: text(&query.trigger_id),
    };
    // A link to the letter of one job leads there, dealt with or not.
    let of_one_job = query.job_id.is_some();
    let resolved = query.resolved.clone().or_else(|| (!of_one_job).then(|| "false".to_owned()));
    let query = DeadLetterQuery { resolved, ..query };
    let (frame, page) = viewer.listing(&state, Place::DeadLetters, v1::dead_letters::list, query).await?;
    Ok(shown(&DeadLetters { frame, filter, page }))
}

//! `/queues`: how full and how quick they are, and what they are told.

use axum::extract::State;
use axum::response::Response;
use domain::Name;
use pages::Place;
use pages::queues::{Queue, Queues};
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

/// Queues, by name.
#[utoipa::path(get, path = "/queues", tag = "pages", operation_id = "queues", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let tenant = viewer.principal.tenant;
    let (frame, page) = viewer.listing(&state, Place::Queues, v1::queues::list, query).await?;
    let waits = state.store.waits(tenant).await?;
    let throughput = state.store.throughput(tenant).await?;
    let queue = |view: wire::QueueView| {
        let name = Name::stored(&view.name);
        let minutes = throughput.by_queue.get(&name).map(Vec::as_slice).unwrap_or_default();
        let ended = minutes.iter().map(|minute| minute.succeeded + minute.failed).collect();
        let wait = waits.get(&name);
        Queue { view, wait_p50_s: wait.map(|wait| wait.p50_s), wait_p95_s: wait.map(|wait| wait.p95_s), ended }
    };
    Ok(shown(&Queues { frame, queues: page.items.into_iter().map(queue).collect(), next_cursor: page.next_cursor }))
}

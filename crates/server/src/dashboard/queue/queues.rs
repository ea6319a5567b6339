//! `/queues`: depth, wait times and settings of every queue.

use axum::extract::State;
use axum::response::Response;
use domain::Name;
use pages::DashboardPage;
use pages::queue::queues::{QueueRow, Queues};
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

/// List queues by name.
#[utoipa::path(get, path = "/queues", tag = "pages", operation_id = "queues", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let tenant = viewer.principal.tenant;
    let (frame, page) = viewer.listing(&state, DashboardPage::Queues, v1::queue::queues::list, query).await?;
    let waits = state.store.waits(tenant).await?;
    let throughput = state.store.throughput(tenant).await?;
    let queue = |view: wire::QueueView| {
        let name = Name::stored(&view.name);
        let minutes = throughput.by_queue.get(&name).map(Vec::as_slice).unwrap_or_default();
        let ended = minutes.iter().map(|minute| minute.succeeded + minute.failed).collect();
        let wait = waits.get(&name);
        QueueRow { view, wait_p50_s: wait.map(|wait| wait.p50_s), wait_p95_s: wait.map(|wait| wait.p95_s), ended }
    };
    Ok(render(&Queues { frame, queues: page.items.into_iter().map(queue).collect(), next_cursor: page.next_cursor }))
}

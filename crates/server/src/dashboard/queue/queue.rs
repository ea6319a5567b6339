//! `/queues/{name}`: one queue.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::{OVERVIEW_WORKERS, PUSH_PAYLOAD_JOBS};
use pages::queue::push::PushForm;
use pages::queue::queue::QueuePage;
use pages::{Crumb, DashboardPage};
use store::queue::recent_ends::LaneFilter;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{JobView, WorkerView};

use crate::access::auth::Principal;
use crate::dashboard::frame::Viewer;
use crate::dashboard::queue::activity::{Period, RangeQuery, activity};
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::{Params, PathQueue};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::{JobQuery, PageQuery};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show one queue.
#[utoipa::path(get, path = "/queues/{name}", tag = "pages", operation_id = "queue", params(("name" = String, Path), RangeQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PathQueue(name): PathQueue,
    PageParams(query): PageParams<RangeQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let period = Period::new(&query, state.store.clock().now())?;
    let queue = v1::queue::queues::get(State(state.clone()), principal.clone(), PathQueue(name.clone())).await?.0;
    let counts = &queue.counts;
    let live = counts.waiting + counts.scheduled + counts.queued + counts.running;
    let filter = LaneFilter { queue: Some(name.to_string()), kind: None };
    let activity = activity(&state, principal, filter, &period, live).await?;
    let workers = match principal.may(&Method::GET, "/api/v1/workers") {
        true => Some(workers(&state, principal, name.as_str()).await?),
        false => None,
    };
    let frame =
        viewer.frame_below(&state, DashboardPage::Queues, name.as_str(), vec![Crumb::here(name.as_str())]).await?;
    let recent = match frame.can.enqueue {
        true => recent_jobs(&state, principal, Some(name.to_string())).await?,
        false => Vec::new(),
    };
    let kinds = activity.groups.iter().map(|group| group.name.clone()).collect();
    let push = PushForm::new(frame.can.enqueue, Some(queue.name.clone()), kinds, &recent);
    Ok(render(&QueuePage { frame, queue, activity, workers, push }))
}

/// The newest jobs. The form to push a job offers their payloads.
pub(crate) async fn recent_jobs(
    state: &AppState,
    principal: &Principal,
    queue: Option<String>,
) -> Result<Vec<JobView>, ApiError> {
    let query = JobQuery { queue, limit: Some(PUSH_PAYLOAD_JOBS.to_string()), ..JobQuery::default() };
    Ok(v1::queue::jobs::list(State(state.clone()), principal.clone(), Params(query)).await?.0.items)
}

async fn workers(state: &AppState, principal: &Principal, queue: &str) -> Result<Vec<WorkerView>, ApiError> {
    let query = PageQuery { limit: Some(OVERVIEW_WORKERS.to_string()), cursor: None };
    let listed = v1::queue::workers::list(State(state.clone()), principal.clone(), Params(query)).await?.0;
    let serves = |worker: &WorkerView| worker.queues.iter().any(|served| served == queue);
    Ok(listed.items.into_iter().filter(serves).collect())
}

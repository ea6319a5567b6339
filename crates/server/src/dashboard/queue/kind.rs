//! `/kinds/{name}`: one kind of work in all queues.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::{KIND_PAGE_FAILURES, KIND_PAGE_JOBS};
use pages::queue::kind::KindPage;
use pages::{Crumb, DashboardPage};
use store::queue::recent_ends::LaneFilter;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

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

/// Show one kind of work.
#[utoipa::path(get, path = "/kinds/{name}", tag = "pages", operation_id = "kind", params(("name" = String, Path), RangeQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PathQueue(kind): PathQueue,
    PageParams(query): PageParams<RangeQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let period = Period::new(&query, state.store.clock().now())?;
    let filter = LaneFilter { queue: None, kind: Some(kind.to_string()) };
    let activity = activity(&state, principal, filter, &period, 0).await?;
    if activity.groups.is_empty() {
        return Err(ApiError::not_found("kind"));
    }
    let newest =
        JobQuery { kind: Some(kind.to_string()), limit: Some(KIND_PAGE_JOBS.to_string()), ..JobQuery::default() };
    let jobs = v1::queue::jobs::list(State(state.clone()), principal.clone(), Params(newest)).await?.0.items;
    let failures = match principal.may(&Method::GET, "/api/v1/failures") {
        true => {
            let query = PageQuery { limit: Some(KIND_PAGE_FAILURES.to_string()), cursor: None };
            let listed = v1::signals::failures::list(State(state.clone()), principal.clone(), Params(query)).await?.0;
            Some(listed.items.into_iter().filter(|group| group.kind == kind.as_str()).collect())
        }
        false => None,
    };
    let frame =
        viewer.frame_below(&state, DashboardPage::Jobs, kind.as_str(), vec![Crumb::here(kind.as_str())]).await?;
    Ok(render(&KindPage { frame, kind: kind.to_string(), activity, jobs, failures }))
}

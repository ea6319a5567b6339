//! `/runtimes` and `/runtimes/{name}`: containers as they should be and as they are.

use axum::extract::State;
use axum::response::Response;
use domain::RuntimeName;
use domain::limits::HEALTH_STRIP;
use pages::Place;
use pages::runtimes::{RuntimePage, Runtimes, Watched};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::RuntimeHealth;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::{Params, PathRuntime};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// Runtimes by name.
#[utoipa::path(get, path = "/runtimes", tag = "pages", operation_id = "runtimes", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, Place::Runtimes, v1::runtimes::list, query).await?;
    let mut runtimes = Vec::with_capacity(page.items.len());
    for view in page.items {
        // One that was deleted since has no past to show.
        let past = past(&state, &viewer, RuntimeName::stored(&view.name)).await.unwrap_or_default();
        runtimes.push(Watched { view, past });
    }
    let nodes = v1::nodes::list(State(state.clone()), viewer.principal.clone()).await?.0.items;
    Ok(shown(&Runtimes { frame, runtimes, nodes, next_cursor: page.next_cursor }))
}

/// One runtime.
#[utoipa::path(get, path = "/runtimes/{name}", tag = "pages", operation_id = "runtime",
    params(("name" = String, Path), PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn one(
    State(state): State<AppState>,
    viewer: Viewer,
    PathRuntime(name): PathRuntime,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let of = || PathRuntime(name.clone());
    let view = v1::runtimes::get(State(state.clone()), principal.clone(), of()).await?.0;
    let past = past(&state, &viewer, name.clone()).await?;
    let operations = v1::runtimes::operations(State(state.clone()), principal.clone(), of(), Params(query)).await?.0;
    let frame = viewer.frame_of(&state, Place::Runtimes, &view.name).await?;
    Ok(shown(&RuntimePage { frame, runtime: Watched { view, past }, operations }))
}

/// The newest changes of a runtime's health.
async fn past(state: &AppState, viewer: &Viewer, name: RuntimeName) -> Result<Vec<RuntimeHealth>, ApiError> {
    let some = Params(PageQuery { limit: Some(HEALTH_STRIP.to_string()), cursor: None });
    let health = v1::runtimes::health(State(state.clone()), viewer.principal.clone(), PathRuntime(name), some).await?.0;
    Ok(health.items)
}

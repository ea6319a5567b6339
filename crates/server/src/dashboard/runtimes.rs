//! `/runtimes` and `/runtimes/{name}`: containers as they should be and as they are.

use axum::extract::State;
use axum::response::Response;
use domain::limits::HEALTH_STRIP;
use domain::{RuntimeName, TenantId};
use pages::Place;
use pages::runtimes::{RuntimePage, Runtimes, Watched};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{OperationView, RuntimeHealth};

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::{Params, PathRuntime};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

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
    let tenant = viewer.principal.tenant;
    let mut runtimes = Vec::with_capacity(page.items.len());
    for view in page.items {
        let name = RuntimeName::stored(&view.name);
        let past = past(&state, tenant, &name).await?;
        let last = last(&state, tenant, &name).await?;
        runtimes.push(Watched { view, past, last });
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
    let past = past(&state, principal.tenant, &name).await?;
    let from_the_newest = query.cursor.is_none();
    let operations = v1::runtimes::operations(State(state.clone()), principal.clone(), of(), Params(query)).await?.0;
    let frame = viewer.frame_of(&state, Place::Runtimes, &view.name).await?;
    let last = match from_the_newest {
        true => operations.items.first().cloned(),
        false => last(&state, principal.tenant, &name).await?,
    };
    Ok(shown(&RuntimePage { frame, runtime: Watched { view, past, last }, operations }))
}

/// What was done to a runtime last.
async fn last(state: &AppState, tenant: TenantId, name: &RuntimeName) -> Result<Option<OperationView>, ApiError> {
    let lines = state.store.list_operations(tenant, name, None, 1).await?;
    Ok(lines.into_iter().next().map(view::runtime::operation))
}

/// The newest changes of a runtime's health.
async fn past(state: &AppState, tenant: TenantId, name: &RuntimeName) -> Result<Vec<RuntimeHealth>, ApiError> {
    let past = state.store.health_history(tenant, name, None, HEALTH_STRIP).await?;
    Ok(past.into_iter().map(|past| view::runtime::health(past.observation)).collect())
}

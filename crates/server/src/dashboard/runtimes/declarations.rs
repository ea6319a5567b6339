//! `/runtimes` and `/runtimes/{name}`: desired and actual state of containers.

use axum::extract::State;
use axum::response::Response;
use domain::limits::HEALTH_STRIP_CHANGES;
use domain::{RuntimeName, TenantId};
use pages::DashboardPage;
use pages::runtimes::declarations::{RuntimePage, RuntimeWithHistory, Runtimes};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{OperationView, RuntimeHealth};

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::{Params, PathRuntime};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// List runtimes by name.
#[utoipa::path(get, path = "/runtimes", tag = "pages", operation_id = "runtimes", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) =
        viewer.listing(&state, DashboardPage::Runtimes, v1::runtimes::declarations::list, query).await?;
    let tenant = viewer.principal.tenant;
    let mut runtimes = Vec::with_capacity(page.items.len());
    for view in page.items {
        let name = RuntimeName::stored(&view.name);
        let past = past(&state, tenant, &name).await?;
        let last = last(&state, tenant, &name).await?;
        runtimes.push(RuntimeWithHistory { view, past, last });
    }
    let nodes = v1::runtimes::nodes::list(State(state.clone()), viewer.principal.clone()).await?.0.items;
    Ok(render(&Runtimes { frame, runtimes, nodes, next_cursor: page.next_cursor }))
}

/// Show one runtime.
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
    let path = || PathRuntime(name.clone());
    let view = v1::runtimes::declarations::get(State(state.clone()), principal.clone(), path()).await?.0;
    let past = past(&state, principal.tenant, &name).await?;
    let is_first_page = query.cursor.is_none();
    let operations =
        v1::runtimes::declarations::operations(State(state.clone()), principal.clone(), path(), Params(query)).await?.0;
    let frame = viewer.frame_of(&state, DashboardPage::Runtimes, &view.name).await?;
    let last = match is_first_page {
        true => operations.items.first().cloned(),
        false => last(&state, principal.tenant, &name).await?,
    };
    Ok(render(&RuntimePage { frame, runtime: RuntimeWithHistory { view, past, last }, operations }))
}

/// Returns the last operation on a runtime.
async fn last(state: &AppState, tenant: TenantId, name: &RuntimeName) -> Result<Option<OperationView>, ApiError> {
    let lines = state.store.list_operations(tenant, name, None, 1).await?;
    Ok(lines.into_iter().next().map(view::runtimes::operation))
}

/// Returns the newest health changes of a runtime.
async fn past(state: &AppState, tenant: TenantId, name: &RuntimeName) -> Result<Vec<RuntimeHealth>, ApiError> {
    let past = state.store.health_history(tenant, name, None, HEALTH_STRIP_CHANGES).await?;
    Ok(past.into_iter().map(|past| view::runtimes::health(past.observation)).collect())
}

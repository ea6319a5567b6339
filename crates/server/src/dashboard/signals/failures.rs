//! `/failures`: failed jobs, grouped by error.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::Response;
use pages::DashboardPage;
use pages::signals::failures::Failures;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::PathSignature;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List failure groups, last seen first.
#[utoipa::path(get, path = "/failures", tag = "pages", operation_id = "failures", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, DashboardPage::Failures, v1::signals::failures::list, query).await?;
    let mut signatures = HashMap::new();
    for id in page.items.iter().filter_map(|group| group.signature_id) {
        // A signature deleted meanwhile is omitted.
        let found =
            v1::signals::signatures::get(State(state.clone()), viewer.principal.clone(), PathSignature(id)).await;
        signatures.extend(found.ok().map(|signature| (id, signature.0)));
    }
    Ok(render(&Failures { frame, page, signatures }))
}

//! `/failures`: what fails, in groups.

use std::collections::HashMap;

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::failures::Failures;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::PathSignature;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Groups of failures, those seen last first.
#[utoipa::path(get, path = "/failures", tag = "pages", operation_id = "failures", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, Place::Failures, v1::failures::list, query).await?;
    let mut signatures = HashMap::new();
    for id in page.items.iter().filter_map(|group| group.signature_id) {
        // One that was deleted since is one that nobody has.
        let found = v1::signatures::get(State(state.clone()), viewer.principal.clone(), PathSignature(id)).await;
        signatures.extend(found.ok().map(|signature| (id, signature.0)));
    }
    Ok(shown(&Failures { frame, page, signatures }))
}

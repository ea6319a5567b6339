//! `/deliveries`: what is owed to others, and how it went.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::deliveries::Deliveries;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::DeliveryQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Deliveries, newest first.
#[utoipa::path(get, path = "/deliveries", tag = "pages", operation_id = "deliveries", params(DeliveryQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeliveryQuery>,
) -> Result<Response, ApiError> {
    let frame = viewer.frame(&state, Place::Deliveries, "Deliveries").await?;
    let (wanted, job) = (query.state.clone().unwrap_or_default(), query.job.clone().unwrap_or_default());
    let page = v1::deliveries::list(State(state), viewer.principal, Params(query)).await?.0;
    Ok(shown(&Deliveries { frame, state: wanted, job, page }))
}

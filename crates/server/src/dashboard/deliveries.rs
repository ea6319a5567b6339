//! `/deliveries` and `/deliveries/{id}`: what is owed to others, and how each attempt went.

use axum::extract::State;
use axum::response::Response;
use pages::Place;
use pages::deliveries::{Deliveries, DeliveryPage};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::PathDelivery;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::DeliveryQuery;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// Deliveries, newest first.
#[utoipa::path(get, path = "/deliveries", tag = "pages", operation_id = "deliveries", params(DeliveryQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeliveryQuery>,
) -> Result<Response, ApiError> {
    let (wanted, job) = (query.state.clone().unwrap_or_default(), query.job.clone().unwrap_or_default());
    let (frame, page) = viewer.listing(&state, Place::Deliveries, v1::deliveries::list, query).await?;
    Ok(shown(&Deliveries { frame, state: wanted, job, page }))
}

/// One delivery with every attempt.
#[utoipa::path(get, path = "/deliveries/{id}", tag = "pages", operation_id = "delivery", params(("id" = Uuid, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn one(
    State(state): State<AppState>,
    viewer: Viewer,
    PathDelivery(id): PathDelivery,
) -> Result<Response, ApiError> {
    let delivery = v1::deliveries::get(State(state.clone()), viewer.principal.clone(), PathDelivery(id)).await?.0;
    let title = format!("{} {} {id}", delivery.delivery.source, delivery.delivery.op);
    let frame = viewer.frame_of(&state, Place::Deliveries, &title).await?;
    Ok(shown(&DeliveryPage { frame, delivery }))
}

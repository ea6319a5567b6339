//! `/deliveries` and `/deliveries/{id}`: outgoing webhook deliveries and their attempts.

use axum::extract::State;
use axum::response::Response;
use pages::triggers::deliveries::{Deliveries, DeliveryPage};
use pages::{Crumb, DashboardPage, short};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::PathDelivery;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::DeliveryQuery;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// List deliveries, newest first.
#[utoipa::path(get, path = "/deliveries", tag = "pages", operation_id = "deliveries", params(DeliveryQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<DeliveryQuery>,
) -> Result<Response, ApiError> {
    let (wanted, job) = (query.state.clone().unwrap_or_default(), query.job.clone().unwrap_or_default());
    let (frame, page) =
        viewer.listing(&state, DashboardPage::Deliveries, v1::triggers::deliveries::list, query).await?;
    Ok(render(&Deliveries { frame, state: wanted, job, page }))
}

/// Show one delivery with every attempt.
#[utoipa::path(get, path = "/deliveries/{id}", tag = "pages", operation_id = "delivery", params(("id" = Uuid, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn one(
    State(state): State<AppState>,
    viewer: Viewer,
    PathDelivery(id): PathDelivery,
) -> Result<Response, ApiError> {
    let delivery =
        v1::triggers::deliveries::get(State(state.clone()), viewer.principal.clone(), PathDelivery(id)).await?.0;
    let title = format!("{} {} {id}", delivery.delivery.source, delivery.delivery.op);
    let here = format!("{} {} {}", delivery.delivery.source, delivery.delivery.op, short(&id.uuid()));
    let frame = viewer.frame_below(&state, DashboardPage::Deliveries, &title, vec![Crumb::here(here)]).await?;
    Ok(render(&DeliveryPage { frame, delivery }))
}

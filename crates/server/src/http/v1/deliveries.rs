//! Deliveries: what was sent to whom, with every attempt, and sending it again (Q10).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::{DeliveryId, JobId, Right};
use engine::outbound::sign;
use store::StoreError;
use store::deliveries::DeliveryState;
use store::deliveries::list::{Delivery, DeliveryAttempt, DeliveryFilter, WholeDelivery};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{DeliveryAttemptView, DeliveryDetails, DeliveryView, Page};

use crate::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{Params, PathDelivery};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{DeliveryQuery, limit};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(redeliver))
}

/// Lists deliveries, newest first.
#[utoipa::path(get, path = "/api/v1/deliveries", tag = "deliveries", params(DeliveryQuery),
    responses((status = 200, body = Page<DeliveryView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<DeliveryQuery>,
) -> Result<Json<Page<DeliveryView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::delivery(query.cursor.as_deref())?;
    let found = state.store.list_deliveries(principal.tenant, filter(&query)?, before, limit + 1).await?;
    let found = page(found, limit, |last| cursor::after_delivery(last.seq));
    Ok(Json(found.map(|found| delivery(&principal, found))))
}

fn filter(query: &DeliveryQuery) -> Result<DeliveryFilter, ApiError> {
    let state = |text: &String| {
        DeliveryState::parse(text).ok_or_else(|| {
            let all: Vec<&str> = DeliveryState::ALL.iter().map(|state| state.as_str()).collect();
            ApiError::invalid_query("state", format_args!("state must be one of {}", all.join(", ")))
        })
    };
    let job = |text: &String| {
        let id: Option<Uuid> = text.parse().ok();
        id.map(JobId::new).ok_or_else(|| ApiError::invalid_query("job", "job must be the id of a job"))
    };
    Ok(DeliveryFilter {
        state: query.state.as_ref().map(state).transpose()?,
        job: query.job.as_ref().map(job).transpose()?,
    })
}

/// One delivery with what is sent and every attempt.
#[utoipa::path(get, path = "/api/v1/deliveries/{id}", tag = "deliveries", params(("id" = Uuid, Path)),
    responses((status = 200, body = DeliveryDetails)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathDelivery(id): PathDelivery,
) -> Result<Json<DeliveryDetails>, ApiError> {
    let found = state.store.delivery(principal.tenant, id).await?;
    Ok(Json(details(&principal, found.ok_or_else(|| ApiError::not_found("delivery"))?)?))
}

/// Sends a delivery again, at once, under the same id. One that is under way is left alone.
#[utoipa::path(post, path = "/api/v1/deliveries/{id}/redeliver", tag = "deliveries", params(("id" = Uuid, Path)),
    responses((status = 202, body = DeliveryDetails)))]
async fn redeliver(
    State(state): State<AppState>,
    principal: Principal,
    PathDelivery(id): PathDelivery,
) -> Result<(StatusCode, Json<DeliveryDetails>), ApiError> {
    let found = state.store.redeliver(principal.tenant, id, principal.name.to_string()).await?;
    let found = found.ok_or_else(|| ApiError::not_found("delivery"))?;
    Ok((StatusCode::ACCEPTED, Json(details(&principal, found)?)))
}

fn delivery(principal: &Principal, delivery: Delivery) -> DeliveryView {
    DeliveryView {
        id: delivery.id.uuid(),
        message_id: sign::message_id(DeliveryId::new(delivery.id.uuid())),
        state: delivery.state.as_str().into(),
        source: delivery.source,
        op: delivery.op,
        job_id: delivery.job.map(JobId::uuid),
        trigger_id: delivery.trigger,
        event_id: delivery.event,
        url: view::url(delivery.url, principal),
        method: delivery.method,
        attempt: delivery.attempt.into(),
        max_attempts: delivery.max_attempts.into(),
        status: delivery.status,
        error: delivery.error,
        created_at: view::time(delivery.created_at),
        next_attempt_at: delivery.due_at.map(view::time),
        circuit_open_until: delivery.circuit_open_until.map(view::time),
        ended_at: delivery.ended_at.map(view::time),
    }
}

/// The body carries the job's result: without the right to results it is `null`, and so is what the receiver said to it.
fn details(principal: &Principal, whole: WholeDelivery) -> Result<DeliveryDetails, StoreError> {
    let reads = principal.has(Right::ReadResults);
    let attempt = |attempt: DeliveryAttempt| DeliveryAttemptView {
        attempt: attempt.attempt.into(),
        at: view::time(attempt.at),
        duration_ms: attempt.duration_ms,
        status: attempt.status,
        error: attempt.error,
        response: attempt.response.filter(|_| reads),
    };
    Ok(DeliveryDetails {
        delivery: delivery(principal, whole.delivery),
        body: view::raw(if reads { whole.body } else { "null".into() })?,
        attempts: whole.attempts.into_iter().map(attempt).collect(),
    })
}

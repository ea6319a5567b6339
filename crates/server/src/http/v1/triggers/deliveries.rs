//! Deliveries: outgoing webhook requests and their attempts, and redelivery.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::triggers::trigger::Source;
use domain::{DeliveryId, JobId, Right};
use engine::outbound::sign;
use store::StoreError;
use store::triggers::deliveries::DeliveryState;
use store::triggers::deliveries::list::{Delivery, DeliveryAttempt, DeliveryFilter, WholeDelivery};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{DeliveryAttemptView, DeliveryDetails, DeliveryView, Page};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{Params, PathDelivery};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{DeliveryQuery, limit};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(redeliver))
}

/// List deliveries, newest first.
#[utoipa::path(get, path = "/api/v1/deliveries", tag = "deliveries", params(DeliveryQuery),
    responses((status = 200, body = Page<DeliveryView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<DeliveryQuery>,
) -> Result<Json<Page<DeliveryView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::delivery(query.cursor.as_deref())?;
    let deliveries = state.store.list_deliveries(principal.tenant, filter(&query)?, before, limit + 1).await?;
    let deliveries = page(deliveries, limit, |last| cursor::after_delivery(last.seq));
    Ok(Json(deliveries.map(|deliveries| delivery(&principal, deliveries))))
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

/// Get a delivery with its body and every attempt.
///
/// The body and the responses require the right to read payloads.
#[utoipa::path(get, path = "/api/v1/deliveries/{id}", tag = "deliveries", params(("id" = Uuid, Path)),
    responses((status = 200, body = DeliveryDetails)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathDelivery(id): PathDelivery,
) -> Result<Json<DeliveryDetails>, ApiError> {
    let deliveries = state.store.delivery(principal.tenant, id).await?;
    Ok(Json(details(&principal, deliveries.ok_or_else(|| ApiError::not_found("delivery"))?)?))
}

/// Redeliver at once, under the same message id.
///
/// A delivery that is being attempted right now is not changed.
#[utoipa::path(post, path = "/api/v1/deliveries/{id}/redeliver", tag = "deliveries", params(("id" = Uuid, Path)),
    responses((status = 202, body = DeliveryDetails)))]
async fn redeliver(
    State(state): State<AppState>,
    principal: Principal,
    PathDelivery(id): PathDelivery,
) -> Result<(StatusCode, Json<DeliveryDetails>), ApiError> {
    let deliveries = state.store.redeliver(principal.tenant, id, principal.name.to_string()).await?;
    let deliveries = deliveries.ok_or_else(|| ApiError::not_found("delivery"))?;
    Ok((StatusCode::ACCEPTED, Json(details(&principal, deliveries)?)))
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

/// The body contains a job's result, or the data of another event, which counts as a payload. Without the right to read
/// it, the body and the receiver's response are hidden.
fn details(principal: &Principal, whole: WholeDelivery) -> Result<DeliveryDetails, StoreError> {
    let can_read = match Source::parse(&whole.delivery.source) {
        Some(Source::Job) => principal.has(Right::ReadResults),
        Some(Source::DeadLetter) => principal.has(Right::ReadResults) && principal.has(Right::ReadPayloads),
        _ => principal.has(Right::ReadPayloads),
    };
    let attempt = |attempt: DeliveryAttempt| DeliveryAttemptView {
        attempt: attempt.attempt.into(),
        at: view::time(attempt.at),
        duration_ms: attempt.duration_ms,
        status: attempt.status,
        error: attempt.error,
        response: attempt.response.filter(|_| can_read),
    };
    Ok(DeliveryDetails {
        delivery: delivery(principal, whole.delivery),
        body: view::raw(if can_read { whole.body } else { "null".into() })?,
        attempts: whole.attempts.into_iter().map(attempt).collect(),
    })
}

//! Queues: settings, counts, pause and resume (Q12).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use domain::Name;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, PauseRequest, QueueSettings, QueueView};

use crate::auth::Principal;
use crate::cursor;
use crate::depth::caller;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathQueue};
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::queue::{reason, settings};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put)).routes(routes!(pause)).routes(routes!(resume))
}

/// Lists queues by name.
#[utoipa::path(get, path = "/queues", tag = "queues", params(PageQuery), responses((status = 200, body = Page<QueueView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<QueueView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::queue(query.cursor.as_deref())?;
    let mut queues = state.store.list_queues(principal.tenant, after, limit + 1).await?;
    let more = queues.len() > limit;
    queues.truncate(limit);
    let next_cursor = queues.last().filter(|_| more).map(|last| cursor::after_queue(&last.name));
    queues.retain(|queue| principal.reaches(&queue.name));
    Ok(Json(Page { items: queues.into_iter().map(view::queue).collect(), next_cursor, partial: false }))
}

/// One queue. It exists once it was told something or has had a job.
#[utoipa::path(get, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)),
    responses((status = 200, body = QueueView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
) -> Result<Json<QueueView>, ApiError> {
    principal.check_queue(&name)?;
    answer(&state, &principal, &name).await
}

/// Tells a queue what to do. What is left out goes back to its default.
#[utoipa::path(put, path = "/queues/{name}", tag = "queues", params(("name" = String, Path)),
    request_body = QueueSettings, responses((status = 200, body = QueueView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathQueue(name): PathQueue,
    JsonBody(request): JsonBody<QueueSettings>,
) -> Result<Json<QueueView>, ApiError> {
    principal.check_queue(&name)?;
    let by = caller(&principal, &headers)?;
    state.store.put_queue(principal.tenant, name.clone(), settings(request)?, by).await?;
    answer(&state, &principal, &name).await
}

/// Stops a queue from handing out jobs.
#[utoipa::path(post, path = "/queues/{name}/pause", tag = "queues", params(("name" = String, Path)),
    request_body = Option<PauseRequest>, responses((status = 200, body = QueueView)))]
async fn pause(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathQueue(name): PathQueue,
    OptionalJson(request): OptionalJson<PauseRequest>,
) -> Result<Json<QueueView>, ApiError> {
    let reason = reason(request.reason)?;
    principal.check_queue(&name)?;
    let by = caller(&principal, &headers)?;
    state.store.pause_queue(principal.tenant, name.clone(), by, reason).await?;
    answer(&state, &principal, &name).await
}

/// Lets a paused queue go on.
#[utoipa::path(post, path = "/queues/{name}/resume", tag = "queues", params(("name" = String, Path)),
    responses((status = 200, body = QueueView)))]
async fn resume(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathQueue(name): PathQueue,
) -> Result<Json<QueueView>, ApiError> {
    principal.check_queue(&name)?;
    let by = caller(&principal, &headers)?;
    state.store.resume_queue(principal.tenant, name.clone(), by).await?;
    answer(&state, &principal, &name).await
}

async fn answer(state: &AppState, principal: &Principal, name: &Name) -> Result<Json<QueueView>, ApiError> {
    let queue = state.store.queue(principal.tenant, name).await?;
    Ok(Json(view::queue(queue.ok_or_else(|| ApiError::not_found("queue"))?)))
}

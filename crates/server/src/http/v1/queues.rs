//! Queues: settings, counts, pause and resume (Q12).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use domain::{Name, Right, Webhook};
use store::queues::get::Queue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, PauseRequest, QueueSettings, QueueView};

use crate::auth::Principal;
use crate::cursor;
use crate::depth::caller;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathQueue};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::queue::{reason, settings};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put)).routes(routes!(pause)).routes(routes!(resume))
}

/// Lists queues by name.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues", params(PageQuery), responses((status = 200, body = Page<QueueView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<QueueView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::queue(query.cursor.as_deref())?;
    let queues = reached(&state, &principal, after, limit + 1).await?;
    let queues = page(queues, limit, |last| cursor::after_queue(&last.name));
    Ok(Json(queues.map(|queue| view::queue(queue, &principal))))
}

/// A token that is narrowed to queues is told of those alone: what follows them is none of its business.
async fn reached(
    state: &AppState,
    principal: &Principal,
    after: Option<Name>,
    most: usize,
) -> Result<Vec<Queue>, ApiError> {
    let Some(own) = principal.queues() else {
        return Ok(state.store.list_queues(principal.tenant, after, most).await?);
    };
    let mut names: Vec<&Name> = own.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after)).collect();
    names.sort_unstable();
    names.dedup();
    let mut queues = Vec::new();
    for name in names {
        if queues.len() == most {
            break;
        }
        queues.extend(state.store.queue(principal.tenant, name).await?);
    }
    Ok(queues)
}

/// One queue. It exists once it was told something or has had a job.
#[utoipa::path(get, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)),
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
#[utoipa::path(put, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)),
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
    let mut settings = settings(request)?;
    if let Some(webhook) = &mut settings.webhook {
        keep_url(&state, &principal, &name, webhook).await?;
    }
    state.store.put_queue(principal.tenant, name.clone(), settings, by).await?;
    answer(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

/// Stops a queue from handing out jobs.
#[utoipa::path(post, path = "/api/v1/queues/{name}/pause", tag = "queues", params(("name" = String, Path)),
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
    answer(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

/// Lets a paused queue go on.
#[utoipa::path(post, path = "/api/v1/queues/{name}/resume", tag = "queues", params(("name" = String, Path)),
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
    answer(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

async fn answer(state: &AppState, principal: &Principal, name: &Name) -> Result<Json<QueueView>, ApiError> {
    let queue = state.store.queue(principal.tenant, name).await?;
    Ok(Json(view::queue(queue.ok_or_else(|| ApiError::not_found("queue"))?, principal)))
}

/// Whoever was shown a part of the URL and sends that back means the whole.
async fn keep_url(state: &AppState, principal: &Principal, name: &Name, webhook: &mut Webhook) -> Result<(), ApiError> {
    if principal.has(Right::ReadPayloads) {
        return Ok(());
    }
    let queue = state.store.queue(principal.tenant, name).await?;
    let before = queue.and_then(|queue| queue.settings.webhook);
    if let Some(before) = before.filter(|before| view::url(before.url.clone(), principal) == webhook.url) {
        webhook.url = before.url;
    }
    Ok(())
}

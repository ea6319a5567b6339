//! Queues: settings, counters, pause and resume.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::{Name, Webhook};
use store::queue::queues::delete::QueueDeletion;
use store::queue::queues::get::Queue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, PauseRequest, PruneRequest, PruneView, QueueSettings, QueueView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathQueue};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth::caller;
use crate::validate::query::{PageQuery, limit};
use crate::validate::queue::settings::{older_than_s, reason, settings};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
        .routes(routes!(pause))
        .routes(routes!(resume))
        .routes(routes!(prune))
}

/// List queues by name.
#[utoipa::path(get, path = "/api/v1/queues", tag = "queues", params(PageQuery), responses((status = 200, body = Page<QueueView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<QueueView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::queue(query.cursor.as_deref())?;
    let queues = reachable_queues(&state, &principal, after, limit + 1).await?;
    let queues = page(queues, limit, |last| cursor::after_queue(&last.name));
    Ok(Json(queues.map(|queue| view::queue(queue, &principal))))
}

/// Lists queues. A token restricted to queues gets only those.
async fn reachable_queues(
    state: &AppState,
    principal: &Principal,
    after: Option<Name>,
    limit: usize,
) -> Result<Vec<Queue>, ApiError> {
    let Some(allowed) = principal.queues() else {
        return Ok(state.store.list_queues(principal.tenant, after, limit).await?);
    };
    let mut names: Vec<&Name> =
        allowed.iter().filter(|name| after.as_ref().is_none_or(|after| *name > after)).collect();
    names.sort_unstable();
    names.dedup();
    let mut queues = Vec::new();
    for name in names {
        if queues.len() == limit {
            break;
        }
        queues.extend(state.store.queue(principal.tenant, name).await?);
    }
    Ok(queues)
}

/// Get a queue.
///
/// A queue exists once it was configured or has had a job.
#[utoipa::path(get, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)),
    responses((status = 200, body = QueueView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
) -> Result<Json<QueueView>, ApiError> {
    principal.check_queue(&name)?;
    current_view(&state, &principal, &name).await
}

/// Create or replace the settings of a queue.
///
/// Idempotent. Omitted settings return to their defaults. Returns 403 for a new webhook if the caller may not read what
/// it receives: results and errors.
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
        authorize_webhook(&state, &principal, &name, webhook).await?;
    }
    state.store.put_queue(principal.tenant, name.clone(), settings, by).await?;
    current_view(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

/// Delete a queue without jobs: its settings, its pause and its counters.
///
/// Returns 409 while the queue has jobs: cancel unfinished ones and prune ended ones first. A later job creates the queue
/// again with default settings.
#[utoipa::path(delete, path = "/api/v1/queues/{name}", tag = "queues", params(("name" = String, Path)),
    responses((status = 204), (status = 409, description = "The queue has jobs")))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathQueue(name): PathQueue,
) -> Result<StatusCode, ApiError> {
    principal.check_queue(&name)?;
    let by = caller(&principal, &headers)?;
    match state.store.delete_queue(principal.tenant, name.clone(), by).await? {
        QueueDeletion::Deleted => Ok(StatusCode::NO_CONTENT),
        QueueDeletion::NotFound => Err(ApiError::not_found("queue")),
        QueueDeletion::HasJobs => Err(ApiError::queue_has_jobs(&name)),
    }
}

/// Pause a queue: its jobs are not claimed until it is resumed.
///
/// Idempotent. Running jobs continue.
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
    current_view(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

/// Resume a paused queue.
///
/// Idempotent.
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
    current_view(&state, &principal, &name).await.map_err(ApiError::after_a_change)
}

/// Delete ended jobs of a queue now, with their artifacts.
///
/// Deletes the jobs that ended at least `older_than_s` seconds ago; without it, those past the queue's retention. Their
/// history is kept. A request deletes a bounded number of jobs: repeat it while `more` is true.
#[utoipa::path(post, path = "/api/v1/queues/{name}/prune", tag = "queues", params(("name" = String, Path)),
    request_body = Option<PruneRequest>, responses((status = 200, body = PruneView)))]
async fn prune(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
    OptionalJson(request): OptionalJson<PruneRequest>,
) -> Result<Json<PruneView>, ApiError> {
    principal.check_queue(&name)?;
    let older_than_s = older_than_s(request)?;
    let (pruned, more) = state.store.prune_queue(principal.tenant, name, older_than_s).await?;
    Ok(Json(PruneView { pruned, more }))
}

async fn current_view(state: &AppState, principal: &Principal, name: &Name) -> Result<Json<QueueView>, ApiError> {
    let queue = state.store.queue(principal.tenant, name).await?;
    Ok(Json(view::queue(queue.ok_or_else(|| ApiError::not_found("queue"))?, principal)))
}

/// Returns 403 if the webhook is new and the caller may not read what it receives.
///
/// Anyone who may change the queue may write the current webhook back. A caller that was shown only its origin sends
/// that: the full URL is restored.
async fn authorize_webhook(
    state: &AppState,
    principal: &Principal,
    name: &Name,
    webhook: &mut Webhook,
) -> Result<(), ApiError> {
    let Err(refusal) = principal.check_webhook(name) else {
        return restore_url(state, principal, name, webhook).await.map(drop);
    };
    if restore_url(state, principal, name, webhook).await? { Ok(()) } else { Err(refusal) }
}

/// Replaces the URL by the stored one if the caller was shown it in this form. Returns true if the webhook has the
/// stored URL.
async fn restore_url(
    state: &AppState,
    principal: &Principal,
    name: &Name,
    webhook: &mut Webhook,
) -> Result<bool, ApiError> {
    let queue = state.store.queue(principal.tenant, name).await?;
    let stored = queue.and_then(|queue| queue.settings.webhook);
    let Some(stored) = stored.filter(|stored| view::url(stored.url.clone(), principal) == webhook.url) else {
        return Ok(false);
    };
    webhook.url = stored.url;
    Ok(true)
}

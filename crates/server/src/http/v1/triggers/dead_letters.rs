//! Dead letters: list, count, inspect, resolve and replay.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::limits::REPLAY_DEAD_LETTERS;
use domain::{DeadLetterId, Resolution};
use store::triggers::dead_letters::replay::{DeadLetterReplay, ReplayedWork};
use store::triggers::dead_letters::resolve::Resolve;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    CountView, DeadLetterView, Page, ReplayManyRequest, ReplayManyView, ReplayRequest, ReplayView, ResolveRequest,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathDeadLetter};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth::caller;
use crate::validate::FieldPath;
use crate::validate::query::limit;
use crate::validate::queue::job::JobBuilder;
use crate::validate::triggers::dead_letter::{CountQuery, DeadLetterQuery, filter, note, resolution};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(count))
        .routes(routes!(replay_many))
        .routes(routes!(get))
        .routes(routes!(replay))
        .routes(routes!(resolve))
}

/// List dead letters, newest first.
#[utoipa::path(get, path = "/api/v1/dead-letters", tag = "dead_letters", params(DeadLetterQuery),
    responses((status = 200, body = Page<DeadLetterView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<DeadLetterQuery>,
) -> Result<Json<Page<DeadLetterView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::dead_letter(query.cursor.as_deref())?;
    let letters = state.store.list_dead_letters(principal.tenant, query.filter()?, before, limit + 1).await?;
    let letters = page(letters, limit, |last| cursor::after_dead_letter(last.id));
    Ok(Json(letters.try_map(|letter| view::dead_letter(letter, &principal))?))
}

/// Count matching dead letters, up to 10000.
///
/// Use it to check a filter before a replay. `capped` is true if there are more.
#[utoipa::path(get, path = "/api/v1/dead-letters/count", tag = "dead_letters", params(CountQuery),
    responses((status = 200, body = CountView)))]
async fn count(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<CountQuery>,
) -> Result<Json<CountView>, ApiError> {
    let count = state.store.count_dead_letters(principal.tenant, query.filter()?).await?;
    Ok(Json(CountView { count: count.count, capped: count.capped }))
}

/// Get a dead letter with every attempt.
///
/// The payload requires the right to read payloads.
#[utoipa::path(get, path = "/api/v1/dead-letters/{id}", tag = "dead_letters", params(("id" = Uuid, Path)),
    responses((status = 200, body = DeadLetterView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathDeadLetter(id): PathDeadLetter,
) -> Result<Json<DeadLetterView>, ApiError> {
    current_view(&state, &principal, id).await
}

async fn current_view(
    state: &AppState,
    principal: &Principal,
    id: DeadLetterId,
) -> Result<Json<DeadLetterView>, ApiError> {
    let letter = state.store.dead_letter(principal.tenant, id).await?;
    Ok(Json(view::dead_letter(letter.ok_or_else(not_found)?, principal)?))
}

fn not_found() -> ApiError {
    ApiError::not_found("dead letter")
}

/// Replay a dead letter, with its own payload or another one.
///
/// Idempotent. A second request with a different payload returns 409.
#[utoipa::path(post, path = "/api/v1/dead-letters/{id}/replay", tag = "dead_letters", params(("id" = Uuid, Path)),
    request_body = Option<ReplayRequest>,
    responses((status = 202, body = ReplayView), (status = 200, body = ReplayView, description = "The dead letter was already replayed"),
        (status = 409, description = "The dead letter is resolved, cannot be replayed, or was replayed with a different payload")))]
async fn replay(
    State(state): State<AppState>,
    principal: Principal,
    PathDeadLetter(id): PathDeadLetter,
    headers: HeaderMap,
    OptionalJson(request): OptionalJson<ReplayRequest>,
) -> Result<(StatusCode, Json<ReplayView>), ApiError> {
    let by = caller(&principal, &headers)?;
    let builder = JobBuilder {
        principal: principal.name.clone(),
        payload_bytes: state.options.payload_bytes,
        now: state.store.clock().now(),
        depth: by.depth,
        traceparent: None,
    };
    let payload = request.payload.map(|payload| builder.payload(FieldPath::Body, Some(payload))).transpose()?;
    let replayed = state.store.replay_dead_letter(principal.tenant, id, payload, by).await?;
    let (status, work) = match replayed {
        DeadLetterReplay::Created(work) => (StatusCode::ACCEPTED, work),
        DeadLetterReplay::AlreadyReplayed(work) => (StatusCode::OK, work),
        DeadLetterReplay::OtherPayload(work) => return Err(ApiError::already_retried("dead letter", describe(work))),
        DeadLetterReplay::AlreadyResolved(resolution) => return Err(ApiError::already_resolved(resolution)),
        DeadLetterReplay::NotReplayable => return Err(ApiError::not_replayable()),
        DeadLetterReplay::NotFound => return Err(not_found()),
    };
    Ok((status, Json(view::replay(work))))
}

fn describe(work: ReplayedWork) -> String {
    match work {
        ReplayedWork::Job(id) => format!("job {id}"),
        ReplayedWork::Event(id) => format!("event {id}"),
        ReplayedWork::Delivery(id) => format!("delivery {id}"),
    }
}

/// Replay many dead letters: by their ids, or every unresolved one that matches a filter.
///
/// With `dry_run`, only counts them. Idempotent per dead letter.
#[utoipa::path(post, path = "/api/v1/dead-letters/replay", tag = "dead_letters", request_body = ReplayManyRequest,
    responses((status = 202, body = ReplayManyView), (status = 200, body = ReplayManyView, description = "Dry run: nothing was replayed")))]
async fn replay_many(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReplayManyRequest>,
) -> Result<(StatusCode, Json<ReplayManyView>), ApiError> {
    let by = caller(&principal, &headers)?;
    let letters: Vec<DeadLetterId> = match (request.ids, request.filter) {
        (Some(ids), None) => {
            FieldPath::Body.at_most("ids", ids.len(), REPLAY_DEAD_LETTERS, "ids")?;
            let mut ids: Vec<DeadLetterId> = ids.into_iter().map(DeadLetterId::new).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        }
        (None, Some(wanted)) => state.store.dead_letters_to_replay(principal.tenant, filter(wanted)?).await?,
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid_field("filter", "cannot be combined with ids; send one of them"));
        }
        (None, None) => return Err(ApiError::invalid_field("ids", "or filter is required")),
    };
    let mut result = ReplayManyView { matched: letters.len(), ..ReplayManyView::default() };
    if request.dry_run == Some(true) {
        return Ok((StatusCode::OK, Json(ReplayManyView { dry_run: true, ..result })));
    }
    for letter in letters {
        let replayed = state.store.replay_dead_letter(principal.tenant, letter, None, by.clone()).await;
        let failed = |error| match result.replayed {
            0 => ApiError::from(error),
            _ => ApiError::from(error).after_a_change(),
        };
        match replayed.map_err(failed)? {
            DeadLetterReplay::Created(_) => result.replayed += 1,
            DeadLetterReplay::AlreadyReplayed(_)
            | DeadLetterReplay::OtherPayload(_)
            | DeadLetterReplay::AlreadyResolved(_) => result.already_resolved += 1,
            DeadLetterReplay::NotReplayable => result.not_replayable += 1,
            DeadLetterReplay::NotFound => result.not_found += 1,
        }
    }
    result.matched -= result.not_found;
    Ok((StatusCode::ACCEPTED, Json(result)))
}

/// Resolve a dead letter without a replay.
///
/// Returns 409 if it is already resolved.
#[utoipa::path(post, path = "/api/v1/dead-letters/{id}/resolve", tag = "dead_letters", params(("id" = Uuid, Path)),
    request_body = ResolveRequest, responses((status = 200, body = DeadLetterView)))]
async fn resolve(
    State(state): State<AppState>,
    principal: Principal,
    PathDeadLetter(id): PathDeadLetter,
    JsonBody(request): JsonBody<ResolveRequest>,
) -> Result<Json<DeadLetterView>, ApiError> {
    let resolution: Resolution = resolution(&request.resolution)?;
    let note = note(request.note)?;
    let by = principal.name.to_string();
    match state.store.resolve_dead_letter(principal.tenant, id, resolution, by, note).await? {
        Resolve::Done => current_view(&state, &principal, id).await.map_err(ApiError::after_a_change),
        Resolve::AlreadyResolved(before) => Err(ApiError::already_resolved(before)),
        Resolve::NotFound => Err(not_found()),
    }
}

//! Dead letters: look, count, resolve, and play again, one or many (T6–T9).

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::limits::REPLAY_LETTERS;
use domain::{DeadLetterId, Resolution};
use store::dead_letters::replay::{Replayed, Work};
use store::dead_letters::resolve::Resolve;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    CountView, DeadLetterView, Page, ReplayManyRequest, ReplayManyView, ReplayRequest, ReplayView, ResolveRequest,
};

use crate::auth::Principal;
use crate::cursor;
use crate::depth::caller;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathDeadLetter};
use crate::page::page;
use crate::state::AppState;
use crate::validate::Place;
use crate::validate::dead_letter::{CountQuery, DeadLetterQuery, filter, note, resolution};
use crate::validate::job::Maker;
use crate::validate::query::limit;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(count))
        .routes(routes!(replay_many))
        .routes(routes!(get))
        .routes(routes!(replay))
        .routes(routes!(resolve))
}

/// Lists dead letters, newest first.
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

/// How many dead letters match, counted up to ten thousand.
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

/// One dead letter with every attempt.
#[utoipa::path(get, path = "/api/v1/dead-letters/{id}", tag = "dead_letters", params(("id" = Uuid, Path)),
    responses((status = 200, body = DeadLetterView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathDeadLetter(id): PathDeadLetter,
) -> Result<Json<DeadLetterView>, ApiError> {
    answer(&state, &principal, id).await
}

async fn answer(state: &AppState, principal: &Principal, id: DeadLetterId) -> Result<Json<DeadLetterView>, ApiError> {
    let letter = state.store.dead_letter(principal.tenant, id).await?;
    Ok(Json(view::dead_letter(letter.ok_or_else(not_found)?, principal)?))
}

fn not_found() -> ApiError {
    ApiError::not_found("dead letter")
}

/// Makes new work of a dead letter, with its own payload or another. Twice is once; a second time with another payload is
/// refused.
#[utoipa::path(post, path = "/api/v1/dead-letters/{id}/replay", tag = "dead_letters", params(("id" = Uuid, Path)),
    request_body = Option<ReplayRequest>,
    responses((status = 202, body = ReplayView), (status = 200, body = ReplayView, description = "it was replayed before"),
        (status = 409, description = "it was replayed before with another payload")))]
async fn replay(
    State(state): State<AppState>,
    principal: Principal,
    PathDeadLetter(id): PathDeadLetter,
    headers: HeaderMap,
    OptionalJson(request): OptionalJson<ReplayRequest>,
) -> Result<(StatusCode, Json<ReplayView>), ApiError> {
    let by = caller(&principal, &headers)?;
    let maker = Maker {
        principal: principal.name.clone(),
        payload_bytes: state.options.payload_bytes,
        now: state.store.clock().now(),
        depth: by.depth,
    };
    let payload = request.payload.map(|payload| maker.payload(Place::Body, Some(payload))).transpose()?;
    let replayed = state.store.replay_dead_letter(principal.tenant, id, payload, by).await?;
    let (status, work) = match replayed {
        Replayed::Made(work) => (StatusCode::ACCEPTED, work),
        Replayed::Before(work) => (StatusCode::OK, work),
        Replayed::Otherwise(work) => return Err(ApiError::already_retried("dead letter", named(work))),
        Replayed::AlreadyResolved(resolution) => return Err(ApiError::already_resolved(resolution)),
        Replayed::NotReplayable => return Err(ApiError::not_replayable()),
        Replayed::NotFound => return Err(not_found()),
    };
    Ok((status, Json(view::replay(work))))
}

fn named(work: Work) -> String {
    match work {
        Work::Job(id) => format!("job {id}"),
        Work::Event(id) => format!("event {id}"),
        Work::Delivery(id) => format!("delivery {id}"),
    }
}

/// Plays many letters again: by their ids, or all unresolved ones that match. With `dry_run`, only counts them.
#[utoipa::path(post, path = "/api/v1/dead-letters/replay", tag = "dead_letters", request_body = ReplayManyRequest,
    responses((status = 202, body = ReplayManyView), (status = 200, body = ReplayManyView, description = "a dry run")))]
async fn replay_many(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<ReplayManyRequest>,
) -> Result<(StatusCode, Json<ReplayManyView>), ApiError> {
    let by = caller(&principal, &headers)?;
    let letters: Vec<DeadLetterId> = match (request.ids, request.filter) {
        (Some(ids), None) => {
            Place::Body.at_most("ids", ids.len(), REPLAY_LETTERS, "ids")?;
            let mut ids: Vec<DeadLetterId> = ids.into_iter().map(DeadLetterId::new).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        }
        (None, Some(wanted)) => state.store.dead_letters_to_replay(principal.tenant, filter(wanted)?).await?,
        (Some(_), Some(_)) => return Err(ApiError::invalid_field("filter", "cannot go with ids; keep one of the two")),
        (None, None) => return Err(ApiError::invalid_field("ids", "or filter must say which letters to replay")),
    };
    let mut told = ReplayManyView { matched: letters.len(), ..ReplayManyView::default() };
    if request.dry_run == Some(true) {
        return Ok((StatusCode::OK, Json(ReplayManyView { dry_run: true, ..told })));
    }
    for letter in letters {
        let replayed = state.store.replay_dead_letter(principal.tenant, letter, None, by.clone()).await;
        let failed = |error| match told.replayed {
            0 => ApiError::from(error),
            _ => ApiError::from(error).after_a_change(),
        };
        match replayed.map_err(failed)? {
            Replayed::Made(_) => told.replayed += 1,
            Replayed::Before(_) | Replayed::Otherwise(_) | Replayed::AlreadyResolved(_) => told.already_resolved += 1,
            Replayed::NotReplayable => told.not_replayable += 1,
            Replayed::NotFound => told.not_found += 1,
        }
    }
    told.matched -= told.not_found;
    Ok((StatusCode::ACCEPTED, Json(told)))
}

/// Says how a dead letter was dealt with.
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
        Resolve::Done => answer(&state, &principal, id).await.map_err(ApiError::after_a_change),
        Resolve::AlreadyResolved(before) => Err(ApiError::already_resolved(before)),
        Resolve::NotFound => Err(not_found()),
    }
}

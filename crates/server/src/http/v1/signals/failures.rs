//! Failure groups: list, inspect and replay.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::limits::REPLAY_JOBS;
use store::signals::failures::list::{FailureCursor, FailureGroup};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{FailureView, Page, ReplayFailures, ReplayedView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{OptionalJson, Params, PathFailure};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth::caller;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).routes(routes!(replay))
}

/// List failure groups, last seen first.
#[utoipa::path(get, path = "/api/v1/failures", tag = "failures", params(PageQuery),
    responses((status = 200, body = Page<FailureView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<FailureView>>, ApiError> {
    let after = cursor::failure(query.cursor.as_deref())?;
    let limit = limit(query.limit.as_deref())?;
    let groups = state.store.list_failures(principal.tenant, after, limit + 1).await?;
    let after =
        |last: &FailureGroup| cursor::after_failure(FailureCursor { last_seen_at: last.last_seen_at, id: last.id });
    Ok(Json(page(groups, limit, after).map(failure_view)))
}

/// Get a failure group.
///
/// A group holds the failures with one kind, code and message pattern.
#[utoipa::path(get, path = "/api/v1/failures/{id}", tag = "failures", params(("id" = Uuid, Path)),
    responses((status = 200, body = FailureView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathFailure(id): PathFailure,
) -> Result<Json<FailureView>, ApiError> {
    let group = state.store.failure_group(principal.tenant, id).await?;
    Ok(Json(failure_view(group.ok_or_else(|| ApiError::not_found("failure group"))?)))
}

/// Replay the failed jobs of a group, each as a new job linked to the failed one.
///
/// Idempotent: a job that was already retried is not retried again.
#[utoipa::path(post, path = "/api/v1/failures/{id}/replay", tag = "failures", params(("id" = Uuid, Path)),
    request_body = Option<ReplayFailures>, responses((status = 202, body = ReplayedView)))]
async fn replay(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathFailure(id): PathFailure,
    OptionalJson(request): OptionalJson<ReplayFailures>,
) -> Result<(StatusCode, Json<ReplayedView>), ApiError> {
    let limit = request.limit.unwrap_or(REPLAY_JOBS);
    if !(1..=REPLAY_JOBS).contains(&limit) {
        return Err(ApiError::invalid_field("limit", format_args!("must be from 1 to {REPLAY_JOBS}")));
    }
    let replayed = state.store.replay_failures(principal.tenant, id, limit, &caller(&principal, &headers)?).await;
    // Jobs are created one by one, so some may exist if a later one fails.
    let replayed = replayed.map_err(|error| ApiError::from(error).after_a_change())?;
    let replayed = replayed.ok_or_else(|| ApiError::not_found("failure group"))?;
    let jobs = replayed.made.iter().map(|job| job.uuid()).collect();
    Ok((
        StatusCode::ACCEPTED,
        Json(ReplayedView { jobs, retried_before: replayed.already_retried, gone: replayed.unavailable }),
    ))
}

fn failure_view(group: FailureGroup) -> FailureView {
    let trend = group.trend().into();
    let mut repairs = group.repairs_s;
    repairs.sort_by(f64::total_cmp);
    FailureView {
        group_id: group.id,
        error_code: group.error_code,
        message_pattern: group.message_pattern,
        example: group.example,
        phase: group.phase,
        kind: group.kind,
        count: group.count,
        first_seen: view::time(group.first_seen_at),
        last_seen: view::time(group.last_seen_at),
        last_job_id: group.last_job,
        subjects: group.subjects,
        subject_count: group.subject_count,
        signature_id: group.signature,
        trend,
        hourly: group.hourly,
        repair_p50_seconds: repairs.get(repairs.len() / 2).copied(),
        recurred_at: group.recurred_at.map(view::time),
    }
}

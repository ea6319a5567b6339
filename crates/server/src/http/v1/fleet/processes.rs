//! Processes: declarations of work to do on every matching subject.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::Name;
use domain::limits::PROCESSES;
use store::fleet::processes::put::ProcessPut;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{EligibleView, Page, ProcessRequest, ProcessView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathProcess};
use crate::page::page;
use crate::state::AppState;
use crate::validate::fleet::subject::settings;
use crate::validate::query::{PageQuery, limit};
use crate::view::fleet as view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete)).routes(routes!(eligible))
}

/// List processes by name, with their counters.
#[utoipa::path(get, path = "/api/v1/processes", tag = "processes", params(PageQuery),
    responses((status = 200, body = Page<ProcessView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<ProcessView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::process(query.cursor.as_deref())?;
    let processes = state.store.list_processes(principal.tenant, after, limit + 1).await?;
    Ok(Json(page(processes, limit, |last| cursor::after_process(&last.name)).try_map(view::process)?))
}

/// Get a process with its counters.
///
/// Each counter is exact up to 100,000 subjects.
#[utoipa::path(get, path = "/api/v1/processes/{name}", tag = "processes", params(("name" = String, Path)),
    responses((status = 200, body = ProcessView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathProcess(name): PathProcess,
) -> Result<Json<ProcessView>, ApiError> {
    current_view(&state, &principal, &name).await
}

/// Create or replace a process.
///
/// Idempotent. Omitted settings return to their defaults. Returns 409 if the limit on processes is reached.
#[utoipa::path(put, path = "/api/v1/processes/{name}", tag = "processes", params(("name" = String, Path)),
    request_body = ProcessRequest, responses((status = 200, body = ProcessView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathProcess(name): PathProcess,
    JsonBody(request): JsonBody<ProcessRequest>,
) -> Result<Json<ProcessView>, ApiError> {
    let settings = settings(request)?;
    match state.store.put_process(principal.tenant, name.clone(), settings, principal.name.to_string()).await? {
        ProcessPut::Done => current_view(&state, &principal, &name).await.map_err(ApiError::after_a_change),
        ProcessPut::TooMany => Err(ApiError::limit_reached(format_args!(
            "the limit of {PROCESSES} processes is reached; delete one first"
        ))),
    }
}

/// Delete a process.
///
/// Its existing jobs continue. No new ones are created.
#[utoipa::path(delete, path = "/api/v1/processes/{name}", tag = "processes", params(("name" = String, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathProcess(name): PathProcess,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_process(principal.tenant, name, &principal.name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("process")),
    }
}

/// List the subjects that are eligible for a job of the process now, longest waiting first.
///
/// Subjects in backoff or with an unfinished job of the process are not listed.
#[utoipa::path(get, path = "/api/v1/processes/{name}/eligible", tag = "processes", params(("name" = String, Path), PageQuery),
    responses((status = 200, body = Page<EligibleView>)))]
async fn eligible(
    State(state): State<AppState>,
    principal: Principal,
    PathProcess(name): PathProcess,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<EligibleView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::eligible(query.cursor.as_deref())?;
    if state.store.process(principal.tenant, &name).await?.is_none() {
        return Err(ApiError::not_found("process"));
    }
    let subjects = state.store.eligible_subjects(principal.tenant, name, after, limit + 1).await?;
    let subjects = page(subjects, limit, |last| cursor::after_eligible(last.ready_at, &last.subject));
    Ok(Json(subjects.map(view::eligible)))
}

async fn current_view(state: &AppState, principal: &Principal, name: &Name) -> Result<Json<ProcessView>, ApiError> {
    let process = state.store.process(principal.tenant, name).await?;
    Ok(Json(view::process(process.ok_or_else(|| ApiError::not_found("process"))?)?))
}

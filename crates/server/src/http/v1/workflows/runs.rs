//! Runs: start, add nodes, list, get, cancel and retry.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::{JobId, Label};
use store::workflows::runs::cancel::RunCanceled;
use store::workflows::runs::retry::RunRetried;
use store::workflows::runs::{NewNode, NodesAdded, RunStarted};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{NodesRequest, Page, RunAccepted, RunRequest, RunView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathRun};
use crate::http::v1::queue::jobs::{check_quota, traced_builder};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth;
use crate::validate::FieldPath;
use crate::validate::query::{RunQuery, limit};
use crate::validate::workflows::run::{filter, nodes, refused, run as new_run};
use crate::view::workflows as view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(start, list))
        .routes(routes!(get))
        .routes(routes!(add_nodes))
        .routes(routes!(cancel))
        .routes(routes!(retry))
}

/// Start a run: a group of jobs with dependencies.
///
/// All jobs are created or none. A job whose needs have not ended is `waiting`. Returns 422 for a cycle, an unknown name or
/// a duplicate name, and 409 if a run with the id exists.
#[utoipa::path(post, path = "/api/v1/runs", tag = "runs", request_body = RunRequest,
    responses((status = 202, body = RunAccepted)))]
async fn start(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RunRequest>,
) -> Result<(StatusCode, Json<RunAccepted>), ApiError> {
    let (run, nodes) = new_run(&traced_builder(&state, &principal, &headers)?, request, new_id(&state))?;
    check_nodes(&state, &principal, &nodes).await?;
    let id = run.id.clone();
    match state.store.start_run(principal.tenant, run, nodes).await? {
        RunStarted::Started(jobs) => Ok(accepted(&id, jobs)),
        RunStarted::Exists => Err(ApiError::name_taken().at("id")),
        RunStarted::Refused(error) => Err(refused(error)),
        RunStarted::AlreadyRetried(again) => Err(ApiError::already_retried("run", format_args!("run {again}"))),
    }
}

/// Add nodes to a run that has not ended.
///
/// All nodes are added or none. Their `needs` may name nodes that the run has already. Returns 409 if the run has ended or is
/// being canceled, or if a need has ended in a way that does not start the node.
#[utoipa::path(post, path = "/api/v1/runs/{id}/nodes", tag = "runs", params(("id" = String, Path)),
    request_body = NodesRequest, responses((status = 202, body = RunAccepted)))]
async fn add_nodes(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
    headers: HeaderMap,
    JsonBody(request): JsonBody<NodesRequest>,
) -> Result<(StatusCode, Json<RunAccepted>), ApiError> {
    let nodes = nodes(&traced_builder(&state, &principal, &headers)?, request.nodes)?;
    check_nodes(&state, &principal, &nodes).await?;
    match state.store.add_nodes(principal.tenant, id.clone(), nodes).await? {
        NodesAdded::Added(jobs) => Ok(accepted(&id, jobs)),
        NodesAdded::NotFound => Err(ApiError::not_found("run")),
        NodesAdded::Ended(state) => Err(ApiError::run_is_over(state)),
        NodesAdded::Refused(error) => Err(refused(error)),
        NodesAdded::CannotStart { node, cause } => Err(ApiError::cannot_start(node, &cause)),
    }
}

/// List runs, newest first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunQuery),
    responses((status = 200, body = Page<RunView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<RunQuery>,
) -> Result<Json<Page<RunView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::workflow_run(query.cursor.as_deref())?;
    let filter = filter(query.state.as_deref(), query.name.as_deref(), query.tag.as_deref())?;
    let found = state.store.runs(principal.tenant, filter, before, limit + 1).await?;
    let runs = page(found.runs, limit, |last| cursor::after_workflow_run(last.created_at, &last.id));
    let runs = runs.map(|run| view::run(run, None, &principal));
    Ok(Json(Page { partial: found.is_partial, ..runs }))
}

/// Get a run with its nodes.
///
/// The nodes are in the order in which they were added. Each has the state of its job and the names of its needs.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
) -> Result<Json<RunView>, ApiError> {
    let found = state.store.run(principal.tenant, id).await?;
    let (run, nodes) = found.ok_or_else(|| ApiError::not_found("run"))?;
    Ok(Json(view::run(run, Some(nodes), &principal)))
}

/// Cancel a run and all its jobs that have not ended.
///
/// Idempotent. Returns 409 if the run has already succeeded or failed.
#[utoipa::path(post, path = "/api/v1/runs/{id}/cancel", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunView)))]
async fn cancel(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
) -> Result<Json<RunView>, ApiError> {
    match state.store.cancel_run(principal.tenant, id.clone(), principal.name.to_string()).await? {
        RunCanceled::Canceled => {}
        RunCanceled::AlreadyEnded(state) => return Err(ApiError::run_is_over(state)),
        RunCanceled::NotFound => return Err(ApiError::not_found("run")),
    }
    get(State(state), principal, PathRun(id)).await.map_err(ApiError::after_a_change)
}

/// Retry an ended run: a new run with the nodes that did not succeed and everything behind them.
///
/// The results of nodes that succeeded are inputs of the new nodes. Returns 409 if the run has not ended, was retried before,
/// or has nothing to retry.
#[utoipa::path(post, path = "/api/v1/runs/{id}/retry", tag = "runs", params(("id" = String, Path)),
    responses((status = 202, body = RunAccepted)))]
async fn retry(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<RunAccepted>), ApiError> {
    let by = depth::caller(&principal, &headers)?;
    let new = FieldPath::Body.label("id", &new_id(&state))?;
    match state.store.retry_run(principal.tenant, id, new.clone(), by).await? {
        RunRetried::Started(jobs) => Ok(accepted(&new, jobs)),
        RunRetried::AlreadyRetried(again) => Err(ApiError::run_retried(&again)),
        RunRetried::Running => Err(ApiError::run_not_ended()),
        RunRetried::NothingToRetry => Err(ApiError::nothing_to_retry()),
        RunRetried::NotFound => Err(ApiError::not_found("run")),
    }
}

fn new_id(state: &AppState) -> String {
    store::db::clock::new_uuid(state.store.clock().now()).to_string()
}

async fn check_nodes(state: &AppState, principal: &Principal, nodes: &[NewNode]) -> Result<(), ApiError> {
    for node in nodes {
        principal.check_new_job(&node.job)?;
    }
    let jobs: Vec<_> = nodes.iter().map(|node| node.job.clone()).collect();
    check_quota(state, principal, &jobs).await
}

fn accepted(id: &Label, jobs: Vec<(Label, JobId)>) -> (StatusCode, Json<RunAccepted>) {
    metrics::counter!("windlass_jobs_enqueued_total").increment(jobs.len() as u64);
    let nodes = jobs.into_iter().map(|(name, job)| (name.to_string(), job.uuid())).collect();
    (StatusCode::ACCEPTED, Json(RunAccepted { id: id.to_string(), nodes }))
}

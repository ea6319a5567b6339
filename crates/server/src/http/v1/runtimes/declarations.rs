//! Runtimes: declare, inspect, operate and read logs.

use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::RuntimeName;
use domain::limits::{LOG_DEFAULT_LINES, LOG_MAX_LINES};
use domain::runtimes::{Desired, ImageRef, OperationCode, OperationKind, OperationSource, RuntimeStatus};
use engine::runtimes::driver::{DriverError, Follow};
use engine::runtimes::logs::LogsError;
use futures_util::StreamExt;
use serde::Deserialize;
use store::runtimes::delete::RuntimeDeleted;
use store::runtimes::put::RuntimePut;
use store::runtimes::relocate::Moved;
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{OperationRecord, Runtime};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{
    MoveRequest, NoFields, OperationAccepted, OperationRequest, OperationView, Page, RuntimeHealthView, RuntimeRequest,
    RuntimeView,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathRuntime, header};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth;
use crate::validate::query::{PageQuery, WaitQuery, limit, wait};
use crate::validate::runtimes::runtime as validate;
use crate::view;

/// Header that names the client if it is not the API itself: `cli`.
const SOURCE: HeaderName = HeaderName::from_static("x-windlass-source");
/// Poll interval while a request waits for its operation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a log response waits for the first line or an error of the engine.
const FIRST_LINE_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
        .routes(routes!(start))
        .routes(routes!(stop))
        .routes(routes!(restart))
        .routes(routes!(patch))
        .routes(routes!(clean_up))
        .routes(routes!(relocate))
        .routes(routes!(operations))
        .routes(routes!(health))
        .routes(routes!(logs))
}

/// List runtimes by name.
#[utoipa::path(get, path = "/api/v1/runtimes", tag = "runtimes", params(PageQuery),
    responses((status = 200, body = Page<RuntimeView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<RuntimeView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::runtime(query.cursor.as_deref())?;
    let runtimes = state.store.list_runtimes(principal.tenant, after, limit + 1).await?;
    let runtimes = page(runtimes, limit, |last| cursor::after_runtime(last.name.as_str()));
    let (nodes, now) = (state.store.engine_nodes().await?, state.store.clock().now());
    Ok(Json(runtimes.map(|runtime| view::runtimes::runtime(runtime, &nodes, now))))
}

/// Get a runtime: its declaration and the observed state of its container.
///
/// Values of environment variables are replaced by asterisks.
#[utoipa::path(get, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path)),
    responses((status = 200, body = RuntimeView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
) -> Result<Json<RuntimeView>, ApiError> {
    current_view(&state, &principal, &name).await.map(Json)
}

/// Create or replace a runtime.
///
/// With `desired`, the matching operation is requested automatically. Returns 409 if the limit on runtimes
/// is reached or the runtime is being deleted, and 422 for an invalid specification.
#[utoipa::path(put, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path)),
    request_body = RuntimeRequest, responses((status = 200, body = RuntimeView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathRuntime(name): PathRuntime,
    JsonBody(request): JsonBody<RuntimeRequest>,
) -> Result<Json<RuntimeView>, ApiError> {
    let origin = origin(&headers)?;
    let before = state.store.runtime(principal.tenant, &name).await?;
    let spec = validate::spec(request, before.as_ref().map(|before| &before.spec))?;
    let desired = spec.desired;
    match state.store.put_runtime(principal.tenant, name.clone(), spec, principal.name.to_string()).await? {
        RuntimePut::Created | RuntimePut::Changed => {}
        RuntimePut::TooMany => {
            return Err(ApiError::limit_reached("the tenant has reached its limit on runtimes; delete one first"));
        }
        RuntimePut::OverBudget(pool) => {
            return Err(ApiError::invalid_field(
                "memory_mb",
                format_args!("must fit into the budget of the pool {pool}"),
            ));
        }
        RuntimePut::Deleting => {
            return Err(ApiError::operation_refused(OperationCode::Conflict, "the runtime is being deleted"));
        }
    }
    let running = before.is_some_and(|before| before.status == RuntimeStatus::Running);
    let kind = match desired {
        Some(Desired::Running) if !running => Some(OperationKind::Start),
        Some(Desired::Stopped) if running => Some(OperationKind::Stop),
        _ => None,
    };
    if let Some(kind) = kind {
        let new = origin.operation(kind, None, &principal);
        // Without a node that drives an engine the operation stays pending until one appears.
        let requested = state.store.request_operation(principal.tenant, &name, new).await;
        requested.map_err(|error| ApiError::from(error).after_a_change())?;
    }
    current_view(&state, &principal, &name).await.map(Json).map_err(ApiError::after_a_change)
}

/// Delete a runtime and its container.
///
/// The container is removed first: the response is then 202, or 200 with `wait`. The state path, the operation log and
/// the history stay.
#[utoipa::path(delete, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    responses((status = 204), (status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn delete(caller: OperationRequester) -> Result<Response, ApiError> {
    let OperationRequester { state, principal, name, .. } = &caller;
    match state.store.delete_runtime(principal.tenant, name, principal.name.to_string()).await? {
        RuntimeDeleted::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        RuntimeDeleted::NotFound => Err(not_found()),
        RuntimeDeleted::HasContainer => match caller.operate(OperationKind::CleanupContainer, None).await {
            // A cleanup that was already running deleted the runtime as well.
            Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(StatusCode::NO_CONTENT.into_response()),
            response => response,
        },
    }
}

/// Start a runtime.
///
/// Idempotent: a runtime that already runs the same image is not restarted (`replay_no_op`). With `wait`, responds with
/// the finished operation.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/start", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = Option<OperationRequest>,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn start(
    caller: OperationRequester,
    OptionalJson(request): OptionalJson<OperationRequest>,
) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Start, image(&request)?).await
}

/// Stop a runtime.
///
/// With `wait`, responds with the finished operation.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/stop", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = Option<NoFields>, responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn stop(caller: OperationRequester, _: OptionalJson<NoFields>) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Stop, None).await
}

/// Restart a runtime with its current declaration.
///
/// With `wait`, responds with the finished operation.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/restart", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = Option<OperationRequest>,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn restart(
    caller: OperationRequester,
    OptionalJson(request): OptionalJson<OperationRequest>,
) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Restart, image(&request)?).await
}

/// Replace a runtime's image by another patch version.
///
/// The new image must have the same major and minor version; otherwise the response is 422. With `wait`, responds with
/// the finished operation.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/patch", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = OperationRequest,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn patch(
    caller: OperationRequester,
    JsonBody(request): JsonBody<OperationRequest>,
) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Patch, image(&request)?).await
}

/// Remove a runtime's container.
///
/// The runtime and its state path stay. With `wait`, responds with the finished operation.
#[utoipa::path(delete, path = "/api/v1/runtimes/{name}/container", tag = "runtimes",
    params(("name" = String, Path), WaitQuery),
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn clean_up(caller: OperationRequester) -> Result<Response, ApiError> {
    caller.operate(OperationKind::CleanupContainer, None).await
}

/// Move a stopped runtime, or one on a lost node, to another node.
///
/// The runtime is started on the new node if it was running or should be. The content of its volumes is not moved.
/// Returns 409 for a running runtime.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/move", tag = "runtimes", operation_id = "move_runtime",
    params(("name" = String, Path)), request_body = Option<MoveRequest>,
    responses((status = 200, body = RuntimeView)))]
async fn relocate(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
    OptionalJson(request): OptionalJson<MoveRequest>,
) -> Result<Json<RuntimeView>, ApiError> {
    let actor = principal.name.to_string();
    match state.store.move_runtime(principal.tenant, &name, request.node, actor).await? {
        Moved::To(_) => current_view(&state, &principal, &name).await.map(Json).map_err(ApiError::after_a_change),
        Moved::Refused { code, message } => Err(ApiError::operation_refused(code, message)),
        Moved::NotFound => Err(not_found()),
    }
}

/// List the operations on a runtime, newest first.
///
/// Still available after the runtime is deleted.
#[utoipa::path(get, path = "/api/v1/runtimes/{name}/operations", tag = "runtimes",
    params(("name" = String, Path), PageQuery), responses((status = 200, body = Page<OperationView>)))]
pub(crate) async fn operations(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<OperationView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::operation(query.cursor.as_deref())?;
    let lines = state.store.list_operations(principal.tenant, &name, before, limit + 1).await?;
    if lines.is_empty() && before.is_none() {
        get_runtime(&state, &principal, &name).await?;
    }
    Ok(Json(page(lines, limit, |last| cursor::after_operation(last.id)).map(view::runtimes::operation)))
}

/// Get the health of a runtime and its past changes.
///
/// Every change is one item; equal observations in a row are stored once.
#[utoipa::path(get, path = "/api/v1/runtimes/{name}/health", tag = "runtimes", params(("name" = String, Path), PageQuery),
    responses((status = 200, body = RuntimeHealthView)))]
pub(crate) async fn health(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
    Params(query): Params<PageQuery>,
) -> Result<Json<RuntimeHealthView>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::operation(query.cursor.as_deref())?;
    let runtime = get_runtime(&state, &principal, &name).await?;
    let history = state.store.health_history(principal.tenant, &name, before, limit + 1).await?;
    let history = page(history, limit, |last| cursor::after_operation(last.id));
    let now = runtime.health.map(view::runtimes::health);
    Ok(Json(RuntimeHealthView {
        status: now.as_ref().map(|now| now.status.clone()),
        source: now.as_ref().map(|now| now.source.clone()),
        details: now.as_ref().map(|now| now.details.clone()),
        observed_at: now.as_ref().map(|now| now.observed_at),
        items: history.items.into_iter().map(|history| view::runtimes::health(history.observation)).collect(),
        next_cursor: history.next_cursor,
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// `true` keeps the connection open and sends new lines as they are written.
    #[param(value_type = Option<bool>)]
    follow: Option<String>,
    /// Number of past lines to send first (default: 200).
    #[param(value_type = Option<u32>)]
    tail: Option<String>,
}

/// Read the logs of a runtime's container.
///
/// Returns 404 without a container, and 503 if its node cannot be reached or serves too many log readers.
#[utoipa::path(get, path = "/api/v1/runtimes/{name}/logs", tag = "runtimes", params(("name" = String, Path), LogsQuery),
    responses((status = 200, content_type = "text/plain", body = String)))]
async fn logs(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
    Params(query): Params<LogsQuery>,
) -> Result<Response, ApiError> {
    let follow = match query.follow.as_deref() {
        None | Some("false") => Follow::No,
        Some("true" | "") => Follow::Yes,
        Some(_) => return Err(ApiError::invalid_query("follow", "follow must be true or false")),
    };
    let tail =
        match query.tail.as_deref() {
            None => LOG_DEFAULT_LINES,
            Some(text) => text.parse().ok().filter(|lines| (0..=LOG_MAX_LINES).contains(lines)).ok_or_else(|| {
                ApiError::invalid_query("tail", format_args!("tail must be from 0 to {LOG_MAX_LINES}"))
            })?,
        };
    let runtime = get_runtime(&state, &principal, &name).await?;
    let mut lines = state.engine.runtime_logs(&runtime, tail, follow).await.map_err(no_logs)?.peekable();
    // The engine reports an error in place of the first line. A silent container must not delay the response for long.
    let refused =
        matches!(tokio::time::timeout(FIRST_LINE_TIMEOUT, Pin::new(&mut lines).peek()).await, Ok(Some(Err(_))));
    if refused && let Some(Err(error)) = lines.next().await {
        return Err(no_logs(error));
    }
    // Ends the response when the server shuts down or the caller's token ends.
    let lines = lines.take_until(state.until_ended(&principal));
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(lines)).into_response())
}

fn no_logs(error: LogsError) -> ApiError {
    let code = match error {
        LogsError::Store(error) => return error.into(),
        LogsError::Engine(DriverError::NotFound(_)) => {
            return ApiError::not_found("container; the runtime was not started or its container was removed");
        }
        LogsError::Engine(DriverError::Unavailable(_)) => OperationCode::DockerUnavailable,
        LogsError::Engine(DriverError::Conflict(_) | DriverError::Refused(_)) => OperationCode::Conflict,
        LogsError::NodeUnresponsive(_) | LogsError::Busy(_) | LogsError::NoNode => OperationCode::ServiceUnavailable,
    };
    ApiError::operation_refused(code, error)
}

/// Extractor for requests that start an operation: the caller, the runtime, the origin of the request and how long to
/// wait.
struct OperationRequester {
    state: AppState,
    principal: Principal,
    name: RuntimeName,
    origin: RequestOrigin,
    wait: Duration,
}

impl FromRequestParts<AppState> for OperationRequester {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        let PathRuntime(name) = PathRuntime::from_request_parts(parts, state).await?;
        let Params(query) = Params::<WaitQuery>::from_request_parts(parts, state).await?;
        let (wait, origin) = (wait(query.wait.as_deref())?, origin(&parts.headers)?);
        Ok(Self { state: state.clone(), principal, name, origin, wait })
    }
}

impl OperationRequester {
    /// Requests an operation. If the caller waits, responds with the finished operation.
    async fn operate(&self, kind: OperationKind, image: Option<ImageRef>) -> Result<Response, ApiError> {
        let Self { state, principal, name, origin, wait } = self;
        let new = origin.operation(kind, image, principal);
        let (operation_id, job) = match state.store.request_operation(principal.tenant, name, new).await? {
            Requested::Accepted { operation, job } => (operation, job),
            Requested::Refused { code, message, .. } => return Err(ApiError::operation_refused(code, message)),
            Requested::NotFound => return Err(not_found()),
            Requested::NoNode => {
                let detail = "no node drives a Docker engine; run `windlass serve` on a host with Docker";
                return Err(ApiError::operation_refused(OperationCode::ServiceUnavailable, detail));
            }
        };
        match wait_until_finished(state, principal, operation_id, *wait).await {
            Ok(Some(line)) => Ok(Json(view::runtimes::operation(line)).into_response()),
            // The operation was requested, even if its progress cannot be read.
            Ok(None) | Err(_) => {
                let accepted = OperationAccepted { operation_id, job_id: job.uuid() };
                Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
            }
        }
    }
}

fn image(request: &OperationRequest) -> Result<Option<ImageRef>, ApiError> {
    request.image.as_deref().map(validate::image).transpose()
}

/// Where a request came from, and how many triggers led to it.
#[derive(Clone, Copy)]
struct RequestOrigin {
    source: OperationSource,
    depth: i32,
}

impl RequestOrigin {
    fn operation(self, kind: OperationKind, image: Option<ImageRef>, principal: &Principal) -> NewOperation {
        let Self { source, depth } = self;
        NewOperation { kind, source, source_ref: None, image, actor: principal.name.to_string(), depth, on: None }
    }
}

/// Returns the operation if it finishes within `wait`.
async fn wait_until_finished(
    state: &AppState,
    principal: &Principal,
    id: Uuid,
    wait: Duration,
) -> Result<Option<OperationRecord>, ApiError> {
    let deadline = Instant::now() + wait;
    while Instant::now() < deadline && !state.stopping.is_cancelled() {
        let line = state.store.operation(principal.tenant, id).await?;
        if line.as_ref().is_some_and(|line| line.finished_at.is_some()) {
            return Ok(line);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(None)
}

fn origin(headers: &HeaderMap) -> Result<RequestOrigin, ApiError> {
    let source = match header(headers, &SOURCE)? {
        None | Some("api") => OperationSource::Api,
        Some("cli") => OperationSource::Cli,
        Some(_) => return Err(ApiError::invalid_header("x-windlass-source", "must be api or cli")),
    };
    Ok(RequestOrigin { source, depth: depth::of(headers)? })
}

fn not_found() -> ApiError {
    ApiError::not_found("runtime")
}

async fn get_runtime(state: &AppState, principal: &Principal, name: &RuntimeName) -> Result<Runtime, ApiError> {
    state.store.runtime(principal.tenant, name).await?.ok_or_else(not_found)
}

async fn current_view(state: &AppState, principal: &Principal, name: &RuntimeName) -> Result<RuntimeView, ApiError> {
    let runtime = get_runtime(state, principal, name).await?;
    let nodes = state.store.engine_nodes().await?;
    Ok(view::runtimes::runtime(runtime, &nodes, state.store.clock().now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R9.
    #[test]
    fn a_node_at_its_log_reading_limit_returns_503() {
        let busy = no_logs(LogsError::Busy("enough".into())).into_response();
        assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

//! Runtimes: declare, look, operate, read logs (R1 to R5, R9).

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
use domain::limits::{LOG_LINES_DEFAULT, LOG_LINES_MAX};
use domain::runtime::{Desired, ImageRef, OperationCode, OperationKind, OperationSource, RuntimeStatus};
use engine::runtime::driver::{DriverError, Follow};
use engine::runtime::logs::LogsError;
use futures_util::StreamExt;
use serde::Deserialize;
use store::runtimes::delete::RuntimeDeleted;
use store::runtimes::put::RuntimePut;
use store::runtimes::relocate::Moved;
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{Logged, Runtime};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{
    MoveRequest, OperationAccepted, OperationRequest, OperationView, Page, RuntimeHealthView, RuntimeRequest,
    RuntimeView,
};

use crate::auth::Principal;
use crate::cursor;
use crate::depth;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathRuntime, header};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, WaitQuery, limit, wait};
use crate::validate::runtime as validate;
use crate::view;

/// Whoever asks by another way than the API itself says so here: `cli`.
const SOURCE: HeaderName = HeaderName::from_static("x-windlass-source");
/// How often an operation that is waited for is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long an answer with logs waits for their first line, or for the engine's refusal.
const FIRST_LINE: Duration = Duration::from_secs(2);

pub(super) fn routes() -> OpenApiRouter<AppState> {
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

/// Lists runtimes by name.
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
    Ok(Json(runtimes.map(|runtime| view::runtime::runtime(runtime, &nodes, now))))
}

/// One runtime: what is declared and what is known of its container.
#[utoipa::path(get, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path)),
    responses((status = 200, body = RuntimeView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathRuntime(name): PathRuntime,
) -> Result<Json<RuntimeView>, ApiError> {
    answer(&state, &principal, &name).await.map(Json)
}

/// Declares a runtime, or changes what is declared. With `desired`, an operation follows by itself.
#[utoipa::path(put, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path)),
    request_body = RuntimeRequest, responses((status = 200, body = RuntimeView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    PathRuntime(name): PathRuntime,
    JsonBody(request): JsonBody<RuntimeRequest>,
) -> Result<Json<RuntimeView>, ApiError> {
    let way = way(&headers)?;
    let before = state.store.runtime(principal.tenant, &name).await?;
    let spec = validate::spec(request, before.as_ref().map(|before| &before.spec))?;
    let desired = spec.desired;
    match state.store.put_runtime(principal.tenant, name.clone(), spec, principal.name.to_string()).await? {
        RuntimePut::Created | RuntimePut::Changed => {}
        RuntimePut::TooMany => return Err(ApiError::limit_reached("the tenant has as many runtimes as it may have")),
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
        let new = way.operation(kind, None, &principal);
        // What cannot be done now, because no node drives an engine, is done when one does.
        let requested = state.store.request_operation(principal.tenant, &name, new).await;
        requested.map_err(|error| ApiError::from(error).after_a_change())?;
    }
    answer(&state, &principal, &name).await.map(Json).map_err(ApiError::after_a_change)
}

/// Takes a runtime away, its container first. The state path, the log and the timeline stay.
#[utoipa::path(delete, path = "/api/v1/runtimes/{name}", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    responses((status = 204), (status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn delete(caller: Caller) -> Result<Response, ApiError> {
    let Caller { state, principal, name, .. } = &caller;
    match state.store.delete_runtime(principal.tenant, name, principal.name.to_string()).await? {
        RuntimeDeleted::Deleted => Ok(StatusCode::NO_CONTENT.into_response()),
        RuntimeDeleted::NotFound => Err(not_found()),
        RuntimeDeleted::HasContainer => match caller.operate(OperationKind::CleanupContainer, None).await {
            // A cleanup that was under way already has taken the runtime with it.
            Err(error) if error.status() == StatusCode::NOT_FOUND => Ok(StatusCode::NO_CONTENT.into_response()),
            answer => answer,
        },
    }
}

/// Starts a runtime. One that runs the same image is left alone (`replay_no_op`).
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/start", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = Option<OperationRequest>,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn start(caller: Caller, OptionalJson(request): OptionalJson<OperationRequest>) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Start, image(&request)?).await
}

/// Stops a runtime.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/stop", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn stop(caller: Caller) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Stop, None).await
}

/// Stops a runtime and starts it as it is declared now.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/restart", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = Option<OperationRequest>,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn restart(caller: Caller, OptionalJson(request): OptionalJson<OperationRequest>) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Restart, image(&request)?).await
}

/// Replaces a runtime's image by another patch of the same major and minor version; nothing else is taken.
#[utoipa::path(post, path = "/api/v1/runtimes/{name}/patch", tag = "runtimes", params(("name" = String, Path), WaitQuery),
    request_body = OperationRequest,
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn patch(caller: Caller, JsonBody(request): JsonBody<OperationRequest>) -> Result<Response, ApiError> {
    caller.operate(OperationKind::Patch, image(&request)?).await
}

/// Removes a runtime's container. The runtime and its state path stay.
#[utoipa::path(delete, path = "/api/v1/runtimes/{name}/container", tag = "runtimes",
    params(("name" = String, Path), WaitQuery),
    responses((status = 202, body = OperationAccepted), (status = 200, body = OperationView)))]
async fn clean_up(caller: Caller) -> Result<Response, ApiError> {
    caller.operate(OperationKind::CleanupContainer, None).await
}

/// Moves a runtime to another node: one that does not run, or whose node is lost. It is started there if it ran or is wanted.
/// What is in its volumes stays behind.
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
        Moved::To(_) => answer(&state, &principal, &name).await.map(Json).map_err(ApiError::after_a_change),
        Moved::Refused { code, message } => Err(ApiError::operation_refused(code, message)),
        Moved::NotFound => Err(not_found()),
    }
}

/// The log of operations, newest first; also of a runtime that is gone.
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
        find(&state, &principal, &name).await?;
    }
    Ok(Json(page(lines, limit, |last| cursor::after_operation(last.id)).map(view::runtime::operation)))
}

/// How a runtime is, and how it was before.
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
    let runtime = find(&state, &principal, &name).await?;
    let past = state.store.health_history(principal.tenant, &name, before, limit + 1).await?;
    let past = page(past, limit, |last| cursor::after_operation(last.id));
    let now = runtime.health.map(view::runtime::health);
    Ok(Json(RuntimeHealthView {
        status: now.as_ref().map(|now| now.status.clone()),
        source: now.as_ref().map(|now| now.source.clone()),
        details: now.as_ref().map(|now| now.details.clone()),
        observed_at: now.as_ref().map(|now| now.observed_at),
        items: past.items.into_iter().map(|past| view::runtime::health(past.observation)).collect(),
        next_cursor: past.next_cursor,
    }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct LogsQuery {
    /// Stay, and send what is written from now on: `true`.
    #[param(value_type = Option<bool>)]
    follow: Option<String>,
    /// Lines to begin with: 200 unless given.
    #[param(value_type = Option<u32>)]
    tail: Option<String>,
}

/// What the runtime's container wrote, as it came.
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
            None => LOG_LINES_DEFAULT,
            Some(text) => text.parse().ok().filter(|lines| (0..=LOG_LINES_MAX).contains(lines)).ok_or_else(|| {
                ApiError::invalid_query("tail", format_args!("tail must be from 0 to {LOG_LINES_MAX}"))
            })?,
        };
    let runtime = find(&state, &principal, &name).await?;
    let mut lines = state.engine.runtime_logs(&runtime, tail, follow).await.map_err(no_logs)?.peekable();
    // An engine that refuses does so in place of the first line. One who follows a silent container waits no longer for that.
    let refused = matches!(tokio::time::timeout(FIRST_LINE, Pin::new(&mut lines).peek()).await, Ok(Some(Err(_))));
    if refused && let Some(Err(error)) = lines.next().await {
        return Err(no_logs(error));
    }
    // Whoever follows is let go when the server stops, or may not read any more.
    let lines = lines.take_until(state.until_ended(&principal));
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], Body::from_stream(lines)).into_response())
}

fn no_logs(error: LogsError) -> ApiError {
    let code = match error {
        LogsError::Store(error) => return error.into(),
        LogsError::Engine(DriverError::NotFound(_)) => {
            return ApiError::not_found("container: the runtime was not started, or it is gone");
        }
        LogsError::Engine(DriverError::Unavailable(_)) => OperationCode::DockerUnavailable,
        LogsError::Engine(DriverError::Conflict(_) | DriverError::Refused(_)) => OperationCode::Conflict,
        LogsError::Silent(_) | LogsError::Busy(_) | LogsError::Nowhere => OperationCode::ServiceUnavailable,
    };
    ApiError::operation_refused(code, error)
}

/// Who asks for an operation on which runtime, by which way, and how long the answer is waited for.
struct Caller {
    state: AppState,
    principal: Principal,
    name: RuntimeName,
    way: Way,
    wait: Duration,
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        let PathRuntime(name) = PathRuntime::from_request_parts(parts, state).await?;
        let Params(query) = Params::<WaitQuery>::from_request_parts(parts, state).await?;
        let (wait, way) = (wait(query.wait.as_deref())?, way(&parts.headers)?);
        Ok(Self { state: state.clone(), principal, name, way, wait })
    }
}

impl Caller {
    /// Asks for an operation and, where the caller waits, answers with how it went.
    async fn operate(&self, kind: OperationKind, image: Option<ImageRef>) -> Result<Response, ApiError> {
        let Self { state, principal, name, way, wait } = self;
        let new = way.operation(kind, image, principal);
        let (operation_id, job) = match state.store.request_operation(principal.tenant, name, new).await? {
            Requested::Accepted { operation, job } => (operation, job),
            Requested::Refused { code, message, .. } => return Err(ApiError::operation_refused(code, message)),
            Requested::NotFound => return Err(not_found()),
            Requested::NoNode => {
                let detail = "no node drives a Docker engine; start `windlass serve` beside one";
                return Err(ApiError::operation_refused(OperationCode::ServiceUnavailable, detail));
            }
        };
        match ended(state, principal, operation_id, *wait).await {
            Ok(Some(line)) => Ok(Json(view::runtime::operation(line)).into_response()),
            // It was asked for, whether or not one can look how far it is.
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

/// By which way a request came, and how many triggers led to it.
#[derive(Clone, Copy)]
struct Way {
    source: OperationSource,
    depth: i32,
}

impl Way {
    fn operation(self, kind: OperationKind, image: Option<ImageRef>, principal: &Principal) -> NewOperation {
        let Self { source, depth } = self;
        NewOperation { kind, source, source_ref: None, image, actor: principal.name.to_string(), depth, on: None }
    }
}

/// The operation, if it ends in time.
async fn ended(state: &AppState, principal: &Principal, id: Uuid, wait: Duration) -> Result<Option<Logged>, ApiError> {
    let until = Instant::now() + wait;
    while Instant::now() < until && !state.stopping.is_cancelled() {
        let line = state.store.operation(principal.tenant, id).await?;
        if line.as_ref().is_some_and(|line| line.finished_at.is_some()) {
            return Ok(line);
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(None)
}

fn way(headers: &HeaderMap) -> Result<Way, ApiError> {
    let source = match header(headers, &SOURCE)? {
        None | Some("api") => OperationSource::Api,
        Some("cli") => OperationSource::Cli,
        Some(_) => return Err(ApiError::invalid_header("x-windlass-source", "must be api or cli")),
    };
    Ok(Way { source, depth: depth::of(headers)? })
}

fn not_found() -> ApiError {
    ApiError::not_found("runtime")
}

async fn find(state: &AppState, principal: &Principal, name: &RuntimeName) -> Result<Runtime, ApiError> {
    state.store.runtime(principal.tenant, name).await?.ok_or_else(not_found)
}

async fn answer(state: &AppState, principal: &Principal, name: &RuntimeName) -> Result<RuntimeView, ApiError> {
    let runtime = find(state, principal, name).await?;
    let nodes = state.store.engine_nodes().await?;
    Ok(view::runtime::runtime(runtime, &nodes, state.store.clock().now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r9_a_node_that_reads_enough_logs_is_busy_and_refuses_nothing_for_good() {
        let busy = no_logs(LogsError::Busy("enough".into())).into_response();
        assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}

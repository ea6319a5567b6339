//! Wraps every route in the middleware that all requests share, and serves them until shutdown. Called by `app`.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::access::{auth, rights};
use crate::error::{ApiError, PROBLEM};
use crate::http::metrics::{self, RequestTimer};
use crate::http::trace;
use crate::listen::listen;
use crate::runtimes::openai;
use crate::state::AppState;
use crate::{dashboard, openapi};

/// Time limit for requests in flight after shutdown starts.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// Returns the router with every route and the shared middleware.
pub fn router(state: AppState) -> Router {
    metrics::install();
    let (router, _) = openapi::routes().split_for_parts();
    router.layer(from_fn_with_state(state.clone(), trace_request)).with_state(state)
}

/// The middleware of every request. It is a single layer because axum wraps each layer around every route and clones
/// all of them for every request.
async fn trace_request(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let span = trace::span(&request);
    trace::set_parent(&span, &request);
    let response = handle(state, request, next).instrument(span.clone()).await;
    trace::record_status(&span, &response);
    response
}

async fn handle(state: AppState, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let route_match = path.map(|path| rights::lookup(path.as_str(), request.method()));
    let timer = RequestTimer::start(route_match.as_ref(), request.method());
    let page_root = dashboard::page_root(&request);
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let is_openai = request.uri().path().starts_with(openai::PREFIX);
    let outcome = AssertUnwindSafe(auth::authorize(state, route_match, request, next)).catch_unwind().await;
    let mut response = outcome.unwrap_or_else(panicked);
    response = if is_openai { openai::into_openai_error(response).await } else { into_problem(response) };
    if chunked {
        close_connection(&mut response);
    }
    if let Some(root) = page_root {
        response = dashboard::error_page(root, response).await;
    }
    timer.finish(&response);
    response
}

/// Serves until `shutdown` is canceled. Then stops accepting connections, answers long-polls at once, and gives
/// requests in flight `SHUTDOWN_GRACE` to finish.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> std::io::Result<()> {
    let (tls, connections) = (state.options.tls.clone(), state.options.connections);
    let router = router(state.with_shutdown(shutdown.clone()));
    tokio::select! {
        result = listen(listener, tls, router, connections, shutdown.clone()) => result,
        () = shutdown_timeout(&shutdown) => {
            tracing::warn!("the shutdown grace period ended with requests still in flight");
            Ok(())
        }
    }
}

/// Runs metrics upkeep until `shutdown`, and returns when the grace period after it has passed.
async fn shutdown_timeout(shutdown: &CancellationToken) {
    let mut upkeep = tokio::time::interval(metrics::UPKEEP);
    loop {
        tokio::select! {
            _ = upkeep.tick() => metrics::upkeep(),
            () = shutdown.cancelled() => break,
        }
    }
    tokio::time::sleep(SHUTDOWN_GRACE).await;
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a handler panicked");
    ApiError::panicked().into_response()
}

/// Prevents HTTP request smuggling (RFC 9112, section 6.3): closes the connection after a chunked request. A proxy may
/// have framed the request by a `Content-Length` that was sent beside `Transfer-Encoding`, so the bytes that follow
/// could belong to another client.
fn close_connection(response: &mut Response) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// Turns an error of axum itself (plain text) into a problem document. Keeps its headers, such as `Allow`.
fn into_problem(response: Response) -> Response {
    let status = response.status();
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    // This crate answers with JSON or HTML; axum answers with plain text.
    let is_ours = content_type.is_some_and(|text| text.starts_with(b"application/") || text.starts_with(b"text/html"));
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let problem = ApiError::of_status(status);
    let (mut parts, _) = response.into_parts();
    parts.status = problem.status();
    parts.headers.insert(CONTENT_TYPE, PROBLEM);
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, problem.body())
}

//! Puts the routes behind what every request passes, and serves them until told to stop.

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

use crate::error::{ApiError, PROBLEM};
use crate::http::metrics::{self, Timed};
use crate::http::trace;
use crate::listen::listen;
use crate::state::AppState;
use crate::{auth, dashboard, openai, openapi, rights};

/// How long requests under way may take once the server was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Every route, ready to serve.
pub fn router(state: AppState) -> Router {
    metrics::install();
    let (router, _) = openapi::routes().split_for_parts();
    router.layer(from_fn_with_state(state.clone(), every_request)).with_state(state)
}

/// What every request passes. It is one layer because the router puts each around every route, and clones them all for
/// every request.
async fn every_request(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let span = trace::span(&request);
    let response = answer(state, request, next).instrument(span.clone()).await;
    trace::answered(&span, &response);
    response
}

async fn answer(state: AppState, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>();
    let found = path.map(|path| rights::of(path.as_str(), request.method()));
    let timed = Timed::start(found.as_ref(), request.method());
    let reader = dashboard::reader(&request);
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let face = request.uri().path().starts_with(openai::PREFIX);
    let answered = AssertUnwindSafe(auth::gate(state, found, request, next)).catch_unwind().await;
    let mut response = answered.unwrap_or_else(panicked);
    response = if face { openai::in_that_apis_words(response).await } else { as_a_problem(response) };
    if chunked {
        nothing_behind(&mut response);
    }
    if let Some(root) = reader {
        response = dashboard::refusal(root, response).await;
    }
    timed.answered(&response);
    response
}

/// Serves until `shutdown`: then takes no more connections, answers long-polls at once and lets the rest finish.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> std::io::Result<()> {
    let tls = state.options.tls.clone();
    let router = router(state.stopped_by(shutdown.clone()));
    tokio::select! {
        result = listen(listener, tls, router, shutdown.clone()) => result,
        () = out_of_patience(&shutdown) => {
            tracing::warn!("requests were still under way when the time to stop was up");
            Ok(())
        }
    }
}

/// Keeps the figures folded, and returns when a stop has taken too long.
async fn out_of_patience(shutdown: &CancellationToken) {
    let mut upkeep = tokio::time::interval(metrics::UPKEEP);
    loop {
        tokio::select! {
            _ = upkeep.tick() => metrics::upkeep(),
            () = shutdown.cancelled() => break,
        }
    }
    tokio::time::sleep(GRACE).await;
}

fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(panic = text, "a handler panicked");
    ApiError::panicked().into_response()
}

/// A body in chunks ends where its bytes say so, and a proxy in front may have gone by a length that was sent beside them:
/// what follows on the connection could be a stranger's words in another's mouth (RFC 9112, 6.3). So nothing follows.
fn nothing_behind(response: &mut Response) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

/// What the framework refuses by itself is a problem document too; its headers, `Allow` among them, stay.
fn as_a_problem(response: Response) -> Response {
    let status = response.status();
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    // What we say ourselves is JSON or a page; the framework speaks plain text.
    let told = content_type.is_some_and(|text| text.starts_with(b"application/") || text.starts_with(b"text/html"));
    if told || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let problem = ApiError::of_status(status);
    let (mut parts, _) = response.into_parts();
    parts.status = problem.status();
    parts.headers.insert(CONTENT_TYPE, PROBLEM);
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, problem.body())
}

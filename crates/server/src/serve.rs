//! Puts the routes behind what every request passes, and serves them until told to stop.

use std::any::Any;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::error::{ApiError, PROBLEM};
use crate::http::{metrics, trace};
use crate::state::AppState;
use crate::{auth, openapi};

/// How long requests under way may take once the server was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Every route, ready to serve.
pub fn router(state: AppState) -> Router {
    metrics::install();
    let (router, _) = openapi::routes().split_for_parts();
    router
        .layer(from_fn_with_state(state.clone(), auth::gate))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn(problems))
        .layer(from_fn(metrics::count))
        .layer(from_fn(trace::span))
        .with_state(state)
}

/// Serves until `shutdown`: then takes no more connections, answers long-polls at once and lets the rest finish.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> std::io::Result<()> {
    let router = router(AppState { stopping: shutdown.clone(), ..state });
    // Answers are small and complete: waiting to fill a packet only delays them.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
    });
    let serving = axum::serve(listener, router).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        result = serving.into_future() => result,
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

/// What the framework refuses by itself is a problem document too; its headers, `Allow` among them, stay.
async fn problems(request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let content_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let told = content_type.is_some_and(|text| text.starts_with(b"application/"));
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

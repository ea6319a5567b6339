//! The HTTP transport of MCP: one response per POST, without sessions and streams.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use tokio::net::TcpListener;

use super::protocol::{MESSAGE_BYTES, respond};
use super::tools::Tools;
use crate::cli::Connection;
use crate::cli::exit::Exit;
use crate::cli::output;

struct HttpState {
    connection: Connection,
    allow_changes: bool,
}

/// Serves until Ctrl-C.
pub(super) async fn serve(connection: Connection, address: SocketAddr, allow_changes: bool) -> anyhow::Result<Exit> {
    // An invalid address or certificate is reported at the start.
    connection.client()?;
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
    let address = listener.local_addr()?;
    let state = Arc::new(HttpState { connection, allow_changes });
    let routes =
        Router::new().route("/mcp", post(message)).layer(DefaultBodyLimit::max(MESSAGE_BYTES)).with_state(state);
    output::line(&format!("MCP on http://{address}/mcp"))?;
    let stopped = async { drop(tokio::signal::ctrl_c().await) };
    axum::serve(listener, routes).with_graceful_shutdown(stopped).await.context("cannot serve")?;
    Ok(Exit::Done)
}

async fn message(State(state): State<Arc<HttpState>>, headers: HeaderMap, body: Bytes) -> Response {
    if !is_own_origin(&headers) {
        return (StatusCode::FORBIDDEN, "requests of web pages are refused").into_response();
    }
    // The caller's token and no other: a server without one must not lend its own rights.
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .map(|token| token.trim().to_owned());
    let client = match state.connection.client_with_token(token) {
        Ok(client) => client,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error:#}")).into_response(),
    };
    match respond(&Tools::new(client, state.allow_changes), &body).await {
        Some(response) => ([(header::CONTENT_TYPE, "application/json")], response.to_string()).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

/// False for a page of another site: its browser would send the request with the user's network access (DNS rebinding).
fn is_own_origin(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let is_loopback = matches!(name, "localhost" | "127.0.0.1" | "[::1]");
    is_loopback && origin.to_str().is_ok_and(|origin| origin == format!("http://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_site_is_refused() {
        let check = |origin: Option<&str>, host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            is_own_origin(&headers)
        };
        assert!(check(None, "127.0.0.1:7718"));
        assert!(check(Some("http://localhost:7718"), "localhost:7718"));
        assert!(!check(Some("https://evil.example"), "127.0.0.1:7718"));
        assert!(!check(Some("http://evil.example:7718"), "evil.example:7718"), "rebound to this machine");
    }
}

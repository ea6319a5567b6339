//! Slow clients, floods and request smuggling must not affect other clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use domain::limits::BODY_IDLE_S;
use serde_json::json;
use server::{ConnectionLimits, ServerOptions, serve};
use testkit::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;

struct TestServer {
    api: Api,
    address: SocketAddr,
    shutdown: CancellationToken,
    tracker: TaskTracker,
}

impl TestServer {
    async fn start() -> Self {
        Self::start_with(ConnectionLimits::default()).await
    }

    async fn start_with(connections: ConnectionLimits) -> Self {
        let options = ServerOptions { connections, ..ServerOptions::default() };
        let api = Api::with(Database::sqlite().await, options).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (shutdown, tracker) = (CancellationToken::new(), TaskTracker::new());
        tracker.spawn(serve(listener, api.state.clone(), shutdown.clone()));
        Self { api, address, shutdown, tracker }
    }

    async fn send(&self, bytes: &[u8]) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        connection.write_all(bytes).await.unwrap();
        connection
    }

    /// Returns everything that the server sends until it closes the connection, for at most two seconds.
    async fn response(&self, bytes: &[u8]) -> String {
        self.response_within(Duration::from_secs(2), bytes).await
    }

    async fn response_within(&self, limit: Duration, bytes: &[u8]) -> String {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        // A server that rejects the request may close the connection before it is written completely.
        let _complete = connection.write_all(bytes).await;
        let mut response = Vec::new();
        let _ = tokio::time::timeout(limit, connection.read_to_end(&mut response)).await;
        String::from_utf8_lossy(&response).into_owned()
    }

    async fn assert_serves(&self) {
        // Half of the idle timeout, so that a request that waits for slow clients fails.
        let limit = Duration::from_secs(30);
        let sent_at = Instant::now();
        let request = b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let response = self.response_within(limit, request).await;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        assert!(sent_at.elapsed() < limit, "other requests wait: {:?}", sent_at.elapsed());
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(Duration::from_secs(15), self.tracker.wait()).await;
        drop(self.api);
    }
}

/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn slow_request_heads_and_bodies_do_not_block_other_requests() {
    let server = TestServer::start().await;
    let mut slow = Vec::new();
    for _ in 0..150 {
        slow.push(server.send(b"GET /api/v1/jobs HTTP/1.1\r\nhost: local").await);
        let body = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
        slow.push(server.send(body).await);
    }
    server.assert_serves().await;
    drop(slow);
    server.assert_serves().await;
    server.stop().await;
}

/// Routes without a token have the same idle timeout as the others.
/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_body_on_a_route_without_a_token_times_out() {
    let server = TestServer::start().await;
    let trigger = json!({"name": "t", "source": "http", "filter": {}, "target": {"job": {"queue": "q", "kind": "k"}}});
    let hook = server.api.post("/api/v1/triggers", trigger).await.json()["hook"].as_str().unwrap().to_owned();
    let limit = Duration::from_secs(4 * BODY_IDLE_S);
    let incomplete = |path: &str, kind: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 900\r\n\r\n{{")
    };
    let (to_hook, to_sign_in) =
        (incomplete(&hook, "application/json"), incomplete("/sign-in", "application/x-www-form-urlencoded"));
    let (to_hook, to_sign_in) = tokio::join!(
        server.response_within(limit, to_hook.as_bytes()),
        server.response_within(limit, to_sign_in.as_bytes())
    );
    assert!(to_hook.starts_with("HTTP/1.1 400"), "{to_hook}");
    assert!(to_sign_in.starts_with("HTTP/1.1 400"), "{to_sign_in}");
    server.stop().await;
}

/// An unknown hook or a body that is too large is rejected before the body is buffered.
/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_accepts_at_most_the_payload_limit() {
    let server = TestServer::start().await;
    let trigger = json!({"name": "t", "source": "http", "filter": {}, "target": {"job": {"queue": "q", "kind": "k"}}});
    let hook = server.api.post("/api/v1/triggers", trigger).await.json()["hook"].as_str().unwrap().to_owned();
    let unknown = "/api/v1/hooks/01890a5d-ac96-774b-bcce-b302099a8057";
    for (path, status) in [(hook.as_str(), "413"), (unknown, "404")] {
        // The announced body is never sent: neither response waits for it.
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
             content-length: {}\r\n\r\n",
            15 << 20
        );
        let response = server.response_within(Duration::from_secs(30), request.as_bytes()).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {response}");
    }
    server.stop().await;
}

/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_or_too_large_headers_are_rejected() {
    let server = TestServer::start().await;
    let many: String = (0..1_000).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "a".repeat(200 << 10));
    for flood in [many, long] {
        let request = format!("GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n");
        let response = server.response(request.as_bytes()).await;
        assert!(
            response.is_empty() || response.starts_with("HTTP/1.1 431") || response.starts_with("HTTP/1.1 400"),
            "{response}"
        );
    }
    server.assert_serves().await;
    server.stop().await;
}

/// Bytes after a request are never parsed as another request, whatever the request says about its length.
/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn http_request_smuggling_is_prevented() {
    let server = TestServer::start().await;
    let hidden = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ";
    let chunked_end = format!("0\r\n\r\n{hidden}");
    let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let length = chunked_end.len();
    for (case, request) in [
        (
            "length, then chunks",
            format!("{head}content-length: {length}\r\ntransfer-encoding: chunked\r\n\r\n{chunked_end}\r\n\r\n"),
        ),
        (
            "chunks, then length",
            format!("{head}transfer-encoding: chunked\r\ncontent-length: {length}\r\n\r\n{chunked_end}\r\n\r\n"),
        ),
        ("two lengths", format!("{head}content-length: 0\r\ncontent-length: {}\r\n\r\n{hidden}\r\n\r\n", hidden.len())),
        ("a length with a sign", format!("{head}content-length: +0\r\n\r\n{hidden}\r\n\r\n")),
        ("an odd encoding", format!("{head}transfer-encoding: xchunked\r\n\r\n{hidden}\r\n\r\n")),
        ("two encodings", format!("{head}transfer-encoding: chunked, identity\r\n\r\n{chunked_end}\r\n\r\n")),
        ("a space before the colon", format!("{head}transfer-encoding : chunked\r\n\r\n{chunked_end}\r\n\r\n")),
        ("a folded header", format!("{head}x: y\r\n transfer-encoding: chunked\r\n\r\n{hidden}\r\n\r\n")),
    ] {
        let response = server.response(request.as_bytes()).await;
        assert!(!response.contains("\"status\":\"ok\""), "{case}: {response}");
        assert!(response.matches("HTTP/1.1").count() <= 1, "{case}: {response}");
    }
    server.assert_serves().await;
    server.stop().await;
}

/// A peer that opens many connections leaves places for others, and health checks are answered in any case.
/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_holds_a_share_of_the_connections_and_health_checks_have_places_of_their_own() {
    let server = TestServer::start_with(ConnectionLimits { connections: 8, reserved: 2 }).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        idle.push(server.send(b"GET /api/v1/jobs HTTP/1.1\r\nhost: local").await);
    }
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").into_bytes();
    let refused = server.response(&get("/api/v1/jobs")).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
    for path in ["/healthz", "/readyz"] {
        let healthy = server.response(&get(path)).await;
        assert!(healthy.starts_with("HTTP/1.1 200"), "{path}: {healthy}");
    }
    drop(idle);
    let free = async || server.response(&get("/api/v1/jobs")).await.starts_with("HTTP/1.1 200");
    testkit::eventually::wait_until("the places are given back", free).await;
    server.stop().await;
}

//! X10: callers that dawdle, flood or try to smuggle leave the server serving the others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use domain::limits::BODY_IDLE_S;
use serde_json::json;
use server::serve;
use testkit::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;

struct Listening {
    api: Api,
    address: SocketAddr,
    shutdown: CancellationToken,
    tracker: TaskTracker,
}

impl Listening {
    async fn start() -> Self {
        let api = Api::new(Database::sqlite().await).await;
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

    /// All that comes back until the server closes or says no more.
    async fn answer(&self, bytes: &[u8]) -> String {
        self.answer_within(Duration::from_secs(2), bytes).await
    }

    async fn answer_within(&self, limit: Duration, bytes: &[u8]) -> String {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        // A server that has heard enough may close before all of it is said.
        let _cut_off = connection.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(limit, connection.read_to_end(&mut answer)).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn still_serves(&self) {
        // Half of what those who dawdle are given: nobody waits for them.
        let limit = Duration::from_secs(30);
        let asked = Instant::now();
        let request = b"GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let answer = self.answer_within(limit, request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(asked.elapsed() < limit, "others wait: {:?}", asked.elapsed());
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tracker.close();
        let _ = tokio::time::timeout(Duration::from_secs(15), self.tracker.wait()).await;
        drop(self.api);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x10_slow_heads_and_slow_bodies_keep_nobody_else_waiting() {
    let server = Listening::start().await;
    let mut held = Vec::new();
    for _ in 0..150 {
        held.push(server.send(b"GET /api/v1/jobs HTTP/1.1\r\nhost: local").await);
        let body = b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{";
        held.push(server.send(body).await);
    }
    server.still_serves().await;
    drop(held);
    server.still_serves().await;
    server.stop().await;
}

/// Routes that ask for no token wait no longer for a body than others do.
#[tokio::test(flavor = "multi_thread")]
async fn x10_a_body_that_never_ends_is_broken_off_where_nobody_is_known() {
    let server = Listening::start().await;
    let trigger = json!({"name": "t", "source": "http", "filter": {}, "target": {"job": {"queue": "q", "kind": "k"}}});
    let hook = server.api.post("/api/v1/triggers", trigger).await.json()["hook"].as_str().unwrap().to_owned();
    let limit = Duration::from_secs(4 * BODY_IDLE_S);
    let begun = |path: &str, kind: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\ncontent-length: 900\r\n\r\n{{")
    };
    let (to_hook, to_sign_in) =
        (begun(&hook, "application/json"), begun("/sign-in", "application/x-www-form-urlencoded"));
    let (to_hook, to_sign_in) = tokio::join!(
        server.answer_within(limit, to_hook.as_bytes()),
        server.answer_within(limit, to_sign_in.as_bytes())
    );
    assert!(to_hook.starts_with("HTTP/1.1 400"), "{to_hook}");
    assert!(to_sign_in.starts_with("HTTP/1.1 400"), "{to_sign_in}");
    server.stop().await;
}

/// Whoever guesses addresses of hooks, or sends them more than they take, has nothing kept in memory.
#[tokio::test(flavor = "multi_thread")]
async fn x10_a_hook_takes_no_more_than_a_payload() {
    let server = Listening::start().await;
    let trigger = json!({"name": "t", "source": "http", "filter": {}, "target": {"job": {"queue": "q", "kind": "k"}}});
    let hook = server.api.post("/api/v1/triggers", trigger).await.json()["hook"].as_str().unwrap().to_owned();
    let unknown = "/api/v1/hooks/01890a5d-ac96-774b-bcce-b302099a8057";
    for (path, status) in [(hook.as_str(), "413"), (unknown, "404")] {
        // All of it is promised, and little of it sent: neither waits for the rest.
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n\
             content-length: {}\r\n\r\n",
            15 << 20
        );
        let answer = server.answer_within(Duration::from_secs(30), request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x10_a_flood_of_headers_is_refused() {
    let server = Listening::start().await;
    let many: String = (0..1_000).map(|number| format!("x-{number}: 1\r\n")).collect();
    let long = format!("x: {}\r\n", "a".repeat(200 << 10));
    for flood in [many, long] {
        let request = format!("GET /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n");
        let answer = server.answer(request.as_bytes()).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 431") || answer.starts_with("HTTP/1.1 400"),
            "{answer}"
        );
    }
    server.still_serves().await;
    server.stop().await;
}

/// Whatever a request says of its length, what follows it is never taken for a request of its own.
#[tokio::test(flavor = "multi_thread")]
async fn x10_no_second_request_is_smuggled_behind_a_first() {
    let server = Listening::start().await;
    let hidden = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ";
    let chunked_end = format!("0\r\n\r\n{hidden}");
    let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let length = chunked_end.len();
    for (what, request) in [
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
        let answer = server.answer(request.as_bytes()).await;
        assert!(!answer.contains("\"status\":\"ok\""), "{what}: {answer}");
        assert!(answer.matches("HTTP/1.1").count() <= 1, "{what}: {answer}");
    }
    server.still_serves().await;
    server.stop().await;
}

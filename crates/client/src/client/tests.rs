//! The client against a server that says one thing once.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use uuid::Uuid;
use wire::JobRequest;

use super::*;
use crate::backend::BackendError;

/// Where the server listens, and what it was sent once it has answered.
async fn server(answer: &'static str) -> (String, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
    let mut served = JoinSet::new();
    served.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = String::new();
        while !is_whole(&request) {
            let mut part = vec![0; 4096];
            let length = stream.read(&mut part).await.unwrap();
            assert!(length > 0, "it ends too early: {request}");
            request.push_str(std::str::from_utf8(&part[..length]).unwrap());
        }
        stream.write_all(answer.as_bytes()).await.unwrap();
        request
    });
    (url, served)
}

/// Whether its body is there too. What was left unread when the connection closes would take the answer with it.
fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse::<usize>().unwrap())
}

async fn problem(answer: &'static str) -> ClientError {
    let (url, _served) = server(answer).await;
    Client::new(&url).unwrap().job(Uuid::nil()).await.unwrap_err()
}

#[tokio::test]
async fn a_request_carries_the_token_and_the_idempotency_key() {
    let (url, mut served) = server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
    let client = Client::builder(&url).token("wl_secret").build().unwrap();
    let job = JobRequest { queue: "q".into(), kind: "k".into(), ..JobRequest::default() };
    client.enqueue_once("once", &job).await.unwrap_err();
    let request = served.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("POST /prefix/api/v1/jobs HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer wl_secret\r\n"));
    assert!(request.contains("idempotency-key: once\r\n"));
    assert!(request.ends_with(r#"{"queue":"q","kind":"k"}"#));
}

#[tokio::test]
async fn a_name_cannot_leave_its_place_in_the_path() {
    let (url, mut served) = server("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    Client::new(&url).unwrap().queue("../jobs?a#b").await.unwrap_err();
    let request = served.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("GET /prefix/api/v1/queues/..%2Fjobs%3Fa%23b HTTP"), "{request}");
}

#[tokio::test]
async fn a_problem_keeps_its_status_and_code() {
    let error = problem(concat!(
        "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n",
        r#"{"type":"about:blank","title":"x","status":409,"detail":"It has ended.","code":"already_ended"}"#
    ));
    let error = error.await;
    assert_eq!((error.status(), error.code()), (Some(409), Some("already_ended")), "{error:?}");
}

#[tokio::test]
async fn an_answer_from_something_else_is_told_by_its_status() {
    let error = problem("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>").await;
    assert_eq!((error.status(), error.code()), (Some(502), Some("outcome_unknown")));
    assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)), "a proxy cannot know what was done");
}

#[tokio::test]
async fn what_something_else_says_of_the_request_is_no_refusal() {
    for answer in [
        "HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 18\r\n\r\n404 page not found",
        "HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: 0\r\n\r\n",
    ] {
        let error = problem(answer).await;
        assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)), "{answer}");
    }
}

#[tokio::test]
async fn what_a_proxy_does_not_let_through_was_not_done() {
    let later = problem("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(BackendError::from(later), BackendError::Unavailable(_)));
    let never = problem("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(BackendError::from(never), BackendError::Refused(_)), "it would not be let through the next time");
}

#[tokio::test]
async fn an_answer_that_is_cut_off_leaves_open_what_was_done() {
    let error = problem("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{").await;
    assert!(matches!(error, ClientError::Unreachable { sent: true, .. }), "{error:?}");
    assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)));
}

#[tokio::test]
async fn a_server_that_is_not_there_has_done_nothing() {
    // Bound and not listened on, so that nobody else gets the port meanwhile.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", nobody.local_addr().unwrap());
    let error = Client::new(&url).unwrap().job(Uuid::nil()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { sent: false, .. }), "{error:?}");
}

#[test]
fn an_address_must_be_one() {
    assert!(matches!(Client::new("7717").err(), Some(ClientError::Address(_))));
    assert!(matches!(Client::new("ftp://example.com").err(), Some(ClientError::Address(_))));
    assert!(Client::new("https://example.com").is_ok());
}

#[test]
fn x7_what_is_to_be_trusted_must_hold_a_certificate() {
    let client = |pem: &str| Client::builder("https://example.com").trust(pem).build();
    assert!(matches!(client("not a certificate").err(), Some(ClientError::Authority(_))));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(client(broken).err(), Some(ClientError::Authority(_))));
    assert_eq!(roots(b"").unwrap().len(), webpki_roots::TLS_SERVER_ROOTS.len());
}

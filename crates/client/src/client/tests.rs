//! Tests the client with a server that sends one fixed response.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use uuid::Uuid;
use wire::JobRequest;

use super::*;
use crate::backend::BackendError;

/// Starts a server. Returns its URL and a task that yields the received request.
async fn server(response: &'static str) -> (String, JoinSet<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/prefix/", listener.local_addr().unwrap());
    let mut served = JoinSet::new();
    served.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = String::new();
        while !is_complete(&request) {
            let mut part = vec![0; 4096];
            let length = stream.read(&mut part).await.unwrap();
            assert!(length > 0, "the request ended early: {request}");
            request.push_str(std::str::from_utf8(&part[..length]).unwrap());
        }
        stream.write_all(response.as_bytes()).await.unwrap();
        request
    });
    (url, served)
}

/// True if the body is complete. Unread data at the close of a connection would discard the response.
fn is_complete(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.is_none_or(|length| body.len() >= length.parse::<usize>().unwrap())
}

async fn problem(response: &'static str) -> ClientError {
    let (url, _served) = server(response).await;
    Client::new(&url).unwrap().job(Uuid::nil()).await.unwrap_err()
}

#[tokio::test]
async fn a_request_carries_the_token_and_the_idempotency_key() {
    let (url, mut served) = server("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").await;
    let client = Client::builder(&url).token("wl_secret").build().unwrap();
    let job = JobRequest { queue: "q".into(), kind: "k".into(), ..JobRequest::default() };
    client.enqueue_idempotent("once", &job).await.unwrap_err();
    let request = served.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("POST /prefix/api/v1/jobs HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer wl_secret\r\n"));
    assert!(request.contains("idempotency-key: once\r\n"));
    assert!(request.ends_with(r#"{"queue":"q","kind":"k"}"#));
}

#[tokio::test]
async fn a_name_is_percent_encoded_in_the_request_path() {
    let (url, mut served) = server("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
    Client::new(&url).unwrap().queue("../jobs?a#b").await.unwrap_err();
    let request = served.join_next().await.unwrap().unwrap();
    assert!(request.starts_with("GET /prefix/api/v1/queues/..%2Fjobs%3Fa%23b HTTP"), "{request}");
}

#[tokio::test]
async fn a_problem_response_becomes_an_error_with_its_status_and_code() {
    let error = problem(concat!(
        "HTTP/1.1 409 Conflict\r\nconnection: close\r\n\r\n",
        r#"{"type":"/docs/reference/error-codes#already_ended","title":"x","status":409,"detail":"It has ended.","code":"already_ended"}"#
    ));
    let error = error.await;
    assert_eq!((error.status(), error.code()), (Some(409), Some("already_ended")), "{error:?}");
}

#[tokio::test]
async fn a_502_from_a_proxy_leaves_the_outcome_unknown() {
    let error = problem("HTTP/1.1 502 Bad Gateway\r\ncontent-length: 6\r\n\r\n<html>").await;
    assert_eq!((error.status(), error.code()), (Some(502), Some("outcome_unknown")));
    assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)), "a proxy cannot know what was done");
}

#[tokio::test]
async fn a_response_without_a_problem_document_is_not_a_refusal() {
    for response in [
        "HTTP/1.1 302 Found\r\nlocation: /login\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 404 Not Found\r\ncontent-length: 18\r\n\r\n404 page not found",
        "HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: 0\r\n\r\n",
    ] {
        let error = problem(response).await;
        assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)), "{response}");
    }
}

#[tokio::test]
async fn a_429_or_413_from_a_proxy_means_the_request_was_not_executed() {
    let later = problem("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(BackendError::from(later), BackendError::Throttled(_)));
    let never = problem("HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await;
    assert!(matches!(BackendError::from(never), BackendError::Refused(_)), "it would not be let through the next time");
}

#[tokio::test]
async fn a_truncated_response_leaves_the_outcome_unknown() {
    let error = problem("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{").await;
    assert!(matches!(error, ClientError::Unreachable { sent: true, .. }), "{error:?}");
    assert!(matches!(BackendError::from(error), BackendError::Unanswered(_)));
}

#[tokio::test]
async fn a_refused_connection_means_the_request_was_not_sent() {
    // Bound but not listening, so that no other process can take the port.
    let closed = TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    let error = Client::new(&url).unwrap().job(Uuid::nil()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable { sent: false, .. }), "{error:?}");
}

#[test]
fn a_server_address_must_be_an_http_url() {
    assert!(matches!(Client::new("7717").err(), Some(ClientError::Address(_))));
    assert!(matches!(Client::new("ftp://example.com").err(), Some(ClientError::Address(_))));
    assert!(Client::new("https://example.com").is_ok());
}

/// Requirement X7.
#[test]
fn a_trusted_authority_must_contain_a_valid_certificate() {
    let client = |pem: &str| Client::builder("https://example.com").trust(pem).build();
    assert!(matches!(client("not a certificate").err(), Some(ClientError::Authority(_))));
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(client(broken).err(), Some(ClientError::Authority(_))));
    assert_eq!(roots(b"").unwrap().len(), webpki_roots::TLS_SERVER_ROOTS.len());
}

//! Traces over OTLP, as a collector receives them.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Fixture, Serve, http};

/// Accepts one export, responds to it, and returns all of it as text.
fn collect_one(collector: &TcpListener) -> String {
    let (mut connection, _) = collector.accept().expect("the server sends its traces");
    let mut received = Vec::new();
    let mut part = [0; 4096];
    loop {
        // The length is in bytes, so the body is not decoded before it is complete.
        if let Some(head) = received.windows(4).position(|window| window == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&received[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if received.len() >= head + 4 + length.unwrap_or(0) {
                // A server whose export timed out has closed the connection, but has sent everything.
                let _sent = connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                break;
            }
        }
        match connection.read(&mut part).expect("the server sends its traces") {
            0 => break,
            bytes => received.extend_from_slice(&part[..bytes]),
        }
    }
    String::from_utf8_lossy(&received).into_owned()
}

/// Requirement X11.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_collector_receives_a_span_for_each_request() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", collector.local_addr().expect("the listener has an address"));
    let fixture = Fixture::sqlite();
    let mut server = Serve::on(&fixture).env("WINDLASS_OTLP_ENDPOINT", endpoint).start().await;
    let response = http().get(format!("{}/api/v1/queues", server.url)).send().await.expect("the server responds");
    assert_eq!(response.status(), 200);
    let export = tokio::task::spawn_blocking(move || collect_one(&collector));
    // The server exports pending spans when it stops.
    assert_eq!(server.program.terminate().await, Some(0));
    let export = export.await.expect("the collector does not panic");
    assert!(export.starts_with("POST /v1/traces"), "{export}");
    assert!(export.contains("GET /api/v1/queues"), "{export}");
}

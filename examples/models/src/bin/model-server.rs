//! A fake model server: takes a fixed time to load, then responds like OpenAI's API. It uses only the standard library,
//! so that it can be linked statically and be the only file of an image.
//!
//! `model-server NAME LOAD_SECONDS` listens on port 8080. A streamed question that contains `wait for /go` gets the
//! first word at once and the others after a request to that path.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// True once `/go` was requested.
static GO_REQUESTED: Mutex<bool> = Mutex::new(false);
static GO_CHANGED: Condvar = Condvar::new();

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| "model".into());
    let load_s: f64 = args.next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    println!("loading {name}");
    std::thread::sleep(Duration::from_secs_f64(load_s));
    let listener = TcpListener::bind("0.0.0.0:8080")?;
    println!("{name} is loaded");
    for stream in listener.incoming() {
        let name = name.clone();
        let stream = stream?;
        std::thread::spawn(move || {
            // The caller may have disconnected.
            let _ignored = serve(&stream, &name);
        });
    }
    Ok(())
}

fn serve(stream: &TcpStream, name: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            if let Some((field, value)) = line.split_once(':')
                && field.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = String::from_utf8_lossy(&body);
        let streamed = body.contains("\"stream\": true") || body.contains("\"stream\":true");
        if first.starts_with("POST") && streamed {
            return stream_words(stream, name, &body);
        }
        if first.starts_with("GET /go ") {
            *GO_REQUESTED.lock().unwrap_or_else(PoisonError::into_inner) = true;
            GO_CHANGED.notify_all();
        }
        let answer = match first.split(' ').nth(1) {
            Some(path) if first.starts_with("POST") => answer(path, name, &body),
            _ => r#"{"status":"ok"}"#.to_owned(),
        };
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        (&*stream).write_all(head.as_bytes())?;
        (&*stream).write_all(answer.as_bytes())?;
    }
}

/// A response in the format of the endpoint. Its text is the size of the request.
fn answer(path: &str, name: &str, body: &str) -> String {
    let usage = r#""usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}"#;
    let words = format!("{name} received {} bytes", body.len());
    match path {
        "/v1/embeddings" => format!(
            r#"{{"object":"list","model":"{name}","data":[{{"object":"embedding","index":0,"embedding":[0.5,{}]}}],{usage}}}"#,
            body.len()
        ),
        "/v1/completions" => format!(
            r#"{{"id":"cmpl-0","object":"text_completion","created":0,"model":"{name}","choices":[{{"index":0,"finish_reason":"stop","logprobs":null,"text":"{words}"}}],{usage}}}"#
        ),
        _ => format!(
            r#"{{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"{name}","choices":[{{"index":0,"finish_reason":"stop","logprobs":null,"message":{{"role":"assistant","content":"{words}","refusal":null}}}}],{usage}}}"#
        ),
    }
}

/// Streams five words as server-sent events.
fn stream_words(stream: &TcpStream, name: &str, body: &str) -> std::io::Result<()> {
    let mut stream = stream;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    for word in ["one ", "two ", "three ", "four ", "five"] {
        let piece = format!(
            "data: {{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"{name}\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"finish_reason\":null}}]}}\n\n"
        );
        stream.write_all(piece.as_bytes())?;
        stream.flush()?;
        std::thread::sleep(Duration::from_millis(300));
        if body.contains("wait for /go") {
            let requested = GO_REQUESTED.lock().unwrap_or_else(PoisonError::into_inner);
            drop(GO_CHANGED.wait_while(requested, |requested| !*requested));
        }
    }
    stream.write_all(b"data: [DONE]\n\n")
}

//! A model that is none: it takes a set time to load, then answers in the shape of OpenAI's API. It uses nothing but the
//! standard library, so that it can be linked statically and be the only file of an image.
//!
//! `model-server NAME LOAD_SECONDS` listens on port 8080.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

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
            // A caller that breaks off has its answer no more.
            let _gone = serve(&stream, &name);
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
        let answer = if first.starts_with("POST") {
            format!(
                r#"{{"id":"chatcmpl-0","object":"chat.completion","model":"{name}","choices":[{{"index":0,"finish_reason":"stop","message":{{"role":"assistant","content":"{} bytes were asked"}}}}],"usage":{{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}}}"#,
                body.len()
            )
        } else {
            r#"{"status":"ok"}"#.to_owned()
        };
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        (&*stream).write_all(head.as_bytes())?;
        (&*stream).write_all(answer.as_bytes())?;
    }
}

//! An HTTP server that records requests and can misbehave in various ways.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::eventually::wait_until;

/// How the receiver responds.
#[derive(Clone, Debug)]
pub enum Behavior {
    Respond(u16),
    /// With a response body.
    RespondWith(u16, String),
    Redirect(String),
    /// Reads requests and never responds.
    Hang,
    /// Does not accept connections; they stay in the kernel's queue.
    DoNotAccept,
    /// Closes before the request is read.
    CloseEarly,
    /// Sends a byte at a time, without end.
    Drip,
    /// Responds 503 with `Retry-After`, in seconds.
    RetryAfter(u64),
}

/// A received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl ReceivedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<ReceiverState>,
    _serving: JoinSet<()>,
}

struct ReceiverState {
    behavior: Mutex<Behavior>,
    requests: Mutex<Vec<ReceivedRequest>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Receiver {
    pub async fn start(behavior: Behavior) -> Self {
        Self::at("127.0.0.1:0", behavior).await
    }

    pub async fn at(address: &str, behavior: Behavior) -> Self {
        Self::try_at(address, behavior).await.expect("a port is free")
    }

    /// Same as `at`, for a port that may be in use.
    pub async fn try_at(address: &str, behavior: Behavior) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ReceiverState {
            behavior: Mutex::new(behavior),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            most_open: AtomicUsize::new(0),
        });
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, _serving: serving })
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    pub fn set_behavior(&self, behavior: Behavior) {
        *self.shared.behavior.lock().expect("lock poisoned") = behavior;
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.requests.lock().expect("lock poisoned").clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The maximum number of concurrent connections so far.
    pub fn most_open(&self) -> usize {
        self.shared.most_open.load(Ordering::SeqCst)
    }

    /// Waits until `count` requests have been received.
    pub async fn wait_for(&self, count: usize) -> Vec<ReceivedRequest> {
        wait_until(&format!("the receiver has {count} requests"), async || self.requests().len() >= count).await;
        self.requests()
    }
}

async fn serve(listener: TcpListener, shared: Arc<ReceiverState>) {
    let mut open = JoinSet::new();
    loop {
        if matches!(*shared.behavior.lock().expect("lock poisoned"), Behavior::DoNotAccept) {
            // Checked again below, because the test can change the behavior.
        } else if let Ok(Ok((stream, _))) = tokio::time::timeout(Duration::from_millis(20), listener.accept()).await {
            shared.connections.fetch_add(1, Ordering::SeqCst);
            let now = shared.open.fetch_add(1, Ordering::SeqCst) + 1;
            shared.most_open.fetch_max(now, Ordering::SeqCst);
            let shared = shared.clone();
            open.spawn(async move {
                let _broken = talk(stream, &shared).await;
                shared.open.fetch_sub(1, Ordering::SeqCst);
            });
            continue;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn talk(mut stream: TcpStream, shared: &ReceiverState) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let behavior = || shared.behavior.lock().expect("lock poisoned").clone();
        if matches!(behavior(), Behavior::CloseEarly) {
            return Ok(());
        }
        let Some(request) = read_request(&mut stream, &mut buffer).await? else { return Ok(()) };
        shared.requests.lock().expect("lock poisoned").push(request);
        let (status, extra, body) = match behavior() {
            Behavior::Respond(status) => (status, String::new(), String::from("thanks")),
            Behavior::RespondWith(status, body) => (status, String::new(), body),
            Behavior::Redirect(to) => (302, format!("location: {to}\r\n"), String::new()),
            Behavior::RetryAfter(seconds) => (503, format!("retry-after: {seconds}\r\n"), String::new()),
            Behavior::CloseEarly => return Ok(()),
            Behavior::Hang | Behavior::DoNotAccept => {
                // Until the client closes the connection, which then no longer counts as open.
                let mut rest = [0; 1 << 10];
                while stream.read(&mut rest).await? > 0 {}
                return Ok(());
            }
            Behavior::Drip => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nx-slow: ").await?;
                loop {
                    stream.write_all(b".").await?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let head = format!("HTTP/1.1 {status} Whatever\r\n{extra}content-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body.as_bytes()).await?;
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<ReceivedRequest>> {
    let mut chunk = [0; 16 << 10];
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let mut lines = head.split("\r\n");
            let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
            let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
            let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
            let mut request =
                ReceivedRequest { method, path, headers: lines.filter_map(header).collect(), body: String::new() };
            let length = request.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                request.body = String::from_utf8_lossy(&buffer[end + 4..end + 4 + length]).into_owned();
                buffer.drain(..end + 4 + length);
                return Ok(Some(request));
            }
        }
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            length => buffer.extend_from_slice(&chunk[..length]),
        }
    }
}

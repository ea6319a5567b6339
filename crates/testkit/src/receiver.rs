//! A receiver of HTTP requests that behaves as badly as it is told to, and remembers what it saw.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How a receiver treats whoever calls.
#[derive(Clone, Debug)]
pub enum Manner {
    Answer(u16),
    /// With these words.
    Say(u16, String),
    Redirect(String),
    /// Reads everything and never answers.
    Hang,
    /// Takes no connection at all; the kernel's queue does.
    DoNotAccept,
    /// Closes before the request is read.
    CloseEarly,
    /// Answers a byte at a time, without end.
    Drip,
    /// Asks to be left alone for this many seconds.
    Later(u64),
}

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

pub struct Receiver {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    manner: Mutex<Manner>,
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Receiver {
    pub async fn start(manner: Manner) -> Self {
        Self::at("127.0.0.1:0", manner).await
    }

    pub async fn at(address: &str, manner: Manner) -> Self {
        Self::try_at(address, manner).await.expect("a port is free")
    }

    /// For a port that somebody else may have.
    pub async fn try_at(address: &str, manner: Manner) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            manner: Mutex::new(manner),
            seen: Mutex::default(),
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

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("nobody panics") = manner;
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().expect("nobody panics").clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many connections were open at once, at most.
    pub fn most_open(&self) -> usize {
        self.shared.most_open.load(Ordering::SeqCst)
    }

    /// Waits until this many requests have come in.
    pub async fn saw(&self, count: usize) -> Vec<Seen> {
        wait_until(&format!("{count} requests"), async || self.seen().len() >= count).await;
        self.seen()
    }
}

/// How long a test waits for what must come: machines are noisy, and no wait is about speed.
const PATIENCE: Duration = Duration::from_secs(180);

/// Looks until it holds, and gives up after a while.
pub async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut open = JoinSet::new();
    loop {
        if matches!(*shared.manner.lock().expect("nobody panics"), Manner::DoNotAccept) {
            // Looked at again, so that a receiver can come to its senses.
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

async fn talk(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    loop {
        let manner = || shared.manner.lock().expect("nobody panics").clone();
        if matches!(manner(), Manner::CloseEarly) {
            return Ok(());
        }
        let Some(seen) = read_request(&mut stream, &mut buffer).await? else { return Ok(()) };
        shared.seen.lock().expect("nobody panics").push(seen);
        let (status, extra, words) = match manner() {
            Manner::Answer(status) => (status, String::new(), String::from("thanks")),
            Manner::Say(status, words) => (status, String::new(), words),
            Manner::Redirect(to) => (302, format!("location: {to}\r\n"), String::new()),
            Manner::Later(seconds) => (503, format!("retry-after: {seconds}\r\n"), String::new()),
            Manner::CloseEarly => return Ok(()),
            Manner::Hang | Manner::DoNotAccept => {
                // Until the caller has enough: a connection that it closed is not open any more.
                let mut rest = [0; 1 << 10];
                while stream.read(&mut rest).await? > 0 {}
                return Ok(());
            }
            Manner::Drip => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nx-slow: ").await?;
                loop {
                    stream.write_all(b".").await?;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        };
        let head = format!("HTTP/1.1 {status} Whatever\r\n{extra}content-length: {}\r\n\r\n", words.len());
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(words.as_bytes()).await?;
    }
}

async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Seen>> {
    let mut chunk = [0; 16 << 10];
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            let mut lines = head.split("\r\n");
            let mut first = lines.next().unwrap_or_default().split(' ').map(str::to_owned);
            let (method, path) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
            let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned()));
            let mut seen = Seen { method, path, headers: lines.filter_map(header).collect(), body: String::new() };
            let length = seen.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            if buffer.len() >= end + 4 + length {
                seen.body = String::from_utf8_lossy(&buffer[end + 4..end + 4 + length]).into_owned();
                buffer.drain(..end + 4 + length);
                return Ok(Some(seen));
            }
        }
        match stream.read(&mut chunk).await? {
            0 => return Ok(None),
            length => buffer.extend_from_slice(&chunk[..length]),
        }
    }
}

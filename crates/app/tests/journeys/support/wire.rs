//! A proxy that cuts, stalls, delays or duplicates what passes through it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CHUNK_BYTES: usize = 64 << 10;

/// The kind of traffic.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Traffic {
    /// Bytes are forwarded unchanged.
    Opaque,
    /// HTTP. Enqueues with an idempotency key and outcomes are sent a second time a moment later, as a retrying network
    /// or proxy may do.
    DuplicatedHttp,
}

#[derive(Clone, Copy, PartialEq)]
enum Condition {
    Normal,
    /// Bytes wait until the condition changes.
    Stalled,
    /// Each chunk is delayed.
    Slow(Duration),
}

pub(crate) struct NetworkProxy {
    address: String,
    condition: watch::Sender<Condition>,
    /// Incremented to cut every open connection.
    cuts: watch::Sender<u64>,
    _connections: JoinSet<()>,
}

impl NetworkProxy {
    /// Forwards to the address `host:port`.
    pub(crate) async fn to(target: &str, traffic: Traffic) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address").to_string();
        let (condition, current) = watch::channel(Condition::Normal);
        let (cuts, cut) = watch::channel(0);
        let target: Arc<str> = target.into();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                while open.try_join_next().is_some() {}
                open.spawn(connection(near, target.clone(), traffic, current.clone(), cut.clone()));
            }
        });
        Self { address, condition, cuts, _connections: connections }
    }

    /// The `host:port` on which the proxy listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Replaces the address in a URL with the proxy's.
    pub(crate) fn url(&self, url: &str) -> String {
        let (before, rest) = url.split_once('@').expect("the URL contains a user");
        let (_, database) = rest.split_once('/').expect("the URL contains a database name");
        format!("{before}@{}/{database}", self.address)
    }

    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn stall(&self) {
        self.condition.send_replace(Condition::Stalled);
    }

    pub(crate) fn slow_down(&self, by: Duration) {
        self.condition.send_replace(Condition::Slow(by));
    }

    pub(crate) fn clear(&self) {
        self.condition.send_replace(Condition::Normal);
    }
}

async fn connection(
    near: TcpStream,
    target: Arc<str>,
    traffic: Traffic,
    condition: watch::Receiver<Condition>,
    mut cut: watch::Receiver<u64>,
) {
    let Ok(far) = TcpStream::connect(&*target).await else { return };
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("the socket accepts the option");
    }
    cut.mark_unchanged();
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let duplicates = (traffic == Traffic::DuplicatedHttp).then(|| target.clone());
    tokio::select! {
        _ = forward(near_in, far_out, condition.clone(), duplicates) => {}
        _ = forward(far_in, near_out, condition, None) => {}
        _ = cut.changed() => {}
    }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut condition: watch::Receiver<Condition>,
    duplicates: Option<Arc<str>>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut request = Vec::new();
    let mut copies = JoinSet::new();
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        let now = *condition.wait_for(|condition| *condition != Condition::Stalled).await.map_err(io::Error::other)?;
        if let Condition::Slow(delay) = now {
            // The injected fault is a delay.
            tokio::time::sleep(delay).await;
        }
        to.write_all(&chunk[..length]).await?;
        if let Some(target) = &duplicates {
            request.extend_from_slice(&chunk[..length]);
            if let Some(end) = request_length(&request) {
                if is_idempotent(&request) {
                    copies.spawn(send_again(target.clone(), request[..end].to_vec()));
                }
                request.drain(..end);
            }
        }
        while copies.try_join_next().is_some() {}
    }
}

/// Returns the length of the first request once it is complete.
fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let end = head + length.unwrap_or(0);
    (bytes.len() >= end).then_some(end)
}

fn is_idempotent(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let first = text.lines().next().unwrap_or_default();
    first.starts_with("post ") && (first.contains("/settle") || text.contains("idempotency-key:"))
}

/// Sends the request again and reads the start of the response, which shows that the server handled it.
async fn send_again(target: Arc<str>, request: Vec<u8>) -> io::Result<()> {
    // A duplicate arrives a moment after the original.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut stream = TcpStream::connect(&*target).await?;
    stream.write_all(&request).await?;
    let _length = stream.read(&mut [0; 512]).await?;
    Ok(())
}

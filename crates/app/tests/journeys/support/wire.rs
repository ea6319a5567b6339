//! A network that a test breaks: every connection passes here, and is cut, stalled, delayed or doubled as the test says.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

const CHUNK_BYTES: usize = 64 << 10;

/// What speaks on the wire, as far as it matters for doubling.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Between {
    /// Bytes that mean nothing here.
    Anything,
    /// HTTP, of which enqueues with a key and outcomes are sent twice, the second time a moment later: a network or a
    /// proxy may do that to them.
    Doubled,
}

#[derive(Clone, Copy, PartialEq)]
enum Weather {
    Fair,
    /// Bytes wait for better weather.
    Stalled,
    /// Each chunk takes this long.
    Slow(Duration),
}

pub(crate) struct Wire {
    address: String,
    weather: watch::Sender<Weather>,
    /// Moved on to cut every connection there is.
    cuts: watch::Sender<u64>,
    _connections: JoinSet<()>,
}

impl Wire {
    /// To the address `host:port`.
    pub(crate) async fn to(target: &str, between: Between) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address").to_string();
        let (weather, forecast) = watch::channel(Weather::Fair);
        let (cuts, cut) = watch::channel(0);
        let target: Arc<str> = target.into();
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                while open.try_join_next().is_some() {}
                open.spawn(connection(near, target.clone(), between, forecast.clone(), cut.clone()));
            }
        });
        Self { address, weather, cuts, _connections: connections }
    }

    /// `host:port` of this end.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The same URL through this wire.
    pub(crate) fn url(&self, url: &str) -> String {
        let (before, rest) = url.split_once('@').expect("the URL names a user");
        let (_, database) = rest.split_once('/').expect("the URL names a database");
        format!("{before}@{}/{database}", self.address)
    }

    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    pub(crate) fn stall(&self) {
        self.weather.send_replace(Weather::Stalled);
    }

    pub(crate) fn slow_down(&self, by: Duration) {
        self.weather.send_replace(Weather::Slow(by));
    }

    pub(crate) fn clear(&self) {
        self.weather.send_replace(Weather::Fair);
    }
}

async fn connection(
    near: TcpStream,
    target: Arc<str>,
    between: Between,
    weather: watch::Receiver<Weather>,
    mut cut: watch::Receiver<u64>,
) {
    let Ok(far) = TcpStream::connect(&*target).await else { return };
    for stream in [&near, &far] {
        stream.set_nodelay(true).expect("a connection takes the option");
    }
    cut.mark_unchanged();
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let doubler = (between == Between::Doubled).then(|| target.clone());
    tokio::select! {
        _ = pass(near_in, far_out, weather.clone(), doubler) => {}
        _ = pass(far_in, near_out, weather, None) => {}
        _ = cut.changed() => {}
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut weather: watch::Receiver<Weather>,
    doubler: Option<Arc<str>>,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut request = Vec::new();
    let mut copies = JoinSet::new();
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return Ok(());
        }
        let now = *weather.wait_for(|weather| *weather != Weather::Stalled).await.map_err(io::Error::other)?;
        if let Weather::Slow(by) = now {
            tokio::time::sleep(by).await;
        }
        to.write_all(&chunk[..length]).await?;
        if let Some(target) = &doubler {
            request.extend_from_slice(&chunk[..length]);
            if let Some(whole) = whole_request(&request) {
                if may_come_twice(&request) {
                    copies.spawn(repeat(target.clone(), request[..whole].to_vec()));
                }
                request.drain(..whole);
            }
        }
        while copies.try_join_next().is_some() {}
    }
}

/// The length of the first request, once all of it is there.
fn whole_request(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let whole = head + length.unwrap_or(0);
    (bytes.len() >= whole).then_some(whole)
}

fn may_come_twice(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let first = text.lines().next().unwrap_or_default();
    first.starts_with("post ") && (first.contains("/settle") || text.contains("idempotency-key:"))
}

/// Nobody reads the second answer further than to know that it came.
async fn repeat(target: Arc<str>, request: Vec<u8>) -> io::Result<()> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut again = TcpStream::connect(&*target).await?;
    again.write_all(&request).await?;
    let _length = again.read(&mut [0; 512]).await?;
    Ok(())
}

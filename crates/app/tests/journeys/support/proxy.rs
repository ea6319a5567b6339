//! A proxy between the server and PostgreSQL that drops one connection after a commit succeeded and before its response
//! is delivered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const COMMIT: &[u8] = b"commit\0";
const COMMITTED: &[u8] = b"COMMIT\0";
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) struct LostCommitProxy {
    pub(crate) url: String,
    /// Set when the response to a commit was dropped.
    has_dropped: Arc<AtomicBool>,
    _connections: JoinSet<()>,
}

impl LostCommitProxy {
    /// Listens in front of the database at `url`. The response to the commit of the first transaction that reads
    /// `marker` is dropped.
    pub(crate) async fn start(url: &str, marker: &'static str) -> Self {
        let (scheme_and_user, rest) = url.split_once('@').expect("the URL contains a user");
        let (address, database) = rest.split_once('/').expect("the URL contains a database name");
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let here = listener.local_addr().expect("the listener has an address");
        let has_dropped = Arc::new(AtomicBool::new(false));
        let mut connections = JoinSet::new();
        let shared = has_dropped.clone();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.expect("PostgreSQL is reachable");
                open.spawn(forward(client, server, marker, shared.clone()));
            }
        });
        Self { url: format!("{scheme_and_user}@{here}/{database}"), has_dropped, _connections: connections }
    }

    pub(crate) fn has_dropped_a_response(&self) -> bool {
        self.has_dropped.load(Ordering::SeqCst)
    }
}

/// Forwards bytes in both directions until one side closes or the selected response is dropped.
async fn forward(mut client: TcpStream, mut server: TcpStream, marker: &str, has_dropped: Arc<AtomicBool>) {
    let (mut request, mut response) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    // The end of the previous responses, because the marker may span two reads.
    let mut tail = Vec::new();
    let (mut has_read_marker, mut drops_response) = (false, false);
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                drops_response |=
                    has_read_marker && contains(&request[..length], COMMIT) && !has_dropped.swap(true, Ordering::SeqCst);
                if server.write_all(&request[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut response) => {
                let Ok(length @ 1..) = read else { return };
                if drops_response {
                    // Responses to statements sent with the commit are dropped too. The connection closes once the
                    // commit succeeded.
                    if contains(&response[..length], COMMITTED) {
                        return;
                    }
                    continue;
                }
                tail.extend_from_slice(&response[..length]);
                has_read_marker |= contains(&tail, marker.as_bytes());
                tail.drain(..tail.len().saturating_sub(marker.len()));
                if client.write_all(&response[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

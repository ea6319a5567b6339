//! Stands between the server and PostgreSQL and breaks one connection at the worst moment: after a commit was done and
//! before its answer came through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const COMMIT: &[u8] = b"commit\0";
const COMMITTED: &[u8] = b"COMMIT\0";
const CHUNK_BYTES: usize = 64 << 10;

pub(crate) struct Proxy {
    pub(crate) url: String,
    /// Set once a commit's answer was swallowed.
    broke: Arc<AtomicBool>,
    _connections: JoinSet<()>,
}

impl Proxy {
    /// In front of the database at `url`. The first transaction that reads `marker` commits and never hears of it.
    pub(crate) async fn start(url: &str, marker: &'static str) -> Self {
        let (scheme_and_user, rest) = url.split_once('@').expect("the URL names a user");
        let (address, database) = rest.split_once('/').expect("the URL names a database");
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let here = listener.local_addr().expect("it has an address");
        let broke = Arc::new(AtomicBool::new(false));
        let mut connections = JoinSet::new();
        let seen = broke.clone();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.expect("PostgreSQL answers");
                open.spawn(pass(client, server, marker, seen.clone()));
            }
        });
        Self { url: format!("{scheme_and_user}@{here}/{database}"), broke, _connections: connections }
    }

    pub(crate) fn has_broken(&self) -> bool {
        self.broke.load(Ordering::SeqCst)
    }
}

/// Passes bytes both ways until one side ends, or until the answer that is not to come through.
async fn pass(mut client: TcpStream, mut server: TcpStream, marker: &str, broke: Arc<AtomicBool>) {
    let (mut asked, mut answered) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    // The end of what was read before: the marker may lie across two reads.
    let mut before = Vec::new();
    let (mut marked, mut doomed) = (false, false);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                doomed |= marked && contains(&asked[..length], COMMIT) && !broke.swap(true, Ordering::SeqCst);
                if server.write_all(&asked[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                if doomed {
                    // Answers to what came with the commit are swallowed too: the connection breaks once it is done.
                    if contains(&answered[..length], COMMITTED) {
                        return;
                    }
                    continue;
                }
                before.extend_from_slice(&answered[..length]);
                marked |= contains(&before, marker.as_bytes());
                before.drain(..before.len().saturating_sub(marker.len()));
                if client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

//! A proxy between the server and PostgreSQL that counts commits of transactions with writes and kills the server at
//! the commit that the test selects.

use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const COMMIT: &[u8] = b"commit\0";
const COMMITTED: &[u8] = b"COMMIT\0";
const CHUNK_BYTES: usize = 64 << 10;

/// When the server is killed, relative to the commit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KillMoment {
    /// The server has sent the commit; PostgreSQL never receives it.
    BeforeCommit,
    /// PostgreSQL has committed; the server never receives the response.
    AfterCommit,
}

struct Armed {
    server: Pid,
    /// Commits until the kill.
    remaining: usize,
    moment: KillMoment,
}

pub(crate) struct CommitKiller {
    pub(crate) url: String,
    armed: Arc<Mutex<Option<Armed>>>,
    _connections: JoinSet<()>,
}

impl CommitKiller {
    /// Listens in front of the database at `url`.
    pub(crate) async fn of(url: &str) -> Self {
        let (scheme_and_user, rest) = url.split_once('@').expect("the URL contains a user");
        let (address, database) = rest.split_once('/').expect("the URL contains a database name");
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let here = listener.local_addr().expect("the listener has an address");
        let armed: Arc<Mutex<Option<Armed>>> = Arc::default();
        let mut connections = JoinSet::new();
        let shared = armed.clone();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.expect("PostgreSQL is reachable");
                open.spawn(forward(client, server, shared.clone()));
            }
        });
        Self { url: format!("{scheme_and_user}@{here}/{database}"), armed, _connections: connections }
    }

    /// Kills the server at the `number`th commit with writes from now on.
    pub(crate) fn arm(&self, server: Pid, number: usize, moment: KillMoment) {
        let armed = Armed { server, remaining: number, moment };
        *self.armed.lock().expect("lock poisoned") = Some(armed);
    }

    /// Kills no server any more.
    pub(crate) fn disarm(&self) {
        *self.armed.lock().expect("lock poisoned") = None;
    }
}

/// Counts a commit. Returns the process to kill and the moment if this commit is the selected one.
fn count_commit(armed: &Mutex<Option<Armed>>) -> Option<(Pid, KillMoment)> {
    let mut armed = armed.lock().expect("lock poisoned");
    let state = armed.as_mut()?;
    state.remaining -= 1;
    let target = (state.remaining == 0).then_some((state.server, state.moment));
    if target.is_some() {
        *armed = None;
    }
    target
}

fn kill(server: Pid) {
    // The test may have killed the server already.
    let _exited = kill_process(server, Signal::KILL);
}

/// Forwards bytes in both directions until one side closes or the server is killed.
async fn forward(mut client: TcpStream, mut server: TcpStream, armed: Arc<Mutex<Option<Armed>>>) {
    let (mut request, mut response) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut has_written, mut killed_after_commit) = (false, None);
    loop {
        tokio::select! {
            read = client.read(&mut request) => {
                let Ok(length @ 1..) = read else { return };
                if has_written && contains(&request[..length], COMMIT) {
                    match count_commit(&armed) {
                        Some((pid, KillMoment::BeforeCommit)) => return kill(pid),
                        Some((pid, KillMoment::AfterCommit)) => killed_after_commit = Some(pid),
                        None => {}
                    }
                }
                if server.write_all(&request[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut response) => {
                let Ok(length @ 1..) = read else { return };
                let committed = contains(&response[..length], COMMITTED);
                has_written = !committed && (has_written || reports_written_rows(&response[..length]));
                match killed_after_commit {
                    Some(pid) if committed => return kill(pid),
                    // Responses to statements sent with the commit are dropped too.
                    Some(_) => {}
                    None => {
                        if client.write_all(&response[..length]).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// True if a response contains a command tag with a nonzero number of written rows.
fn reports_written_rows(bytes: &[u8]) -> bool {
    let tags: [&[u8]; 3] = [b"INSERT 0 ", b"UPDATE ", b"DELETE "];
    let counts = |tag: &[u8], window: &[u8]| window.starts_with(tag) && (b'1'..=b'9').contains(&window[tag.len()]);
    tags.into_iter().any(|tag| bytes.windows(tag.len() + 1).any(|window| counts(tag, window)))
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

//! Stands between the server and PostgreSQL, counts the server's commits of transactions that wrote something, and kills it at
//! the one that the test names.

use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

const COMMIT: &[u8] = b"commit\0";
const COMMITTED: &[u8] = b"COMMIT\0";
const CHUNK_BYTES: usize = 64 << 10;

/// When exactly the server dies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Moment {
    /// The commit was sent and never arrives.
    Before,
    /// It is done, and the server never hears of it.
    After,
}

struct Armed {
    server: Pid,
    /// Commits until it happens.
    left: usize,
    moment: Moment,
}

pub(crate) struct Commits {
    pub(crate) url: String,
    armed: Arc<Mutex<Option<Armed>>>,
    _connections: JoinSet<()>,
}

impl Commits {
    /// In front of the database at `url`.
    pub(crate) async fn of(url: &str) -> Self {
        let (scheme_and_user, rest) = url.split_once('@').expect("the URL names a user");
        let (address, database) = rest.split_once('/').expect("the URL names a database");
        let address = address.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let here = listener.local_addr().expect("it has an address");
        let armed: Arc<Mutex<Option<Armed>>> = Arc::default();
        let mut connections = JoinSet::new();
        let shared = armed.clone();
        connections.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.expect("PostgreSQL answers");
                open.spawn(pass(client, server, shared.clone()));
            }
        });
        Self { url: format!("{scheme_and_user}@{here}/{database}"), armed, _connections: connections }
    }

    /// The server dies at the `number`th commit from now on that holds anything.
    pub(crate) fn kill(&self, server: Pid, number: usize, moment: Moment) {
        let armed = Armed { server, left: number, moment };
        *self.armed.lock().expect("nobody panics with it in hand") = Some(armed);
    }

    /// Nobody dies any more.
    pub(crate) fn disarm(&self) {
        *self.armed.lock().expect("nobody panics with it in hand") = None;
    }
}

/// Whom this commit kills, and when.
fn doom(armed: &Mutex<Option<Armed>>) -> Option<(Pid, Moment)> {
    let mut armed = armed.lock().expect("nobody panics with it in hand");
    let now = armed.as_mut()?;
    now.left -= 1;
    let doomed = (now.left == 0).then_some((now.server, now.moment));
    if doomed.is_some() {
        *armed = None;
    }
    doomed
}

fn kill(server: Pid) {
    // The test may have been quicker.
    let _gone = kill_process(server, Signal::KILL);
}

/// Passes bytes both ways until one side ends or the server dies.
async fn pass(mut client: TcpStream, mut server: TcpStream, armed: Arc<Mutex<Option<Armed>>>) {
    let (mut asked, mut answered) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let (mut wrote, mut dies_after) = (false, None);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                if wrote && contains(&asked[..length], COMMIT) {
                    match doom(&armed) {
                        Some((pid, Moment::Before)) => return kill(pid),
                        Some((pid, Moment::After)) => dies_after = Some(pid),
                        None => {}
                    }
                }
                if server.write_all(&asked[..length]).await.is_err() {
                    return;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                let committed = contains(&answered[..length], COMMITTED);
                wrote = !committed && (wrote || tells_of_rows(&answered[..length]));
                match dies_after {
                    Some(pid) if committed => return kill(pid),
                    // Answers to what came with the commit are swallowed too.
                    Some(_) => {}
                    None => {
                        if client.write_all(&answered[..length]).await.is_err() {
                            return;
                        }
                    }
                }
            }
        }
    }
}

/// Whether an answer tells of rows that were written.
fn tells_of_rows(bytes: &[u8]) -> bool {
    let tags: [&[u8]; 3] = [b"INSERT 0 ", b"UPDATE ", b"DELETE "];
    let counts = |tag: &[u8], window: &[u8]| window.starts_with(tag) && (b'1'..=b'9').contains(&window[tag.len()]);
    tags.into_iter().any(|tag| bytes.windows(tag.len() + 1).any(|window| counts(tag, window)))
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

//! Live signals (S3): one look for all open streams, one slot for each.
//!
//! Each stream has a slot that holds the newest version of its job and nothing else: a reader that is slow finds the
//! newest when it comes, and costs nobody anything meanwhile. One loop asks for the versions of all watched jobs in one
//! statement, at once when this node changed one of them and else on a timer, which is how changes of other nodes are
//! seen. Position and ETA are laid over anew at most once a second, less often when very many streams are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::JobId;
use domain::limits::STREAMS;
use store::Store;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

/// How often the versions are asked for while few streams are open; ten thousand jobs take a second each.
const LOOK_LEAST: Duration = Duration::from_millis(100);
const LOOK_MOST: Duration = Duration::from_secs(1);
/// Jobs asked for in one statement.
const AT_ONCE: usize = 1_000;
/// Streams for which the overlay is laid over once a second.
const OVERLAY_STREAMS: usize = 500;

#[derive(Clone)]
pub struct Streams {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    watched: Mutex<HashMap<JobId, Slot>>,
    opened: tokio::sync::Notify,
}

struct Slot {
    version: watch::Sender<i64>,
    readers: usize,
}

/// One reader's hold on a job's slot; given back when dropped.
pub(crate) struct Watching {
    job: JobId,
    pub(crate) version: watch::Receiver<i64>,
    shared: Arc<Shared>,
}

impl Streams {
    pub fn new(store: Store) -> Self {
        let opened = tokio::sync::Notify::new();
        Self { shared: Arc::new(Shared { store, watched: Mutex::default(), opened }) }
    }

    /// Nothing when as many streams are open as this node takes.
    pub(crate) fn watch(&self, job: JobId, version: i64) -> Option<Watching> {
        let mut watched = self.shared.watched.lock().expect("no stream panics");
        if watched.len() >= STREAMS {
            return None;
        }
        let slot = watched.entry(job).or_insert_with(|| Slot { version: watch::Sender::new(version), readers: 0 });
        slot.readers += 1;
        let version = slot.version.subscribe();
        self.shared.opened.notify_one();
        Some(Watching { job, version, shared: self.shared.clone() })
    }

    /// How long a stream waits before it lays position and ETA over anew.
    pub(crate) fn overlay_every(&self) -> Duration {
        let open = self.shared.watched.lock().expect("no stream panics").len();
        Duration::from_secs((open / OVERLAY_STREAMS).max(1) as u64)
    }

    pub fn open(&self) -> usize {
        self.shared.watched.lock().expect("no stream panics").len()
    }

    /// Looks until dropped. The server runs it beside its requests.
    pub async fn run(&self) {
        loop {
            self.shared.opened.notified().await;
            // Only while somebody watches: whoever changes a job pays nothing otherwise.
            let changes = self.shared.store.hints().changes();
            self.look_while_watched(changes).await;
        }
    }

    async fn look_while_watched(&self, mut changes: broadcast::Receiver<JobId>) {
        loop {
            let jobs: Vec<JobId> = self.shared.watched.lock().expect("no stream panics").keys().copied().collect();
            if jobs.is_empty() {
                return;
            }
            let every = LOOK_MOST.mul_f64((jobs.len() as f64 / 5_000.0).min(1.0)).max(LOOK_LEAST);
            for chunk in jobs.chunks(AT_ONCE) {
                self.look(chunk.to_vec()).await;
            }
            let until = tokio::time::Instant::now() + every;
            while let Ok(changed) = tokio::time::timeout_at(until, changes.recv()).await {
                match changed {
                    Ok(job) if self.is_watched(job) => self.look(vec![job]).await,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return,
                }
            }
        }
    }

    fn is_watched(&self, job: JobId) -> bool {
        self.shared.watched.lock().expect("no stream panics").contains_key(&job)
    }

    async fn look(&self, jobs: Vec<JobId>) {
        // A database that is away now is asked again soon; the streams stay open meanwhile.
        let Ok(versions) = self.shared.store.signal_versions(jobs).await else { return };
        let watched = self.shared.watched.lock().expect("no stream panics");
        for (job, version) in versions {
            if let Some(slot) = watched.get(&job) {
                slot.version.send_if_modified(|kept| std::mem::replace(kept, version) != version);
            }
        }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut watched = self.shared.watched.lock().expect("no stream panics");
        if let Some(slot) = watched.get_mut(&self.job) {
            slot.readers -= 1;
            if slot.readers == 0 {
                watched.remove(&self.job);
            }
        }
    }
}

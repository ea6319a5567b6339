//! Live signals: one shared poll for all open streams, and one slot per watched job.
//!
//! A slot holds only the newest version of its job. A slow reader therefore finds the newest version when it comes
//! back, and delays no other reader. One loop queries the versions of all watched jobs in one statement: at once after
//! a change on this node, and on a timer to see changes of other nodes. Position and ETA are refreshed at most once a
//! second, less often if very many streams are open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::limits::{CHANGED_STREAMS_PER_S, STREAMS, STREAMS_PER_TOKEN};
use domain::{JobId, TenantId};
use store::Store;
use store::db::notifier::JobChange;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

/// Poll interval while few streams are open. It grows to `MAX_POLL_INTERVAL` at 5,000 streams.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Jobs per query.
const QUERY_JOBS: usize = 1_000;
/// Number of streams up to which position and ETA are refreshed once a second.
const OVERLAY_STREAMS: usize = 500;

#[derive(Clone)]
pub struct Streams {
    shared: Arc<StreamTable>,
}

struct StreamTable {
    store: Store,
    watched: Mutex<HashMap<JobId, Slot>>,
    /// Open filtered streams by token.
    filtered: Mutex<HashMap<TokenKey, usize>>,
    opened: tokio::sync::Notify,
}

/// The tenant and the name of a token.
type TokenKey = (TenantId, Arc<str>);

/// Counts one open filtered stream of a token while it exists.
pub(crate) struct FilteredPermit {
    token: TokenKey,
    shared: Arc<StreamTable>,
}

struct Slot {
    version: watch::Sender<i64>,
    readers: usize,
}

/// A reader's subscription to the slot of a job. Unsubscribes when dropped.
pub(crate) struct SignalWatch {
    job: JobId,
    pub(crate) version: watch::Receiver<i64>,
    shared: Arc<StreamTable>,
}

impl Streams {
    pub fn new(store: Store) -> Self {
        let opened = tokio::sync::Notify::new();
        Self { shared: Arc::new(StreamTable { store, watched: Mutex::default(), filtered: Mutex::default(), opened }) }
    }

    /// Subscribes to a job. Returns None if the limit of open streams is reached.
    pub(crate) fn watch(&self, job: JobId, version: i64) -> Option<SignalWatch> {
        let mut watched = self.shared.watched.lock().expect("lock poisoned");
        if watched.len() >= STREAMS {
            return None;
        }
        let slot = watched.entry(job).or_insert_with(|| Slot { version: watch::Sender::new(version), readers: 0 });
        slot.readers += 1;
        let version = slot.version.subscribe();
        self.shared.opened.notify_one();
        Some(SignalWatch { job, version, shared: self.shared.clone() })
    }

    /// Counts a filtered stream of a token. Returns None if the token has `STREAMS_PER_TOKEN` open.
    pub(crate) fn open_filtered(&self, tenant: TenantId, token: &Arc<str>) -> Option<FilteredPermit> {
        let token = (tenant, token.clone());
        let mut filtered = self.shared.filtered.lock().expect("lock poisoned");
        let open = filtered.entry(token.clone()).or_default();
        if *open >= STREAMS_PER_TOKEN {
            return None;
        }
        *open += 1;
        Some(FilteredPermit { token, shared: self.shared.clone() })
    }

    /// Minimum interval of the events of a dashboard tab. Each event makes it read its page, so the interval grows with the
    /// number of tabs.
    pub(crate) fn changed_interval(&self) -> Duration {
        let open: usize = self.shared.filtered.lock().expect("lock poisoned").values().sum();
        Duration::from_secs_f64((open as f64 / CHANGED_STREAMS_PER_S as f64).max(1.0))
    }

    /// Interval at which a stream refreshes position and ETA.
    pub(crate) fn overlay_interval(&self) -> Duration {
        let open = self.shared.watched.lock().expect("lock poisoned").len();
        Duration::from_secs((open / OVERLAY_STREAMS).max(1) as u64)
    }

    pub fn open(&self) -> usize {
        self.shared.watched.lock().expect("lock poisoned").len()
    }

    /// Polls until dropped. `AppState::new` runs it as a background task.
    pub async fn run(&self) {
        loop {
            self.shared.opened.notified().await;
            // Subscribe only while a stream is open: a change of a job costs nothing otherwise.
            let changes = self.shared.store.notifier().changes();
            self.poll_while_watched(changes).await;
        }
    }

    async fn poll_while_watched(&self, mut changes: broadcast::Receiver<JobChange>) {
        loop {
            let jobs: Vec<JobId> = self.shared.watched.lock().expect("lock poisoned").keys().copied().collect();
            if jobs.is_empty() {
                return;
            }
            let interval = MAX_POLL_INTERVAL.mul_f64((jobs.len() as f64 / 5_000.0).min(1.0)).max(MIN_POLL_INTERVAL);
            for chunk in jobs.chunks(QUERY_JOBS) {
                self.poll(chunk.to_vec()).await;
            }
            let deadline = tokio::time::Instant::now() + interval;
            while let Ok(changed) = tokio::time::timeout_at(deadline, changes.recv()).await {
                match changed {
                    Ok(change) if self.is_watched(change.job) => self.poll(vec![change.job]).await,
                    Ok(_) => {}
                    Err(RecvError::Lagged(_)) => break,
                    Err(RecvError::Closed) => return,
                }
            }
        }
    }

    fn is_watched(&self, job: JobId) -> bool {
        self.shared.watched.lock().expect("lock poisoned").contains_key(&job)
    }

    async fn poll(&self, jobs: Vec<JobId>) {
        // If the database is unavailable, the next poll tries again; the streams stay open.
        let Ok(versions) = self.shared.store.signal_versions(jobs).await else { return };
        let watched = self.shared.watched.lock().expect("lock poisoned");
        for (job, version) in versions {
            if let Some(slot) = watched.get(&job) {
                slot.version.send_if_modified(|current| std::mem::replace(current, version) != version);
            }
        }
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        let mut watched = self.shared.watched.lock().expect("lock poisoned");
        if let Some(slot) = watched.get_mut(&self.job) {
            slot.readers -= 1;
            if slot.readers == 0 {
                watched.remove(&self.job);
            }
        }
    }
}

impl Drop for FilteredPermit {
    fn drop(&mut self) {
        let mut filtered = self.shared.filtered.lock().expect("lock poisoned");
        if let Some(open) = filtered.get_mut(&self.token) {
            *open -= 1;
            if *open == 0 {
                filtered.remove(&self.token);
            }
        }
    }
}

//! Streams partial results of a runtime to a caller that waits on this node.
//!
//! The caller subscribes under the run name of its job before it creates the job, so that no chunk is missed. If the
//! slot is on another node, there are no chunks and the caller gets the job's result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use domain::Epoch;
use domain::limits::{RELAY_CHUNKS, RELAY_IDLE_S};
use tokio::sync::mpsc;

#[derive(Clone, Default)]
pub struct Relay {
    subscribers: Arc<Mutex<HashMap<String, mpsc::Sender<RelayChunk>>>>,
}

/// A chunk of a result, with the epoch of the claim that produced it.
type RelayChunk = (Epoch, Bytes);

/// A subscription. It ends when it is dropped.
pub struct RelaySubscription {
    relay: Relay,
    run: String,
    chunks: mpsc::Receiver<RelayChunk>,
}

impl Relay {
    pub fn subscribe(&self, run: &str) -> RelaySubscription {
        let (sender, chunks) = mpsc::channel(RELAY_CHUNKS);
        self.subscribers.lock().expect("lock poisoned").insert(run.to_owned(), sender);
        RelaySubscription { relay: self.clone(), run: run.to_owned(), chunks }
    }

    /// The sender for the results of a job of this run, if anyone subscribed. `epoch` is the job's current claim.
    pub(crate) fn sender(&self, run: Option<&str>, epoch: Epoch) -> Option<RelaySender> {
        let subscribers = self.subscribers.lock().expect("lock poisoned");
        subscribers.get(run?).cloned().map(|chunks| RelaySender { chunks, epoch })
    }
}

pub(crate) struct RelaySender {
    chunks: mpsc::Sender<RelayChunk>,
    epoch: Epoch,
}

impl RelaySender {
    /// Sends a chunk. Returns false if the subscriber is gone, or has accepted nothing for `RELAY_IDLE_S`.
    pub(crate) async fn send(&self, chunk: Bytes) -> bool {
        self.chunks.send_timeout((self.epoch, chunk), Duration::from_secs(RELAY_IDLE_S)).await.is_ok()
    }
}

impl RelaySubscription {
    /// The next chunk. A chunk with a different epoch starts a new result, because the job was claimed again.
    pub async fn next(&mut self) -> Option<(Epoch, Bytes)> {
        self.chunks.recv().await
    }
}

impl Drop for RelaySubscription {
    fn drop(&mut self) {
        self.relay.subscribers.lock().expect("lock poisoned").remove(&self.run);
    }
}

//! Serves the logs of this node's containers to other nodes, a few concurrently, each in a task of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::TenantId;
use domain::limits::{CONCURRENT_LOG_READINGS, CONCURRENT_LOG_READINGS_PER_TENANT, LOG_CHUNK_BYTES};
use domain::runtimes::OperationCode;
use futures_util::StreamExt;
use futures_util::stream::Fuse;
use store::runtimes::logs::serve::{Appended, ClaimedReading};
use store::runtimes::logs::{LogFault, LogReading};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::{HEARTBEAT, fault};
use crate::runtimes::driver::{DriverError, DriverFuture, DriverStream, Follow};
use crate::runtimes::{NodeShared, RuntimeNode};
use crate::task::{Task, TaskOutcome};

/// Log output within this time is sent as one chunk.
const COALESCE: Duration = Duration::from_millis(100);
/// Pause before a chunk is sent again when the buffer is full.
const BUFFER_FULL_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct ServeLogs {
    node: RuntimeNode,
    pub(super) permits: ReadingPermits,
}

impl ServeLogs {
    pub(crate) fn new(node: RuntimeNode) -> Self {
        Self { node, permits: ReadingPermits::default() }
    }
}

impl Task for ServeLogs {
    const NAME: &'static str = "serve_logs";
    const EVERY: Duration = Duration::from_millis(500);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let shared = &self.node.shared;
        if shared.stop.is_cancelled() {
            return Ok(TaskOutcome::nothing());
        }
        // Claims readings even without a free permit, because a reader without a response considers this node dead.
        let claimed = store.claim_log_readings(&shared.context.node, CONCURRENT_LOG_READINGS).await?;
        let count = claimed.len();
        for reading in claimed {
            let permit = self.permits.try_acquire(reading.reading.tenant);
            let (shared, store) = (shared.clone(), store.clone());
            self.node.shared.tracker.spawn(async move {
                match &permit {
                    Some(_) => serve(&shared, &store, &reading).await,
                    None => refuse(&store, reading.reading).await,
                }
            });
        }
        Ok(match count {
            0 => TaskOutcome::nothing(),
            logs => {
                let next_in = (logs == CONCURRENT_LOG_READINGS).then_some(Duration::ZERO);
                TaskOutcome { work: Some(format!("{logs} logs requested by other nodes")), next_in }
            }
        })
    }
}

/// Limits the logs that this node reads for other nodes. One tenant may use at most half of the permits.
#[derive(Clone, Default)]
pub(super) struct ReadingPermits {
    used: Arc<Mutex<Vec<TenantId>>>,
}

/// Released on drop.
pub(super) struct ReadingPermit {
    permits: ReadingPermits,
    tenant: TenantId,
}

impl ReadingPermits {
    pub(super) fn try_acquire(&self, tenant: TenantId) -> Option<ReadingPermit> {
        let mut used = self.used.lock().expect("lock poisoned");
        let own = used.iter().filter(|other| **other == tenant).count();
        if used.len() >= CONCURRENT_LOG_READINGS || own >= CONCURRENT_LOG_READINGS_PER_TENANT {
            return None;
        }
        used.push(tenant);
        Some(ReadingPermit { permits: self.clone(), tenant })
    }
}

impl Drop for ReadingPermit {
    fn drop(&mut self) {
        let mut used = self.permits.used.lock().expect("lock poisoned");
        if let Some(index) = used.iter().position(|tenant| *tenant == self.tenant) {
            used.swap_remove(index);
        }
    }
}

async fn refuse(store: &Store, reading: LogReading) {
    let message = format!(
        "the node already reads {CONCURRENT_LOG_READINGS} logs for other nodes, or \
         {CONCURRENT_LOG_READINGS_PER_TENANT} for one tenant; retry when another reader has ended"
    );
    let fault = LogFault { code: OperationCode::ServiceUnavailable, message };
    if let Err(error) = store.end_log(reading, Some(fault)).await {
        tracing::debug!(%error, "failed to refuse a log reading");
    }
}

async fn serve(shared: &NodeShared, store: &Store, claimed: &ClaimedReading) {
    let follow = if claimed.follow { Follow::Yes } else { Follow::No };
    let log = shared.docker.logs(&claimed.container_id, claimed.tail, follow);
    send(store, &shared.stop, claimed.reading, log).await;
}

/// Sends a log until it ends, its reader disconnects, or this node stops.
pub(super) async fn send(
    store: &Store,
    stop: &CancellationToken,
    reading: LogReading,
    log: DriverFuture<'_, DriverStream<Bytes>>,
) {
    let ended = tokio::select! {
        ended = forward(store, reading, log) => ended,
        ended = keep_alive(store, reading) => ended,
        () = stop.cancelled() => Ok(()),
    };
    let written = match ended {
        Ok(()) => store.end_log(reading, None).await,
        Err(ServeError::Engine(error)) => store.end_log(reading, Some(fault(error))).await,
        Err(ServeError::ReaderGone) => store.close_log(reading).await,
        Err(ServeError::Store(error)) => Err(error),
    };
    if let Err(error) = written {
        // The reader notices the missing heartbeats.
        tracing::debug!(%error, "failed to record the end of a log reading");
    }
}

/// Why a log was not sent to its end.
enum ServeError {
    Engine(DriverError),
    /// The reader disconnected.
    ReaderGone,
    Store(StoreError),
}

impl From<DriverError> for ServeError {
    fn from(error: DriverError) -> Self {
        Self::Engine(error)
    }
}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

async fn forward(
    store: &Store,
    reading: LogReading,
    log: DriverFuture<'_, DriverStream<Bytes>>,
) -> Result<(), ServeError> {
    let mut chunks = LogChunks::of(log.await?);
    let mut number = 0;
    while let Some(chunk) = chunks.next().await? {
        loop {
            match store.append_log(reading, number, chunk.clone()).await? {
                Appended::Done => break,
                Appended::Full => tokio::time::sleep(BUFFER_FULL_PAUSE).await,
                Appended::Closed => return Err(ServeError::ReaderGone),
            }
        }
        number += 1;
    }
    Ok(())
}

/// Sends the server's heartbeats, and detects that the reader has disconnected.
async fn keep_alive(store: &Store, reading: LogReading) -> Result<(), ServeError> {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        if !store.renew_log_server(reading).await? {
            return Err(ServeError::ReaderGone);
        }
    }
}

/// Splits a log into chunks that fit into a row.
struct LogChunks {
    log: Fuse<DriverStream<Bytes>>,
    buffer: BytesMut,
    /// An error that ended the log. Buffered output is sent first.
    error: Option<DriverError>,
}

impl LogChunks {
    fn of(log: DriverStream<Bytes>) -> Self {
        Self { log: log.fuse(), buffer: BytesMut::new(), error: None }
    }

    /// Returns the output within `COALESCE` of its first byte. `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, DriverError> {
        while self.buffer.is_empty() {
            if !self.fill().await {
                return self.error.take().map_or(Ok(None), Err);
            }
        }
        let deadline = tokio::time::sleep(COALESCE);
        tokio::pin!(deadline);
        while self.buffer.len() < LOG_CHUNK_BYTES {
            tokio::select! {
                more = self.fill() => if !more { break },
                () = &mut deadline => break,
            }
        }
        let length = self.buffer.len().min(LOG_CHUNK_BYTES);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }

    /// Reads more of the log into the buffer. Returns false at its end.
    async fn fill(&mut self) -> bool {
        if self.error.is_some() {
            return false;
        }
        match self.log.next().await {
            Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
            Some(Err(error)) => self.error = Some(error),
            None => return false,
        }
        self.error.is_none()
    }
}

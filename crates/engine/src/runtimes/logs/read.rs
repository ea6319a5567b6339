//! Reads a log from another node. A task of its own does it, which outlives slow readers and cleans up after they
//! disconnect.

use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::limits::LOG_FIRST_CHUNK_TIMEOUT_S;
use futures_util::{StreamExt, stream};
use store::Store;
use store::runtimes::logs::LogReading;
use store::runtimes::logs::read::{LogRead, LogStatus, NewReading};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{HEARTBEAT, LogStream, LogsError, refusal};

/// First and longest pause between two reads. It grows while no chunk arrives.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long the other node may take to send the first chunk.
const FIRST_CHUNK_TIMEOUT: Duration = Duration::from_secs(LOG_FIRST_CHUNK_TIMEOUT_S);

type ChunkSender = mpsc::Sender<Result<Bytes, LogsError>>;

/// Returns the log once its node has started to send it, or the request has failed. An error is the first item.
pub(crate) async fn read(store: &Store, tracker: &TaskTracker, stop: &CancellationToken, new: NewReading) -> LogStream {
    let (started, starting) = oneshot::channel();
    let (chunks, received) = mpsc::channel(1);
    tracker.spawn(fetch(store.clone(), stop.clone(), new, chunks, started));
    let _started_or_failed = starting.await;
    stream::unfold(received, |mut received| async move { received.recv().await.map(|chunk| (chunk, received)) }).boxed()
}

/// One reading, from the request to the cleanup. Drops `started` when the other node has started to send.
async fn fetch(
    store: Store,
    stop: CancellationToken,
    new: NewReading,
    chunks: ChunkSender,
    started: oneshot::Sender<()>,
) {
    let node = new.node.clone();
    let ended = match store.request_log(new).await {
        Ok(Some(reading)) => {
            let ended = tokio::select! {
                ended = forward(&store, reading, &node, &chunks, started) => ended,
                ended = keep_alive(&store, reading) => ended,
                () = chunks.closed() => Ok(()),
                () = stop.cancelled() => Ok(()),
            };
            close(&store, reading).await;
            ended
        }
        Ok(None) => Err(LogsError::NodeUnresponsive(node)),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = ended {
        let _reader_is_gone = chunks.send(Err(error)).await;
    }
}

async fn forward(
    store: &Store,
    reading: LogReading,
    node: &str,
    chunks: &ChunkSender,
    started: oneshot::Sender<()>,
) -> Result<(), LogsError> {
    let (requested, mut started, mut pause) = (Instant::now(), Some(started), PAUSE);
    loop {
        let read = store.read_log(reading).await?;
        pause = pause_after(&read, pause);
        let LogRead { parts, status } = read;
        // Must precede the first send, because the reader receives nothing until then.
        if status != LogStatus::Requested {
            drop(started.take());
        }
        for chunk in parts {
            if chunks.send(Ok(chunk)).await.is_err() {
                return Ok(());
            }
        }
        match status {
            LogStatus::Requested if requested.elapsed() < FIRST_CHUNK_TIMEOUT => {}
            LogStatus::Requested | LogStatus::Silent => return Err(LogsError::NodeUnresponsive(node.to_owned())),
            LogStatus::Open => {}
            LogStatus::Ended(None) => return Ok(()),
            LogStatus::Ended(Some(fault)) => return Err(refusal(fault)),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Each read is a write to the database, so the pause grows while the log is idle. It stays short until the log starts.
pub(super) fn pause_after(read: &LogRead, pause: Duration) -> Duration {
    let is_quiet = read.parts.is_empty() && read.status == LogStatus::Open;
    if is_quiet { (pause * 2).min(PAUSE_MAX) } else { PAUSE }
}

/// Sends the reader's heartbeats, also while the reader is slow.
async fn keep_alive(store: &Store, reading: LogReading) -> Result<(), LogsError> {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        store.renew_log_reader(reading).await?;
    }
}

async fn close(store: &Store, reading: LogReading) {
    if let Err(error) = store.close_log(reading).await {
        tracing::debug!(%error, "failed to close a log reading; it is pruned later");
    }
}

//! Reads a log that is on another node. A task of its own does it: it stays while whoever reads takes its time, and clears up
//! when they leave.

use std::time::{Duration, Instant};

use bytes::Bytes;
use domain::limits::LOG_BEGIN_S;
use futures_util::{StreamExt, stream};
use store::Store;
use store::runtimes::logs::LogReading;
use store::runtimes::logs::read::{LogRead, NewReading, Standing};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{BEAT, LogFlow, LogsError, refusal};

/// How soon it is looked again whether more has come: at first, and where nothing has come for a while.
pub(super) const LOOK: Duration = Duration::from_millis(100);
pub(super) const LOOK_MAX: Duration = Duration::from_secs(1);
/// How long the other node may take to begin.
const BEGIN: Duration = Duration::from_secs(LOG_BEGIN_S);

type Parts = mpsc::Sender<Result<Bytes, LogsError>>;

/// The log, once its node has begun with it or is not waited for any longer. A refusal is the first that it tells.
pub(crate) async fn read(store: &Store, tracker: &TaskTracker, stop: &CancellationToken, new: NewReading) -> LogFlow {
    let (begun, beginning) = oneshot::channel();
    let (parts, heard) = mpsc::channel(1);
    tracker.spawn(fetch(store.clone(), stop.clone(), new, parts, begun));
    let _begun_or_over = beginning.await;
    stream::unfold(heard, |mut heard| async move { heard.recv().await.map(|part| (part, heard)) }).boxed()
}

/// One reading, from asking to leaving. `begun` is let go when the other node has begun.
async fn fetch(store: Store, stop: CancellationToken, new: NewReading, parts: Parts, begun: oneshot::Sender<()>) {
    let node = new.node.clone();
    let ended = match store.ask_for_log(new).await {
        Ok(Some(reading)) => {
            let ended = tokio::select! {
                ended = hand_on(&store, reading, &node, &parts, begun) => ended,
                ended = stay(&store, reading) => ended,
                () = parts.closed() => Ok(()),
                () = stop.cancelled() => Ok(()),
            };
            leave(&store, reading).await;
            ended
        }
        Ok(None) => Err(LogsError::Silent(node)),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = ended {
        let _nobody_hears = parts.send(Err(error)).await;
    }
}

async fn hand_on(
    store: &Store,
    reading: LogReading,
    node: &str,
    parts: &Parts,
    begun: oneshot::Sender<()>,
) -> Result<(), LogsError> {
    let (asked, mut begun, mut pause) = (Instant::now(), Some(begun), LOOK);
    loop {
        let read = store.read_log(reading).await?;
        pause = pause_after(&read, pause);
        let LogRead { parts: came, standing } = read;
        // Before anything is sent: nobody takes it until then.
        if standing != Standing::Asked {
            drop(begun.take());
        }
        for part in came {
            if parts.send(Ok(part)).await.is_err() {
                return Ok(());
            }
        }
        match standing {
            Standing::Asked if asked.elapsed() < BEGIN => {}
            Standing::Asked | Standing::Silent => return Err(LogsError::Silent(node.to_owned())),
            Standing::Open => {}
            Standing::Ended(None) => return Ok(()),
            Standing::Ended(Some(fault)) => return Err(refusal(fault)),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Every look is a write. Who waits for the other node to begin does not wait for long.
pub(super) fn pause_after(read: &LogRead, pause: Duration) -> Duration {
    let is_quiet = read.parts.is_empty() && read.standing == Standing::Open;
    if is_quiet { (pause * 2).min(LOOK_MAX) } else { LOOK }
}

/// Says that somebody reads, also one who has stopped taking.
async fn stay(store: &Store, reading: LogReading) -> Result<(), LogsError> {
    loop {
        tokio::time::sleep(BEAT).await;
        store.keep_reading_log(reading).await?;
    }
}

async fn leave(store: &Store, reading: LogReading) {
    if let Err(error) = store.close_log(reading).await {
        tracing::debug!(%error, "a log that nobody reads any more is forgotten later");
    }
}

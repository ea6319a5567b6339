//! Tells other nodes the logs of this node's containers, a few at once, each in a task of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use domain::TenantId;
use domain::limits::{LOG_PART_BYTES, LOG_READINGS, LOG_READINGS_OF_TENANT};
use domain::runtime::OperationCode;
use futures_util::StreamExt;
use futures_util::stream::Fuse;
use store::runtimes::logs::serve::{Appended, TakenReading};
use store::runtimes::logs::{LogFault, LogReading};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use super::{BEAT, fault};
use crate::runtime::driver::{Answer, DriverError, Flow, Follow};
use crate::runtime::{RuntimeNode, Shared};
use crate::task::{Done, Task};

/// What is written within such a moment goes together.
const MOMENT: Duration = Duration::from_millis(100);
/// How soon a part for which there was no room is tried again.
const ROOM: Duration = Duration::from_millis(100);

pub(crate) struct ServeLogs {
    node: RuntimeNode,
    pub(super) places: Places,
}

impl ServeLogs {
    pub(crate) fn new(node: RuntimeNode) -> Self {
        Self { node, places: Places::default() }
    }
}

impl Task for ServeLogs {
    const NAME: &'static str = "serve_logs";
    const EVERY: Duration = Duration::from_millis(500);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let shared = &self.node.shared;
        if shared.stop.is_cancelled() {
            return Ok(Done::nothing());
        }
        // Also without a place for them: who is told nothing takes this node for dead.
        let taken = store.take_log_readings(&shared.place.node, LOG_READINGS).await?;
        let count = taken.len();
        for taken in taken {
            let place = self.places.take(taken.reading.tenant);
            let (shared, store) = (shared.clone(), store.clone());
            self.node.shared.tracker.spawn(async move {
                match &place {
                    Some(_) => serve(&shared, &store, &taken).await,
                    None => refuse(&store, taken.reading).await,
                }
            });
        }
        Ok(match count {
            0 => Done::nothing(),
            logs => {
                let again_in = (logs == LOG_READINGS).then_some(Duration::ZERO);
                Done { work: Some(format!("{logs} logs asked for by other nodes")), again_in }
            }
        })
    }
}

/// Whose logs are read here for other nodes. One tenant leaves half of the places to the others.
#[derive(Clone, Default)]
pub(super) struct Places {
    taken: Arc<Mutex<Vec<TenantId>>>,
}

/// Free again when it is dropped.
pub(super) struct Place {
    places: Places,
    tenant: TenantId,
}

impl Places {
    pub(super) fn take(&self, tenant: TenantId) -> Option<Place> {
        let mut taken = self.taken.lock().expect("nobody panics with the places in hand");
        let own = taken.iter().filter(|other| **other == tenant).count();
        if taken.len() >= LOG_READINGS || own >= LOG_READINGS_OF_TENANT {
            return None;
        }
        taken.push(tenant);
        Some(Place { places: self.clone(), tenant })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().expect("nobody panics with the places in hand");
        if let Some(index) = taken.iter().position(|tenant| *tenant == self.tenant) {
            taken.swap_remove(index);
        }
    }
}

async fn refuse(store: &Store, reading: LogReading) {
    let message = format!(
        "its node reads as many logs for others as it may, {LOG_READINGS} in all and {LOG_READINGS_OF_TENANT} for one \
         tenant; ask again when another is no longer read"
    );
    let fault = LogFault { code: OperationCode::ServiceUnavailable, message };
    if let Err(error) = store.end_log(reading, Some(fault)).await {
        tracing::debug!(%error, "a log could not be refused");
    }
}

async fn serve(shared: &Shared, store: &Store, taken: &TakenReading) {
    let follow = if taken.follow { Follow::Yes } else { Follow::No };
    let log = shared.docker.logs(&taken.container_id, taken.tail, follow);
    tell(store, &shared.stop, taken.reading, log).await;
}

/// Tells a log until it ends, nobody reads it any more, or this node stops.
pub(super) async fn tell(store: &Store, stop: &CancellationToken, reading: LogReading, log: Answer<'_, Flow<Bytes>>) {
    let ended = tokio::select! {
        ended = pass_on(store, reading, log) => ended,
        ended = stay(store, reading) => ended,
        () = stop.cancelled() => Ok(()),
    };
    let written = match ended {
        Ok(()) => store.end_log(reading, None).await,
        Err(Broken::Engine(error)) => store.end_log(reading, Some(fault(error))).await,
        Err(Broken::Left) => store.close_log(reading).await,
        Err(Broken::Store(error)) => Err(error),
    };
    if let Err(error) = written {
        // Who reads notices that nothing is heard any more.
        tracing::debug!(%error, "a log broke off");
    }
}

/// Why a log is not told to its end.
enum Broken {
    Engine(DriverError),
    /// Nobody reads it any more.
    Left,
    Store(StoreError),
}

impl From<DriverError> for Broken {
    fn from(error: DriverError) -> Self {
        Self::Engine(error)
    }
}

impl From<StoreError> for Broken {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

async fn pass_on(store: &Store, reading: LogReading, log: Answer<'_, Flow<Bytes>>) -> Result<(), Broken> {
    let mut parts = Parts::of(log.await?);
    let mut number = 0;
    while let Some(part) = parts.next().await? {
        loop {
            match store.append_log(reading, number, part.clone()).await? {
                Appended::Done => break,
                Appended::Full => tokio::time::sleep(ROOM).await,
                Appended::Gone => return Err(Broken::Left),
            }
        }
        number += 1;
    }
    Ok(())
}

/// Says that the log is still told, and notices when nobody reads it any more.
async fn stay(store: &Store, reading: LogReading) -> Result<(), Broken> {
    loop {
        tokio::time::sleep(BEAT).await;
        if !store.keep_serving_log(reading).await? {
            return Err(Broken::Left);
        }
    }
}

/// A log in pieces that go into a row.
struct Parts {
    log: Fuse<Flow<Bytes>>,
    gathered: BytesMut,
    /// What the engine said in place of more. What came before goes first.
    refusal: Option<DriverError>,
}

impl Parts {
    fn of(log: Flow<Bytes>) -> Self {
        Self { log: log.fuse(), gathered: BytesMut::new(), refusal: None }
    }

    /// What is written within a moment from the first byte on; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, DriverError> {
        while self.gathered.is_empty() {
            if !self.gather().await {
                return self.refusal.take().map_or(Ok(None), Err);
            }
        }
        let moment = tokio::time::sleep(MOMENT);
        tokio::pin!(moment);
        while self.gathered.len() < LOG_PART_BYTES {
            tokio::select! {
                more = self.gather() => if !more { break },
                () = &mut moment => break,
            }
        }
        let length = self.gathered.len().min(LOG_PART_BYTES);
        Ok(Some(self.gathered.split_to(length).freeze()))
    }

    /// Whether there was more.
    async fn gather(&mut self) -> bool {
        if self.refusal.is_some() {
            return false;
        }
        match self.log.next().await {
            Some(Ok(bytes)) => self.gathered.extend_from_slice(&bytes),
            Some(Err(error)) => self.refusal = Some(error),
            None => return false,
        }
        self.refusal.is_none()
    }
}

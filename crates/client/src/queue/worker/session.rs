//! A registration: the worker's identity until its lease expires or it stops.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Worker, WorkerError};
use crate::backend::{Backend, BackendError};

const MIN_WAIT: Duration = Duration::from_millis(100);
const MAX_WAIT: Duration = Duration::from_secs(5);
const DEREGISTER_ATTEMPTS: u32 = 3;

pub(super) struct Session {
    pub(super) id: Uuid,
    pub(super) lease: Duration,
    pub(super) heartbeat: Duration,
}

/// Registers the worker, retrying during an outage. Returns `None` if it was stopped first.
pub(super) async fn register<B: Backend>(
    worker: &Worker<B>,
    shutdown: &CancellationToken,
) -> Result<Option<Session>, WorkerError> {
    let mut backoff = Backoff::new();
    loop {
        let registered = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(None),
            registered = worker.backend.register(worker.settings.request.clone()) => registered,
        };
        let wait = match registered {
            Ok(registered) => {
                tracing::info!(worker = %registered.id, name = worker.settings.request.name, "registered");
                return Ok(Some(Session {
                    id: registered.id,
                    lease: Duration::from_secs(u64::try_from(registered.lease_s).unwrap_or(0).max(1)),
                    heartbeat: Duration::try_from_secs_f64(registered.heartbeat_s)
                        .unwrap_or(Duration::from_secs(1))
                        .max(Duration::from_millis(100)),
                }));
            }
            Err(BackendError::Refused(problem)) => return Err(WorkerError::Refused(problem)),
            Err(error) => {
                let wait = backoff.next();
                tracing::warn!(%error, cause = error.cause(), wait_ms = wait.as_millis(), "cannot register; retrying");
                wait
            }
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Deregisters the worker, so that its remaining jobs return immediately instead of when the lease expires.
pub(super) async fn deregister<B: Backend>(worker: &Worker<B>, id: Uuid) {
    let mut backoff = Backoff::new();
    for _ in 0..DEREGISTER_ATTEMPTS {
        let request = tokio::time::timeout(MAX_WAIT, worker.backend.deregister(id));
        match request.await {
            Ok(Ok(()) | Err(BackendError::LeaseExpired | BackendError::Refused(_))) => return,
            Ok(Err(_)) | Err(_) => tokio::time::sleep(backoff.next()).await,
        }
    }
    tracing::warn!(worker = %id, "cannot deregister; waiting for the lease to expire");
}

/// Exponential backoff with a random factor per worker, so that many workers do not reconnect at the same time.
pub(crate) struct Backoff {
    wait: Duration,
    share: f64,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        let random_unit = RandomState::new().build_hasher().finish();
        Self { wait: MIN_WAIT, share: 0.5 + 0.5 * (random_unit as f64 / u64::MAX as f64) }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let wait = self.wait.mul_f64(self.share);
        self.wait = (self.wait * 2).min(MAX_WAIT);
        wait
    }

    pub(super) fn reset(&mut self) {
        self.wait = MIN_WAIT;
    }
}

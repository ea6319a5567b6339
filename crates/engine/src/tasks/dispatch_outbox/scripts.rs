//! Scripts of one node: a few run at once, each in a task of its own, so that none holds up the dispatcher.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use domain::RetryPolicy;
use domain::limits::{DISPATCH_LEASE_MS, SCRIPT_TIME_MS, SCRIPTS_AT_ONCE, SCRIPTS_WAITING};
use store::outbox::Taken;
use store::outbox::settle::{Failure, Script, Verdict};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::scripting::{Actor, Ended, Stage, Way};

/// No room: the row looks again after this.
const FULL_MS: i64 = 500;
/// What is left of the lease when the longest script has ended, for writing down how it went.
const MARGIN_MS: u64 = 5_000;
/// How long after it was taken a row's script may still begin.
const LATEST_START: Duration = Duration::from_millis(DISPATCH_LEASE_MS as u64 - SCRIPT_TIME_MS - MARGIN_MS);

pub(crate) struct Scripts {
    stage: Stage,
    tracker: TaskTracker,
    turns: Arc<Semaphore>,
    /// Those that run or wait for their turn.
    taken: Arc<AtomicUsize>,
}

/// A row whose script is to run.
pub(super) struct Waiting {
    pub(super) lease: Uuid,
    pub(super) row: Taken,
    pub(super) actor: Actor,
    pub(super) source: String,
    pub(super) retry: RetryPolicy,
    pub(super) max_attempts: i32,
}

impl Scripts {
    pub(crate) fn new(stage: Stage, tracker: TaskTracker) -> Self {
        Self { stage, tracker, turns: Arc::new(Semaphore::new(SCRIPTS_AT_ONCE)), taken: Arc::default() }
    }

    /// Takes the row's script on; gives the row back when there is no room.
    pub(super) fn take(&self, waiting: Waiting, taken_at: Instant) -> Option<(Taken, Verdict)> {
        if self.taken.fetch_add(1, Ordering::AcqRel) >= SCRIPTS_WAITING {
            self.taken.fetch_sub(1, Ordering::AcqRel);
            return Some((waiting.row, Verdict::Later { delay_ms: FULL_MS }));
        }
        let (stage, turns, taken) = (self.stage.clone(), self.turns.clone(), self.taken.clone());
        self.tracker.spawn(async move {
            run(&stage, &turns, waiting, taken_at + LATEST_START).await;
            taken.fetch_sub(1, Ordering::AcqRel);
        });
        None
    }
}

async fn run(stage: &Stage, turns: &Semaphore, waiting: Waiting, latest: Instant) {
    let Waiting { lease, row, actor, source, retry, max_attempts } = waiting;
    let (trigger, event) = (row.trigger, row.event);
    let verdict = match tokio::time::timeout_at(latest.into(), turns.acquire()).await {
        // What waited too long goes back, so that its lease covers the whole of its run.
        Err(_) | Ok(Err(_)) => Verdict::Later { delay_ms: 0 },
        Ok(Ok(_turn)) => match stage.run(actor, source, &row.head, &row.data, Way::Real).await {
            Ended::Well { ran, deeds } => Verdict::Script(Box::new(Script { ran, deeds })),
            Ended::Failed { ran, error } => Verdict::Failed(Failure { error, retry, max_attempts, ran: Some(ran) }),
            Ended::CutShort => Verdict::Later { delay_ms: 0 },
        },
    };
    match stage.store.settle_outbox(lease, vec![(row, verdict)]).await {
        Ok(dispatched) => super::count(&dispatched),
        // Nothing of what it did holds: the row comes back when its lease is over.
        Err(error) => tracing::warn!(%trigger, %event, %error, "how a script ended could not be written down"),
    }
}

//! Runs the scripts of one node: a few concurrently, each in a task of its own, so that they do not block the
//! dispatcher.

mod turns;

use std::time::{Duration, Instant};

use domain::limits::{DISPATCH_LEASE_MS, SCRIPT_CONFLICT_PAUSE_MS, SCRIPT_CONFLICTS, SCRIPT_TIME_MS};
use domain::{JobError, RetryPolicy};
use store::db::clock::random_unit;
use store::triggers::outbox::settle::{CompletedScript, RunFailure, RunVerdict};
use store::triggers::outbox::{OutboxRow, failure};
use store::triggers::runs::ScriptRun;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::triggers::scripting::{Actor, ScriptMode, ScriptOutcome, ScriptRunner};
use turns::{QueueSlot, ScriptScheduler};

/// Delay before a row is considered again when the queue is full.
const FULL_MS: i64 = 500;
/// The part of the lease that is reserved for recording the outcome after the longest script.
const MARGIN_MS: u64 = 5_000;
/// How long after its row was claimed a script may start.
const LATEST_START: Duration = Duration::from_millis(DISPATCH_LEASE_MS as u64 - SCRIPT_TIME_MS - MARGIN_MS);

pub(crate) struct Scripts {
    runner: ScriptRunner,
    tracker: TaskTracker,
    scheduler: ScriptScheduler,
}

/// A row whose script is queued.
pub(super) struct QueuedScript {
    pub(super) lease: Uuid,
    pub(super) row: OutboxRow,
    pub(super) actor: Actor,
    pub(super) source: String,
    pub(super) retry: RetryPolicy,
    pub(super) max_attempts: i32,
}

impl Scripts {
    pub(crate) fn new(runner: ScriptRunner, tracker: TaskTracker) -> Self {
        Self { runner, tracker, scheduler: ScriptScheduler::default() }
    }

    /// Queues the row's script. Returns the row with a deferral if the queue is full.
    pub(super) fn submit(&self, script: QueuedScript, taken_at: Instant) -> Option<(OutboxRow, RunVerdict)> {
        let Some(slot) = self.scheduler.reserve(script.row.tenant) else {
            return Some((script.row, RunVerdict::Deferred { delay_ms: FULL_MS }));
        };
        let runner = self.runner.clone();
        self.tracker.spawn(async move { run(&runner, &slot, script, taken_at + LATEST_START).await });
        None
    }
}

/// Runs the script and commits its effects. If the keys that it read have changed meanwhile, the script runs again,
/// which does not count as an attempt.
async fn run(runner: &ScriptRunner, slot: &QueueSlot, script: QueuedScript, latest: Instant) {
    let (trigger, event) = (script.row.trigger, script.row.event);
    let mut before = Conflicts { count: 0, ran: None };
    loop {
        let verdict = verdict(runner, slot, &script, latest, &before).await;
        if let RunVerdict::Script(completed) = &verdict {
            before.ran = Some(ScriptRun { result: None, ..completed.ran.clone() });
        }
        match runner.store.settle_outbox(script.lease, vec![(script.row.clone(), verdict)]).await {
            Ok(dispatched) if dispatched.conflicts > 0 => before.count += 1,
            Ok(dispatched) => return super::count(&dispatched),
            // None of its effects were committed. The row becomes claimable when its lease expires.
            Err(error) => {
                tracing::warn!(%trigger, %event, %error, "failed to record the outcome of a script");
                return;
            }
        }
        pause(runner, before.count).await;
    }
}

/// The number of write conflicts so far, and the record of the last run.
struct Conflicts {
    count: u32,
    ran: Option<ScriptRun>,
}

async fn verdict(
    runner: &ScriptRunner,
    slot: &QueueSlot,
    script: &QueuedScript,
    latest: Instant,
    before: &Conflicts,
) -> RunVerdict {
    let QueuedScript { row, actor, source, retry, max_attempts, .. } = script;
    let failed = |error: JobError, ran: Option<ScriptRun>| {
        RunVerdict::Failed(RunFailure { error, retry: *retry, max_attempts: *max_attempts, ran })
    };
    let conflict = || {
        let detail = format!("the keys that the script read were changed by others in each of {} runs", before.count);
        failed(failure("conflict", detail), before.ran.clone())
    };
    if before.count > SCRIPT_CONFLICTS {
        return conflict();
    }
    match tokio::time::timeout_at(latest.into(), slot.acquire()).await {
        // Returns the row, so that its next lease covers the whole run.
        Err(_) if before.count == 0 => RunVerdict::Deferred { delay_ms: 0 },
        Err(_) => conflict(),
        Ok(_permit) => match runner.run(actor.clone(), source.clone(), &row.head, &row.data, ScriptMode::Real).await {
            ScriptOutcome::Succeeded { ran, script_effects, reads } => {
                RunVerdict::Script(Box::new(CompletedScript { ran, script_effects, reads }))
            }
            ScriptOutcome::Failed { ran, error } => failed(error, Some(ran)),
            ScriptOutcome::Interrupted => RunVerdict::Deferred { delay_ms: 0 },
        },
    }
}

/// Waits with exponential backoff and full jitter, so that conflicting scripts run one after the other.
async fn pause(runner: &ScriptRunner, conflicts: u32) {
    let most_ms = (1_u64 << conflicts.min(16)).min(SCRIPT_CONFLICT_PAUSE_MS);
    let pause = Duration::from_millis(most_ms).mul_f64(random_unit());
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = runner.stop.cancelled() => {}
    }
}

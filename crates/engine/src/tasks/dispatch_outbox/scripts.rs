//! Scripts of one node: a few run at once, each in a task of its own, so that none holds up the dispatcher.

mod turns;

use std::time::{Duration, Instant};

use domain::limits::{DISPATCH_LEASE_MS, SCRIPT_CONFLICT_PAUSE_MS, SCRIPT_CONFLICTS, SCRIPT_TIME_MS};
use domain::{JobError, RetryPolicy};
use store::clock::dice;
use store::outbox::settle::{Failure, Script, Verdict};
use store::outbox::{Taken, failure};
use store::triggers::runs::Ran;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::scripting::{Actor, Ended, Stage, Way};
use turns::{Room, Turns};

/// No room: the row looks again after this.
const FULL_MS: i64 = 500;
/// What is left of the lease when the longest script has ended, for writing down how it went.
const MARGIN_MS: u64 = 5_000;
/// How long after it was taken a row's script may still begin.
const LATEST_START: Duration = Duration::from_millis(DISPATCH_LEASE_MS as u64 - SCRIPT_TIME_MS - MARGIN_MS);

pub(crate) struct Scripts {
    stage: Stage,
    tracker: TaskTracker,
    turns: Turns,
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
        Self { stage, tracker, turns: Turns::default() }
    }

    /// Takes the row's script on; gives the row back when there is no room.
    pub(super) fn take(&self, waiting: Waiting, taken_at: Instant) -> Option<(Taken, Verdict)> {
        let Some(room) = self.turns.room(waiting.row.tenant) else {
            return Some((waiting.row, Verdict::Later { delay_ms: FULL_MS }));
        };
        let stage = self.stage.clone();
        self.tracker.spawn(async move { run(&stage, &room, waiting, taken_at + LATEST_START).await });
        None
    }
}

/// Runs the script and carries out what it did. What it read may have changed meanwhile: then it is run again, which
/// costs it no try.
async fn run(stage: &Stage, room: &Room, waiting: Waiting, latest: Instant) {
    let (trigger, event) = (waiting.row.trigger, waiting.row.event);
    let mut before = Conflicts { count: 0, ran: None };
    loop {
        let verdict = verdict(stage, room, &waiting, latest, &before).await;
        if let Verdict::Script(script) = &verdict {
            before.ran = Some(Ran { result: None, ..script.ran.clone() });
        }
        match stage.store.settle_outbox(waiting.lease, vec![(waiting.row.clone(), verdict)]).await {
            Ok(dispatched) if dispatched.conflicts > 0 => before.count += 1,
            Ok(dispatched) => return super::count(&dispatched),
            // Nothing of what it did holds: the row comes back when its lease is over.
            Err(error) => {
                tracing::warn!(%trigger, %event, %error, "how a script ended could not be written down");
                return;
            }
        }
        pause(stage, before.count).await;
    }
}

/// How often what a script read was changed before it was done, and how it ran last.
struct Conflicts {
    count: u32,
    ran: Option<Ran>,
}

async fn verdict(stage: &Stage, room: &Room, waiting: &Waiting, latest: Instant, before: &Conflicts) -> Verdict {
    let Waiting { row, actor, source, retry, max_attempts, .. } = waiting;
    let failed = |error: JobError, ran: Option<Ran>| {
        Verdict::Failed(Failure { error, retry: *retry, max_attempts: *max_attempts, ran })
    };
    let conflict = || {
        let detail = format!("the keys that it read were changed by others each of {} times", before.count);
        failed(failure("conflict", detail), before.ran.clone())
    };
    if before.count > SCRIPT_CONFLICTS {
        return conflict();
    }
    match tokio::time::timeout_at(latest.into(), room.turn()).await {
        // What waited too long goes back, so that its lease covers the whole of its run.
        Err(_) if before.count == 0 => Verdict::Later { delay_ms: 0 },
        Err(_) => conflict(),
        Ok(_turn) => match stage.run(actor.clone(), source.clone(), &row.head, &row.data, Way::Real).await {
            Ended::Well { ran, deeds, reads } => Verdict::Script(Box::new(Script { ran, deeds, reads })),
            Ended::Failed { ran, error } => failed(error, Some(ran)),
            Ended::CutShort => Verdict::Later { delay_ms: 0 },
        },
    }
}

/// Longer with each conflict and never the same: those that are in each other's way come one after the other.
async fn pause(stage: &Stage, conflicts: u32) {
    let most_ms = (1_u64 << conflicts.min(16)).min(SCRIPT_CONFLICT_PAUSE_MS);
    let pause = Duration::from_millis(most_ms).mul_f64(dice());
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = stage.stop.cancelled() => {}
    }
}

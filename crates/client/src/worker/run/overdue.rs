//! What must not take for ever: handlers that were told to stop, and jobs that wait too long in this worker's hands.
//!
//! There is one alarm for all of them. It may be early, never late.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;
use uuid::Uuid;
use wire::{ClaimedJob, OutcomeKind};

use super::{Run, Running, outcomes};
use crate::backend::Backend;

/// Later than anybody waits.
const FAR: Duration = Duration::from_secs(30 * 366 * 24 * 3_600);

/// A job that was claimed and has not started.
pub(super) struct Waiting {
    pub(super) job: ClaimedJob,
    /// When half of its time-out has passed, which counts from the claim: whoever starts it later may not end in time.
    pub(super) start_by: Option<Instant>,
}

/// The task of a handler that nobody waits for any more.
pub(super) struct Abandoned {
    task: AbortHandle,
    abort_at: Option<Instant>,
}

/// The moment so long from now, however long that is.
pub(super) fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR)
}

impl Running {
    /// What the server is told when the handler was stopped before it had said anything.
    pub(super) fn stopped(&self) -> OutcomeKind {
        if self.called_off { OutcomeKind::Cancel } else { OutcomeKind::Release }
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn take_in(&mut self, job: ClaimedJob) {
        let timeout = job.timeout_s.map(|timeout_s| Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0).max(1)));
        let start_by = timeout.map(|timeout| after(timeout / 2));
        if let Some(start_by) = start_by {
            self.wake_by(start_by);
        }
        self.waiting.push_back(Waiting { job, start_by });
    }

    /// Whether this is news.
    pub(super) fn call_off(&mut self, job: Uuid) -> bool {
        // After a timeout a new attempt of the same job may already be here: the older one is meant, wherever it is.
        if self.called_off.contains_key(&job) || self.is_being_settled(job) || self.outcomes.has(job) {
            return false;
        }
        let abort_at = after(self.worker.settings.stop_grace);
        let attempts = self.running.iter_mut().filter(|(claim, _)| claim.job == job);
        if let Some((_, running)) = attempts.min_by_key(|(claim, _)| claim.epoch) {
            running.called_off = true;
            running.cancellation.cancel();
            running.abort_at = Some(abort_at).filter(|_| self.loading != Some(running.task.id()));
            self.wake_by(abort_at);
        } else if let Some(position) = self.waiting.iter().position(|waiting| waiting.job.id == job) {
            let waiting = self.waiting.remove(position).expect("the position was just found");
            self.outcomes.push(outcomes::plain(job, waiting.job.epoch, OutcomeKind::Cancel));
        } else {
            return false;
        }
        self.called_off.insert(job, false);
        true
    }

    /// Waits no longer for a handler whose claim is lost. A load goes on: it hears nothing, and what it brings up is of use.
    pub(super) fn abandon(&mut self, running: Running) {
        running.cancellation.cancel();
        let task = running.task;
        let abort_at = after(self.worker.settings.stop_grace);
        self.wake_by(abort_at);
        let abort_at = Some(abort_at).filter(|_| self.loading != Some(task.id()));
        self.abandoned.insert(task.id(), Abandoned { task, abort_at });
    }

    /// Only what was called off is aborted while it is waited for.
    pub(super) fn aborted(&mut self, task: Id) {
        let claim = self.running.iter().find(|(_, running)| running.task.id() == task).map(|(claim, _)| *claim);
        let Some(claim) = claim else { return };
        let Some(running) = self.running.remove(&claim) else { return };
        self.outcomes.push(outcomes::plain(claim.job, claim.epoch, running.stopped()));
    }

    /// Whether every slot is taken by a handler that was told to stop: nobody knows when the next job could start.
    pub(super) fn is_stuck(&self) -> bool {
        let stopping = self.running.values().filter(|running| running.called_off).count() + self.abandoned.len();
        stopping >= self.worker.settings.concurrency
    }

    pub(super) fn look_for_overdue(&mut self) {
        let now = Instant::now();
        if self.alarm.is_none_or(|alarm| alarm > now) {
            return;
        }
        self.abort_overdue(now);
        self.release_overdue(now);
        let running = self.running.values().filter_map(|running| running.abort_at);
        let abandoned = self.abandoned.values().filter_map(|abandoned| abandoned.abort_at);
        let waiting = self.waiting.iter().filter_map(|waiting| waiting.start_by);
        self.alarm = running.chain(abandoned).chain(waiting).min();
    }

    fn wake_by(&mut self, at: Instant) {
        self.alarm = Some(self.alarm.map_or(at, |alarm| alarm.min(at)));
    }

    /// A handler that does not yield goes on nevertheless, and its slot stays taken.
    fn abort_overdue(&mut self, now: Instant) {
        for (claim, running) in &mut self.running {
            if running.abort_at.take_if(|at| *at <= now).is_some() {
                tracing::warn!(job = %claim.job, "the handler did not stop in time and is aborted");
                running.task.abort();
            }
        }
        for abandoned in self.abandoned.values_mut() {
            if abandoned.abort_at.take_if(|at| *at <= now).is_some() {
                abandoned.task.abort();
            }
        }
    }

    fn release_overdue(&mut self, now: Instant) {
        self.release_where(|waiting| waiting.start_by.is_some_and(|start_by| start_by <= now));
    }

    /// After a load that failed: another worker may have what these need, and here each would only try it again.
    pub(super) fn release_needing(&mut self, affinity: &str) {
        self.release_where(|waiting| waiting.job.affinity.as_deref() == Some(affinity));
    }

    fn release_where(&mut self, is_meant: impl Fn(&Waiting) -> bool) {
        let (released, kept) = std::mem::take(&mut self.waiting).into_iter().partition(is_meant);
        self.waiting = kept;
        self.release(released);
    }

    pub(super) fn release(&mut self, waiting: VecDeque<Waiting>) {
        for Waiting { job, .. } in waiting {
            self.outcomes.push(outcomes::plain(job.id, job.epoch, OutcomeKind::Release));
        }
    }
}

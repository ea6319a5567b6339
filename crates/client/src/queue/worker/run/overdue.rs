//! Deadlines: aborts handlers that do not stop, and releases jobs that wait too long in this worker.
//!
//! One alarm serves all of them. It may fire early, never late.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::{AbortHandle, Id};
use tokio::time::Instant;
use uuid::Uuid;
use wire::{ClaimedJob, OutcomeKind};

use super::{Run, Running, outcomes};
use crate::backend::Backend;

/// Stands for a time that does not fit into an `Instant`.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 366 * 24 * 3_600);

/// A claimed job that has not started.
pub(super) struct WaitingJob {
    pub(super) job: ClaimedJob,
    /// When half of the job's timeout has passed, counted from the claim. A job started later might not end in time.
    pub(super) start_by: Option<Instant>,
}

/// The task of a handler that is no longer waited for.
pub(super) struct AbandonedTask {
    task: AbortHandle,
    abort_at: Option<Instant>,
}

/// The instant `wait` from now, or the far future if it cannot be represented.
pub(super) fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR_FUTURE)
}

impl Running {
    /// The outcome of a handler that was stopped before it returned.
    pub(super) fn stopped(&self) -> OutcomeKind {
        if self.canceled { OutcomeKind::Cancel } else { OutcomeKind::Release }
    }
}

impl<B: Backend> Run<'_, B> {
    pub(super) fn enqueue_claimed(&mut self, job: ClaimedJob) {
        let timeout = job.timeout_s.map(|timeout_s| Duration::from_secs(u64::try_from(timeout_s).unwrap_or(0).max(1)));
        let start_by = timeout.map(|timeout| after(timeout / 2));
        if let Some(start_by) = start_by {
            self.wake_by(start_by);
        }
        self.waiting.push_back(WaitingJob { job, start_by });
    }

    /// Cancels a job. Returns false if that was already known.
    pub(super) fn cancel_job(&mut self, job: Uuid) -> bool {
        // After a timeout, a new attempt of the same job may already be here; the cancellation concerns the older
        // attempt.
        if self.canceled.contains_key(&job) || self.is_being_settled(job) || self.outcomes.has(job) {
            return false;
        }
        let abort_at = after(self.worker.settings.stop_grace);
        let attempts = self.running.iter_mut().filter(|(claim, _)| claim.job == job);
        if let Some((_, running)) = attempts.min_by_key(|(claim, _)| claim.epoch) {
            running.canceled = true;
            running.cancellation.cancel();
            running.abort_at = Some(abort_at).filter(|_| self.loading != Some(running.task.id()));
            self.wake_by(abort_at);
        } else if let Some(position) = self.waiting.iter().position(|waiting| waiting.job.id == job) {
            let waiting = self.waiting.remove(position).expect("the position was just found");
            self.outcomes.push(outcomes::plain(job, waiting.job.epoch, OutcomeKind::Cancel));
        } else {
            return false;
        }
        self.canceled.insert(job, false);
        true
    }

    /// Stops waiting for a handler that lost its claim. A load continues: it has no cancellation token, and its result
    /// is useful.
    pub(super) fn abandon(&mut self, running: Running) {
        running.cancellation.cancel();
        let task = running.task;
        let abort_at = after(self.worker.settings.stop_grace);
        self.wake_by(abort_at);
        let abort_at = Some(abort_at).filter(|_| self.loading != Some(task.id()));
        self.abandoned.insert(task.id(), AbandonedTask { task, abort_at });
    }

    /// Handles an aborted task. Among running tasks, only canceled ones are aborted.
    pub(super) fn on_aborted(&mut self, task: Id) {
        let claim = self.running.iter().find(|(_, running)| running.task.id() == task).map(|(claim, _)| *claim);
        let Some(claim) = claim else { return };
        let Some(running) = self.running.remove(&claim) else { return };
        self.outcomes.push(outcomes::plain(claim.job, claim.epoch, running.stopped()));
    }

    /// True if every slot is occupied by a handler that was cancelled, so that the next start cannot be predicted.
    pub(super) fn all_slots_stopping(&self) -> bool {
        let stopping = self.running.values().filter(|running| running.canceled).count() + self.abandoned.len();
        stopping >= self.worker.settings.concurrency
    }

    pub(super) fn handle_overdue(&mut self) {
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

    /// Aborts handlers past their deadline. A handler that does not yield continues, and its slot stays occupied.
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

    /// Releases waiting jobs after a failed load: another worker may have the affinity loaded, and here each job would
    /// only repeat the load.
    pub(super) fn release_needing(&mut self, affinity: &str) {
        self.release_where(|waiting| waiting.job.affinity.as_deref() == Some(affinity));
    }

    fn release_where(&mut self, matches: impl Fn(&WaitingJob) -> bool) {
        let (released, remaining) = std::mem::take(&mut self.waiting).into_iter().partition(matches);
        self.waiting = remaining;
        self.release(released);
    }

    pub(super) fn release(&mut self, waiting: VecDeque<WaitingJob>) {
        for WaitingJob { job, .. } in waiting {
            self.outcomes.push(outcomes::plain(job.id, job.epoch, OutcomeKind::Release));
        }
    }
}

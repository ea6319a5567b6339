//! How a run ends: drained in order, refused, or begun anew because the lease has passed.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::Problem;

use super::{Claim, Run, Stage, WorkerError, after, outcomes};
use crate::backend::Backend;
use crate::worker::session::deregister;

/// How long the last signals may take once everything is settled.
const LAST_SIGNALS: Duration = Duration::from_secs(1);

impl<B: Backend> Run<'_, B> {
    pub(super) fn drain(&mut self) {
        tracing::info!(worker = %self.session.id, running = self.running.len(), "draining");
        for claim in self.claiming.drain(..) {
            // What the server has handed out meanwhile goes back: it sees that nobody waits, or hears the goodbye.
            claim.abort();
        }
        self.release_waiting();
        self.stage = Stage::Draining { until: after(self.worker.settings.drain_grace) };
    }

    pub(super) fn release_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.release(waiting);
    }

    /// When the present stage of stopping ends; `None` while working.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::Working => None,
            Stage::Draining { until } | Stage::Stopping { until } | Stage::Settling { until } => Some(until),
        }
    }

    pub(super) fn deadline_passed(&mut self) {
        match self.stage {
            Stage::Working | Stage::Settling { .. } => {}
            Stage::Draining { .. } => {
                for running in self.running.values() {
                    running.cancellation.cancel();
                }
                self.stage = Stage::Stopping { until: after(self.worker.settings.stop_grace) };
            }
            Stage::Stopping { .. } => {
                for (Claim { job, epoch }, running) in std::mem::take(&mut self.running) {
                    tracing::warn!(%job, "the handler did not stop in time");
                    self.outcomes.push(outcomes::plain(job, epoch, running.stopped()));
                    running.task.abort();
                    self.abandon(running);
                }
            }
        }
    }

    /// The server does not want this worker: nothing more can be done than to end in order.
    pub(super) fn give_up(&mut self, problem: Box<Problem>) {
        if self.refused.is_none() {
            tracing::error!(worker = %self.session.id, code = problem.code, "the server refuses this worker");
            self.refused = Some(problem);
        }
        if self.stage == Stage::Working {
            self.drain();
        }
    }

    pub(super) fn needs_new_session(&self) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty() && self.is_settled();
        self.gone || (self.suspect && idle && self.stage == Stage::Working)
    }

    /// Forgets everything that belongs to this registration. After a lease that passed the jobs are others' already, and
    /// their handlers are told to stop.
    pub(super) async fn leave_session(&mut self) {
        let unanswered = self.settling.values().map(Vec::len).sum::<usize>();
        let lost = self.running.len() + self.outcomes.clear() + unanswered;
        self.calls = JoinSet::new();
        self.waiting.clear();
        self.called_off.clear();
        for running in std::mem::take(&mut self.running).into_values() {
            self.abandon(running);
        }
        if self.gone {
            tracing::warn!(worker = %self.session.id, lost, "the lease has passed; registering anew");
            self.worker.counters.lost(lost);
        } else {
            deregister(self.worker, self.session.id).await;
        }
        self.claiming.clear();
        self.settling.clear();
        self.beating = false;
        self.gone = false;
        self.suspect = false;
        self.plenty = false;
    }

    pub(super) async fn close(mut self) -> Result<(), WorkerError> {
        self.calls = JoinSet::new();
        for running in self.running.values() {
            running.cancellation.cancel();
        }
        if !self.is_settled() {
            tracing::error!(worker = %self.session.id, "gave up settling; the jobs come back when the lease passes");
        }
        if !self.gone {
            deregister(self.worker, self.session.id).await;
        }
        self.uplink.tasks().close();
        if timeout(LAST_SIGNALS, self.uplink.tasks().wait()).await.is_err() {
            tracing::debug!("some signals were not sent");
        }
        match self.refused {
            None => Ok(()),
            Some(problem) => Err(WorkerError::Refused(problem)),
        }
    }
}

//! The end of a run: a drain, a rejection, or a new registration after an expired lease.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use wire::Problem;

use super::{Claim, Run, Stage, WorkerError, after, outcomes};
use crate::backend::Backend;
use crate::queue::worker::session::deregister;

/// Time limit for the last signals after everything is settled.
const FINAL_SIGNALS_TIMEOUT: Duration = Duration::from_secs(1);

impl<B: Backend> Run<'_, B> {
    pub(super) fn drain(&mut self) {
        tracing::info!(worker = %self.session.id, running = self.running.len(), "draining");
        for claim in self.claims_in_flight.drain(..) {
            // The server returns jobs that it has just assigned, because the response has no receiver, or because of
            // the deregistration.
            claim.abort();
        }
        self.release_waiting();
        self.stage = Stage::Draining { until: after(self.worker.settings.drain_grace) };
    }

    pub(super) fn release_waiting(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.release(waiting);
    }

    /// When the current stage of stopping ends; `None` while working.
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

    /// Handles a rejection of this worker by the server: drains and ends the run with an error.
    pub(super) fn give_up(&mut self, problem: Box<Problem>) {
        if self.refused.is_none() {
            tracing::error!(worker = %self.session.id, code = problem.code, "the server rejected this worker");
            self.refused = Some(problem);
        }
        if self.stage == Stage::Working {
            self.drain();
        }
    }

    pub(super) fn needs_new_session(&self) -> bool {
        let idle = self.running.is_empty() && self.waiting.is_empty() && self.is_settled();
        self.lease_expired || (self.claim_response_lost && idle && self.stage == Stage::Working)
    }

    /// Discards the state of this registration. After an expired lease the jobs belong to other workers, so their
    /// handlers are cancelled.
    pub(super) async fn end_session(&mut self) {
        let unanswered = self.settles_in_flight.values().map(Vec::len).sum::<usize>();
        let lost = self.running.len() + self.outcomes.clear() + unanswered;
        self.calls = JoinSet::new();
        self.waiting.clear();
        self.canceled.clear();
        for running in std::mem::take(&mut self.running).into_values() {
            self.abandon(running);
        }
        if self.lease_expired {
            tracing::warn!(worker = %self.session.id, lost, "the lease has expired; registering again");
            self.worker.counters.lost(lost);
        } else {
            deregister(self.worker, self.session.id).await;
        }
        self.claims_in_flight.clear();
        self.settles_in_flight.clear();
        self.heartbeat_in_flight = false;
        self.lease_expired = false;
        self.claim_response_lost = false;
        self.last_claim_was_full = false;
    }

    pub(super) async fn close(mut self) -> Result<(), WorkerError> {
        self.calls = JoinSet::new();
        for running in self.running.values() {
            running.cancellation.cancel();
        }
        if !self.is_settled() {
            tracing::error!(worker = %self.session.id, "timed out settling; the jobs return to the queue when the lease expires");
        }
        if !self.lease_expired {
            deregister(self.worker, self.session.id).await;
        }
        self.uplink.close();
        if timeout(FINAL_SIGNALS_TIMEOUT, self.uplink.tasks().wait()).await.is_err() {
            tracing::debug!("some signals were not sent");
        }
        match self.refused {
            None => Ok(()),
            Some(problem) => Err(WorkerError::Refused(problem)),
        }
    }
}

//! Calls to the server and the handling of their results. Each call is a task. One heartbeat, one claim and one settle
//! are in flight at a time. A second claim or settle follows if it is large, so that the server can start on it as soon
//! as the first is done; small ones would cost an extra commit each.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use wire::{
    ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeRequest, OutcomeStatus, Problem,
    SettleRequest, SettleView, code,
};

use super::{MAX_UNSETTLED, Run, Stage, outcomes};
use crate::backend::{Backend, BackendError};

/// How long the server may hold a claim open when there is no work.
const CLAIM_WAIT_S: f64 = 20.0;
/// Jobs per claim: a quarter of the prefetch, because one part is running, one waits and two are in flight; within
/// bounds that avoid tiny claims and respect the server's limit.
const CLAIM_JOBS: RangeInclusive<usize> = 1_000..=2_000;
/// Pause after a heartbeat that returned early without anything new: the server repeats a cancellation until it has our
/// outcome, and the handler may take a while to stop.
const REPEAT_PAUSE: Duration = Duration::from_millis(250);

pub(super) enum CallResult {
    Heartbeat { early: bool, response: Result<HeartbeatView, BackendError> },
    Claim(Result<ClaimView, BackendError>),
    Settle { number: u64, request: SettleRequest, response: Result<SettleView, BackendError> },
}

impl<B: Backend> Run<'_, B> {
    fn full_claim(&self) -> usize {
        (self.worker.settings.prefetch / 4).clamp(*CLAIM_JOBS.start(), *CLAIM_JOBS.end())
    }

    pub(super) fn claim(&mut self, delay: Duration) {
        let settings = &self.worker.settings;
        let full = self.full_claim();
        let expected = self.claims_in_flight.len() * full;
        let taken = self.running.len() + self.abandoned.len() + self.waiting.len() + expected;
        let wanted = (settings.concurrency + settings.prefetch).saturating_sub(taken).min(full);
        let minimum = match self.claims_in_flight.len() {
            0 if self.waiting.is_empty() => 1,
            // While there is work, claim a good part of the prefetch at once instead of single jobs.
            0 => (settings.prefetch / 2).clamp(1, full),
            1 if self.last_claim_was_full => full,
            _ => return,
        };
        let is_allowed = self.stage == Stage::Working && !self.claim_response_lost && !self.lease_expired;
        if !is_allowed || wanted < minimum || self.outcomes.len() >= MAX_UNSETTLED || self.all_slots_stopping() {
            return;
        }
        // The affinity that will be loaded after the waiting jobs.
        let affinity = self.waiting.iter().rev().find_map(|waiting| waiting.job.affinity.clone());
        let affinity = affinity.or_else(|| self.loaded_affinity.clone());
        // The first claim may change the affinity.
        if affinity.is_some() && !self.claims_in_flight.is_empty() {
            return;
        }
        let request = ClaimRequest { max: wanted as i64, wait_s: Some(CLAIM_WAIT_S), affinity };
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        let call = self.calls.spawn(async move {
            pause(delay).await;
            CallResult::Claim(backend.claim(id, request).await)
        });
        self.claims_in_flight.push(call);
    }

    pub(super) fn settle(&mut self) {
        let is_allowed = match self.settles_in_flight.len() {
            0 => true,
            1 => self.outcomes.has_unsent(self.full_claim()),
            _ => false,
        };
        if let Some(request) = is_allowed.then(|| self.outcomes.next_batch()).flatten() {
            self.send_settle(request, Duration::ZERO);
        }
    }

    fn send_settle(&mut self, request: SettleRequest, delay: Duration) {
        self.settle_count += 1;
        let number = self.settle_count;
        self.settles_in_flight.insert(number, request.outcomes.iter().map(|outcome| outcome.job_id).collect());
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        self.calls.spawn(async move {
            pause(delay).await;
            let response = backend.settle(id, &request).await;
            CallResult::Settle { number, request, response }
        });
    }

    /// Keeps one heartbeat request open at all times.
    pub(super) fn send_heartbeat(&mut self, delay: Duration) {
        if self.heartbeat_in_flight || self.lease_expired {
            return;
        }
        self.heartbeat_in_flight = true;
        let wait = self.session.heartbeat;
        // A lost heartbeat must be detected early enough to send another one.
        let response_timeout = wait + self.session.lease / 4;
        let request = HeartbeatRequest { affinity: self.loaded_affinity.clone(), wait_s: Some(wait.as_secs_f64()) };
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        self.calls.spawn(async move {
            pause(delay).await;
            let sent_at = Instant::now();
            let response = match timeout(response_timeout, backend.heartbeat(id, request)).await {
                Ok(response) => response,
                Err(elapsed) => Err(BackendError::Unanswered(elapsed.into())),
            };
            CallResult::Heartbeat { early: sent_at.elapsed() < wait / 2, response }
        });
    }

    pub(super) fn on_call_result(&mut self, result: CallResult) {
        match result {
            CallResult::Heartbeat { early, response } => self.on_heartbeat(early, response),
            CallResult::Claim(response) => self.on_claim(response),
            CallResult::Settle { number, request, response } => {
                self.settles_in_flight.remove(&number);
                self.on_settle(request, response);
            }
        }
    }

    fn on_heartbeat(&mut self, early: bool, response: Result<HeartbeatView, BackendError>) {
        self.heartbeat_in_flight = false;
        match response {
            Ok(view) => {
                self.heartbeat_backoff.reset();
                let mut is_new = false;
                for job in view.cancel {
                    is_new |= self.cancel_job(job);
                }
                self.canceled.retain(|_, is_confirmed| !*is_confirmed);
                if view.drain && self.stage == Stage::Working {
                    tracing::info!(worker = %self.session.id, "the server requested a drain");
                    is_new = true;
                    self.drain();
                }
                self.send_heartbeat(if early && !is_new { REPEAT_PAUSE } else { Duration::ZERO });
            }
            Err(BackendError::LeaseExpired) => self.lease_expired = true,
            Err(BackendError::Refused(problem)) => {
                self.give_up(problem);
                let wait = self.heartbeat_backoff.next();
                self.send_heartbeat(wait);
            }
            Err(error) => {
                let wait = self.heartbeat_backoff.next().min(self.session.heartbeat);
                tracing::warn!(worker = %self.session.id, %error, cause = error.cause(), "a heartbeat failed");
                self.send_heartbeat(wait);
            }
        }
    }

    fn on_claim(&mut self, response: Result<ClaimView, BackendError>) {
        if let Some(index) = self.claims_in_flight.iter().position(AbortHandle::is_finished) {
            self.claims_in_flight.swap_remove(index);
        }
        self.last_claim_was_full = response.as_ref().is_ok_and(|view| view.jobs.len() >= self.full_claim());
        match response {
            Ok(view) => {
                self.claim_backoff.reset();
                self.worker.counters.claimed(view.jobs.len());
                view.jobs.into_iter().for_each(|job| self.enqueue_claimed(job));
                if self.stage != Stage::Working {
                    self.release_waiting();
                }
            }
            Err(BackendError::LeaseExpired) => self.lease_expired = true,
            Err(BackendError::Refused(problem)) => self.give_up(problem),
            Err(BackendError::Unavailable(_) | BackendError::Throttled(_)) => {
                let wait = self.claim_backoff.next();
                self.claim(wait);
            }
            Err(BackendError::Unanswered(_)) => {
                tracing::warn!(worker = %self.session.id, "no response to a claim; registering again when all jobs are done");
                self.claim_response_lost = true;
            }
        }
    }

    fn on_settle(&mut self, request: SettleRequest, response: Result<SettleView, BackendError>) {
        match response {
            Ok(view) => {
                self.settle_backoff.reset();
                // Results are in the order of the request, which may contain two attempts of one job.
                let mut results = view.results.into_iter();
                for outcome in request.outcomes {
                    let status = results.next().filter(|result| result.job_id == outcome.job_id);
                    self.on_outcome(&outcome, status.map(|result| result.status));
                }
            }
            Err(BackendError::LeaseExpired) => {
                self.lease_expired = true;
                self.worker.counters.lost(request.outcomes.len());
            }
            Err(BackendError::Refused(problem)) if is_about_content(&problem) => {
                self.outcomes.on_refused(request, &problem);
            }
            Err(error) => {
                let wait = self.settle_backoff.next();
                tracing::warn!(
                    worker = %self.session.id, %error, cause = error.cause(), outcomes = request.outcomes.len(),
                    "a settle failed; retrying"
                );
                if let BackendError::Refused(problem) = error {
                    self.give_up(problem);
                }
                let smaller = self.outcomes.halve(request);
                self.send_settle(smaller, wait);
            }
        }
    }

    fn on_outcome(&mut self, outcome: &OutcomeRequest, status: Option<OutcomeStatus>) {
        if status == Some(OutcomeStatus::Applied) {
            self.worker.counters.applied(outcome.outcome);
        } else if outcome.outcome != OutcomeKind::Cancel {
            self.worker.counters.lost(1);
        }
        if outcome.outcome == OutcomeKind::Cancel {
            self.canceled.insert(outcome.job_id, true);
        } else if matches!(status, Some(OutcomeStatus::AlreadyEnded | OutcomeStatus::ClaimLost)) {
            // The job was canceled or timed out in the meantime. Confirm that the handler has stopped, which releases
            // what the job holds.
            self.outcomes.push(outcomes::plain(outcome.job_id, outcome.epoch, OutcomeKind::Cancel));
        }
    }
}

/// True if the problem concerns the content of the outcomes, so that other outcomes would be accepted.
fn is_about_content(problem: &Problem) -> bool {
    matches!((problem.status, problem.code.as_str()), (400, code::INVALID_JSON) | (413, _) | (422, code::INVALID_FIELD))
}

/// Sleeps, except for a zero delay, which must not even yield.
async fn pause(delay: Duration) {
    if !delay.is_zero() {
        sleep(delay).await;
    }
}

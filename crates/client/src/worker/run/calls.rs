//! Calls to the server and what their answers change. Each is a task of its own. One heartbeat, one claim and one settle are on
//! their way at a time; behind a claim or a settle goes a second one if it is large: the server has it at hand then when it is
//! done with the first, and smaller ones would cost it a commit each.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use wire::{
    ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeRequest, OutcomeStatus, Problem,
    SettleRequest, SettleView, code,
};

use super::{BACKLOG, Run, Stage, outcomes};
use crate::backend::{Backend, BackendError};

/// How long the server may hold a claim open when there is nothing to do.
const CLAIM_WAIT_S: f64 = 20.0;
/// Jobs one claim asks for: a quarter of what is taken ahead, as one part is begun, one waits and two are on their way; but
/// not few at a time, and not more than the server hands out.
const CLAIM_JOBS: RangeInclusive<usize> = 1_000..=2_000;
/// A heartbeat that came back early and told nothing new is followed by this pause: the server repeats a cancel until it
/// has our answer, and the handler may take its time.
const REPEATED: Duration = Duration::from_millis(250);

pub(super) enum Answer {
    Heartbeat { early: bool, answer: Result<HeartbeatView, BackendError> },
    Claim(Result<ClaimView, BackendError>),
    Settle { number: u64, request: SettleRequest, answer: Result<SettleView, BackendError> },
}

impl<B: Backend> Run<'_, B> {
    fn full_claim(&self) -> usize {
        (self.worker.settings.prefetch / 4).clamp(*CLAIM_JOBS.start(), *CLAIM_JOBS.end())
    }

    pub(super) fn claim(&mut self, delay: Duration) {
        let settings = &self.worker.settings;
        let full = self.full_claim();
        let coming = self.claiming.len() * full;
        let taken = self.running.len() + self.abandoned.len() + self.waiting.len() + coming;
        let want = (settings.concurrency + settings.prefetch).saturating_sub(taken).min(full);
        let worthwhile = match self.claiming.len() {
            0 if self.waiting.is_empty() => 1,
            // While there is something to do, ask for a good part of the prefetch and not for each job singly.
            0 => (settings.prefetch / 2).clamp(1, full),
            1 if self.plenty => full,
            _ => return,
        };
        let may = self.stage == Stage::Working && !self.suspect && !self.gone;
        if !may || want < worthwhile || self.outcomes.len() >= BACKLOG || self.is_stuck() {
            return;
        }
        // What will be held once the jobs at hand are done.
        let affinity = self.waiting.iter().rev().find_map(|waiting| waiting.job.affinity.clone());
        let affinity = affinity.or_else(|| self.held.clone());
        // The first may bring another to hold.
        if affinity.is_some() && !self.claiming.is_empty() {
            return;
        }
        let request = ClaimRequest { max: want as i64, wait_s: Some(CLAIM_WAIT_S), affinity };
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        let call = self.calls.spawn(async move {
            pause(delay).await;
            Answer::Claim(backend.claim(id, request).await)
        });
        self.claiming.push(call);
    }

    pub(super) fn settle(&mut self) {
        let may = match self.settling.len() {
            0 => true,
            1 => self.outcomes.has_new(self.full_claim()),
            _ => false,
        };
        if let Some(request) = may.then(|| self.outcomes.next_batch()).flatten() {
            self.send_settle(request, Duration::ZERO);
        }
    }

    fn send_settle(&mut self, request: SettleRequest, delay: Duration) {
        self.settles += 1;
        let number = self.settles;
        self.settling.insert(number, request.outcomes.iter().map(|outcome| outcome.job_id).collect());
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        self.calls.spawn(async move {
            pause(delay).await;
            let answer = backend.settle(id, &request).await;
            Answer::Settle { number, request, answer }
        });
    }

    /// Keeps one heartbeat open at all times.
    pub(super) fn beat(&mut self, delay: Duration) {
        if self.beating || self.gone {
            return;
        }
        self.beating = true;
        let wait = self.session.heartbeat;
        // A heartbeat that got lost must be missed in time to send another.
        let patience = wait + self.session.lease / 4;
        let request = HeartbeatRequest { affinity: self.held.clone(), wait_s: Some(wait.as_secs_f64()) };
        let (backend, id) = (self.worker.backend.clone(), self.session.id);
        self.calls.spawn(async move {
            pause(delay).await;
            let asked = Instant::now();
            let answer = match timeout(patience, backend.heartbeat(id, request)).await {
                Ok(answer) => answer,
                Err(elapsed) => Err(BackendError::Unanswered(elapsed.into())),
            };
            Answer::Heartbeat { early: asked.elapsed() < wait / 2, answer }
        });
    }

    pub(super) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Heartbeat { early, answer } => self.heartbeat_answered(early, answer),
            Answer::Claim(answer) => self.claim_answered(answer),
            Answer::Settle { number, request, answer } => {
                self.settling.remove(&number);
                self.settle_answered(request, answer);
            }
        }
    }

    fn heartbeat_answered(&mut self, early: bool, answer: Result<HeartbeatView, BackendError>) {
        self.beating = false;
        match answer {
            Ok(view) => {
                self.beat_backoff.reset();
                let mut news = false;
                for job in view.cancel {
                    news |= self.call_off(job);
                }
                self.called_off.retain(|_, answered| !*answered);
                if view.drain && self.stage == Stage::Working {
                    tracing::info!(worker = %self.session.id, "the server asks to drain");
                    news = true;
                    self.drain();
                }
                self.beat(if early && !news { REPEATED } else { Duration::ZERO });
            }
            Err(BackendError::Gone) => self.gone = true,
            Err(BackendError::Refused(problem)) => {
                self.give_up(problem);
                let wait = self.beat_backoff.next();
                self.beat(wait);
            }
            Err(error) => {
                let wait = self.beat_backoff.next().min(self.session.heartbeat);
                tracing::warn!(worker = %self.session.id, %error, cause = error.cause(), "a heartbeat failed");
                self.beat(wait);
            }
        }
    }

    fn claim_answered(&mut self, answer: Result<ClaimView, BackendError>) {
        if let Some(place) = self.claiming.iter().position(AbortHandle::is_finished) {
            self.claiming.swap_remove(place);
        }
        self.plenty = answer.as_ref().is_ok_and(|view| view.jobs.len() >= self.full_claim());
        match answer {
            Ok(view) => {
                self.claim_backoff.reset();
                self.worker.counters.claimed(view.jobs.len());
                view.jobs.into_iter().for_each(|job| self.take_in(job));
                if self.stage != Stage::Working {
                    self.release_waiting();
                }
            }
            Err(BackendError::Gone) => self.gone = true,
            Err(BackendError::Refused(problem)) => self.give_up(problem),
            Err(BackendError::Unavailable(_)) => {
                let wait = self.claim_backoff.next();
                self.claim(wait);
            }
            Err(BackendError::Unanswered(_)) => {
                tracing::warn!(worker = %self.session.id, "a claim got no answer; registering anew when all is done");
                self.suspect = true;
            }
        }
    }

    fn settle_answered(&mut self, request: SettleRequest, answer: Result<SettleView, BackendError>) {
        match answer {
            Ok(view) => {
                self.settle_backoff.reset();
                // They come in the order of the request; two attempts of one job may be in it.
                let mut answers = view.results.into_iter();
                for outcome in request.outcomes {
                    let status = answers.next().filter(|answer| answer.job_id == outcome.job_id);
                    self.outcome_answered(&outcome, status.map(|answer| answer.status));
                }
            }
            Err(BackendError::Gone) => {
                self.gone = true;
                self.worker.counters.lost(request.outcomes.len());
            }
            Err(BackendError::Refused(problem)) if is_about_content(&problem) => {
                self.outcomes.refused(request, &problem);
            }
            Err(error) => {
                let wait = self.settle_backoff.next();
                tracing::warn!(
                    worker = %self.session.id, %error, cause = error.cause(), outcomes = request.outcomes.len(),
                    "a settle failed and is sent again"
                );
                if let BackendError::Refused(problem) = error {
                    self.give_up(problem);
                }
                let smaller = self.outcomes.halved(request);
                self.send_settle(smaller, wait);
            }
        }
    }

    fn outcome_answered(&mut self, outcome: &OutcomeRequest, status: Option<OutcomeStatus>) {
        if status == Some(OutcomeStatus::Applied) {
            self.worker.counters.applied(outcome.outcome);
        } else if outcome.outcome != OutcomeKind::Cancel {
            self.worker.counters.lost(1);
        }
        if outcome.outcome == OutcomeKind::Cancel {
            self.called_off.insert(outcome.job_id, true);
        } else if matches!(status, Some(OutcomeStatus::AlreadyEnded | OutcomeStatus::ClaimLost)) {
            // It was called off or timed out meanwhile. What the job holds is freed once we say that we have stopped.
            self.outcomes.push(outcomes::plain(outcome.job_id, outcome.epoch, OutcomeKind::Cancel));
        }
    }
}

/// Whether other outcomes would be taken: anything else is said of the worker, or of the way there.
fn is_about_content(problem: &Problem) -> bool {
    matches!((problem.status, problem.code.as_str()), (400, code::INVALID_JSON) | (413, _) | (422, code::INVALID_FIELD))
}

/// A pause of nothing does not even yield.
async fn pause(delay: Duration) {
    if !delay.is_zero() {
        sleep(delay).await;
    }
}

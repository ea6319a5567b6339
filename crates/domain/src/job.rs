//! A job's life: the one transition table (Q2, X3, X4, Q7, Q8, Q11).
//!
//! `Job::apply` is a function on (state, event). What is not in it does not happen; a refusal says why, and a refused
//! event changes nothing. The store's set-based statements are checked against it.

use std::fmt;

use crate::id::WorkerId;
use crate::retry::RetryPolicy;
use crate::time::Time;

/// Grows by one with each claim of a job and never shrinks: the fence against outcomes from the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub i64);

impl Epoch {
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// What the table needs to know of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub state: State,
    pub epoch: Epoch,
    /// Claims begun: 0 before the first. A release or a snooze gives it back.
    pub attempt: i32,
    pub max_attempts: i32,
    pub retry: RetryPolicy,
    /// The wait after the last failure, in seconds and without jitter: the one number the next wait comes from.
    pub wait_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Scheduled { run_at: Time },
    Queued { since: Time },
    Loading(Claim),
    Working(Claim),
    Ended { at: Time, outcome: Outcome },
}

/// A worker's hold on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub worker: WorkerId,
    pub epoch: Epoch,
    pub at: Time,
    /// Since when the job had waited: its place in line, should it come back.
    pub waiting_since: Time,
    /// The worker has said that it works: from then on it is not loading any more.
    pub begun: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Succeeded,
    Failed(JobError),
    Canceled,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError {
    pub code: String,
    pub message: String,
    pub retryable: bool,
}

impl JobError {
    /// The attempt ran past its `timeout_s`.
    pub fn timeout(timeout_s: i64) -> Self {
        Self { code: "timeout".into(), message: format!("the attempt ran past its {timeout_s} s"), retryable: true }
    }

    /// The worker died or fell silent.
    pub fn expired() -> Self {
        Self { code: "expired".into(), message: "the worker's lease passed".into(), retryable: true }
    }
}

/// The state as everyone outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    Scheduled,
    Queued,
    Loading,
    Working,
    Succeeded,
    Failed,
    Canceled,
}

impl JobState {
    pub const ALL: [JobState; 7] =
        [Self::Scheduled, Self::Queued, Self::Loading, Self::Working, Self::Succeeded, Self::Failed, Self::Canceled];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Queued => "queued",
            Self::Loading => "loading",
            Self::Working => "working",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Canceled)
    }

    pub const fn is_claimed(self) -> bool {
        matches!(self, Self::Loading | Self::Working)
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What can happen to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its time has come.
    Due,
    Claim {
        worker: WorkerId,
    },
    /// The worker brings the affinity up; only before it works.
    Load {
        by: Held,
    },
    Work {
        by: Held,
    },
    Finish {
        by: Held,
    },
    /// `dice`, from 0 to 1, decides how much of the jitter is added.
    Fail {
        by: Held,
        error: JobError,
        dice: f64,
    },
    Snooze {
        by: Held,
        delay_ms: i64,
    },
    /// Handed back unharmed by a worker that stops.
    Release {
        by: Held,
    },
    /// The worker's lease passed.
    Expire {
        by: Held,
    },
    /// The attempt ran past its time-out: the server ends the claim.
    TimeOut {
        by: Held,
        timeout_s: i64,
        dice: f64,
    },
    /// A person or a program calls it off.
    Cancel,
    /// The worker itself gives up on it for good.
    CancelClaimed {
        by: Held,
    },
}

/// The claim a caller says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub worker: WorkerId,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the claim went to another")]
    ClaimLost,
    #[error("the job has ended")]
    AlreadyEnded,
    #[error("a {state} job cannot do that")]
    Illegal { state: JobState },
}

impl Job {
    /// The job after `event`, or why nothing happens.
    pub fn apply(&self, event: Event, now: Time) -> Result<Job, Refusal> {
        match event {
            Event::Due => match self.state {
                State::Scheduled { run_at } if run_at <= now => Ok(self.with(State::Queued { since: run_at })),
                _ => Err(self.refusal()),
            },
            Event::Claim { worker } => match self.state {
                State::Queued { since } => {
                    let epoch = self.epoch.next();
                    let claim = Claim { worker, epoch, at: now, waiting_since: since, begun: false };
                    Ok(Job { epoch, attempt: self.attempt + 1, ..self.with(State::Working(claim)) })
                }
                _ => Err(self.refusal()),
            },
            Event::Load { by } => {
                let claim = self.claimed(by)?;
                if claim.begun {
                    return Err(self.refusal());
                }
                Ok(self.with(State::Loading(claim)))
            }
            Event::Work { by } => {
                let claim = self.claimed(by)?;
                Ok(self.with(State::Working(Claim { begun: true, ..claim })))
            }
            Event::Finish { by } => {
                self.claimed(by)?;
                Ok(self.ended(Outcome::Succeeded, now))
            }
            Event::Fail { by, error, dice } => {
                self.claimed(by)?;
                Ok(self.failed(error, dice, now))
            }
            Event::TimeOut { by, timeout_s, dice } => {
                self.claimed(by)?;
                let failed = self.failed(JobError::timeout(timeout_s), dice, now);
                Ok(Job { epoch: self.epoch.next(), ..failed })
            }
            Event::Expire { by } => {
                let claim = self.claimed(by)?;
                if self.attempt >= self.max_attempts {
                    Ok(self.ended(Outcome::Failed(JobError::expired()), now))
                } else {
                    Ok(self.with(State::Queued { since: claim.waiting_since }))
                }
            }
            Event::Snooze { by, delay_ms } => {
                self.claimed(by)?;
                Ok(Job { attempt: self.attempt - 1, ..self.with(State::Scheduled { run_at: now.plus_ms(delay_ms) }) })
            }
            Event::Release { by } => {
                let claim = self.claimed(by)?;
                Ok(Job { attempt: self.attempt - 1, ..self.with(State::Queued { since: claim.waiting_since }) })
            }
            Event::CancelClaimed { by } => {
                self.claimed(by)?;
                Ok(self.ended(Outcome::Canceled, now))
            }
            Event::Cancel => match self.state {
                State::Ended { .. } => Err(Refusal::AlreadyEnded),
                _ => Ok(self.ended(Outcome::Canceled, now)),
            },
        }
    }

    pub fn job_state(&self) -> JobState {
        match &self.state {
            State::Scheduled { .. } => JobState::Scheduled,
            State::Queued { .. } => JobState::Queued,
            State::Loading(_) => JobState::Loading,
            State::Working(_) => JobState::Working,
            State::Ended { outcome: Outcome::Succeeded, .. } => JobState::Succeeded,
            State::Ended { outcome: Outcome::Failed(_), .. } => JobState::Failed,
            State::Ended { outcome: Outcome::Canceled, .. } => JobState::Canceled,
        }
    }

    /// The claim, if `by` is the one that has it.
    fn claimed(&self, by: Held) -> Result<Claim, Refusal> {
        match &self.state {
            State::Loading(claim) | State::Working(claim) if claim.worker == by.worker && claim.epoch == by.epoch => {
                Ok(*claim)
            }
            // The newer attempt owns the job: an outcome from before it is lost, also when the newer one has ended.
            State::Ended { .. } if by.epoch >= self.epoch => Err(Refusal::AlreadyEnded),
            _ => Err(Refusal::ClaimLost),
        }
    }

    fn failed(&self, error: JobError, dice: f64, now: Time) -> Job {
        if !error.retryable || self.attempt >= self.max_attempts {
            return self.ended(Outcome::Failed(error), now);
        }
        let wait_s = self.retry.next_wait_s(self.wait_s);
        let wait_ms = (wait_s as i64).saturating_mul(1_000) + self.retry.jitter_ms(wait_s, dice);
        Job { wait_s: Some(wait_s), ..self.with(State::Scheduled { run_at: now.plus_ms(wait_ms) }) }
    }

    fn ended(&self, outcome: Outcome, at: Time) -> Job {
        self.with(State::Ended { at, outcome })
    }

    fn with(&self, state: State) -> Job {
        Job { state, ..self.clone() }
    }

    fn refusal(&self) -> Refusal {
        match self.job_state() {
            state if state.is_terminal() => Refusal::AlreadyEnded,
            state => Refusal::Illegal { state },
        }
    }
}

#[cfg(test)]
mod tests;

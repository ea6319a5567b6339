//! The job state machine.
//!
//! [`Job::apply`] is a pure function on (state, event). A pair without a transition is refused with a typed reason and
//! changes nothing. The store's set-based statements are tested for equivalence with it.

use std::fmt;

use crate::id::WorkerId;
use crate::limits::REASON_BYTES;
use crate::queue::retry::RetryPolicy;
use crate::time::Time;

/// The fencing token: each claim of a job increments it. Updates with a stale epoch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub i64);

impl Epoch {
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// The part of a job that transitions depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub state: State,
    pub epoch: Epoch,
    /// Number of claims so far. A release or a snooze does not count.
    pub attempt: i32,
    pub max_attempts: i32,
    pub retry: RetryPolicy,
    /// The delay after the last failure, in seconds, without jitter. The next delay is computed from it.
    pub wait_s: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Held by no worker until something wakes the job, for example the end of the jobs that it needs.
    Waiting {
        run_at: Time,
    },
    Scheduled {
        run_at: Time,
    },
    Queued {
        since: Time,
    },
    Loading(Claim),
    Working(Claim),
    Ended {
        at: Time,
        outcome: Outcome,
    },
}

/// A worker's claim on a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub worker: WorkerId,
    pub epoch: Epoch,
    pub at: Time,
    /// When the job became queued. A job that returns to the queue keeps this position.
    pub waiting_since: Time,
    /// The worker has reported that it started to work. The state cannot return to `loading` after that.
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
    /// The attempt exceeded its `timeout_s`.
    pub fn timeout(timeout_s: i64) -> Self {
        Self {
            code: "timeout".into(),
            message: format!("the attempt exceeded its timeout of {timeout_s} s"),
            retryable: true,
        }
    }

    /// The error in one line for people: its code and the first line of its message.
    pub fn summary(&self) -> String {
        let line = self.message.lines().next().unwrap_or_default().trim();
        if line.is_empty() {
            return self.code.clone();
        }
        let mut summary = format!("{}: {line}", self.code);
        summary.truncate(summary.floor_char_boundary(REASON_BYTES));
        summary
    }

    /// The job did not end before its deadline.
    pub fn past_deadline(deadline_s: i64) -> Self {
        Self {
            code: "deadline".into(),
            message: format!("the job did not end within its deadline of {deadline_s} s"),
            retryable: false,
        }
    }

    /// The worker's lease expired: it died or stopped sending heartbeats.
    pub fn expired() -> Self {
        Self { code: "expired".into(), message: "the worker's lease expired".into(), retryable: true }
    }
}

/// The state as the API shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    Waiting,
    Scheduled,
    Queued,
    Loading,
    Working,
    Succeeded,
    Failed,
    Canceled,
}

impl JobState {
    pub const ALL: [JobState; 8] = [
        Self::Waiting,
        Self::Scheduled,
        Self::Queued,
        Self::Loading,
        Self::Working,
        Self::Succeeded,
        Self::Failed,
        Self::Canceled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
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

/// The input of a transition.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// What the job waited for has happened.
    Wake,
    /// The job's `run_at` has arrived.
    Due,
    /// `loads`: the worker does not hold the affinity of the job, so the job starts in `loading`.
    Claim {
        worker: WorkerId,
        loads: bool,
    },
    /// The worker loads the affinity. Only possible before it starts to work.
    Load {
        by: ClaimRef,
    },
    Work {
        by: ClaimRef,
    },
    Finish {
        by: ClaimRef,
    },
    /// `random_unit`, from 0 to 1, is the share of the jitter that is added to the delay. `retry_at` is the time of the
    /// next attempt that the worker asks for, instead of the delay of the retry policy.
    Fail {
        by: ClaimRef,
        error: JobError,
        random_unit: f64,
        retry_at: Option<Time>,
    },
    Snooze {
        by: ClaimRef,
        delay_ms: i64,
    },
    /// The handler gives the job back until something happens. `is_satisfied`: it has happened already.
    Suspend {
        by: ClaimRef,
        is_satisfied: bool,
    },
    /// A stopping worker returns the job without an attempt.
    Release {
        by: ClaimRef,
    },
    /// The worker's lease expired.
    Expire {
        by: ClaimRef,
    },
    /// The attempt exceeded its timeout. The server ends the claim.
    TimeOut {
        by: ClaimRef,
        timeout_s: i64,
        random_unit: f64,
    },
    /// The job did not end before its deadline.
    PassDeadline {
        deadline_s: i64,
    },
    /// The server ends the claim, so that the job runs again at once with a changed journal.
    Interrupt,
    /// A user or a program cancels the job.
    Cancel,
    /// The worker cancels the job that it holds.
    CancelClaimed {
        by: ClaimRef,
    },
}

/// The claim that a caller presents: worker and fencing token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    pub worker: WorkerId,
    pub epoch: Epoch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the claim is lost: another attempt owns the job")]
    ClaimLost,
    #[error("the job has already ended")]
    AlreadyEnded,
    #[error("not allowed for a job in state {state}")]
    Illegal { state: JobState },
}

impl Job {
    /// Returns the job after `event`, or the reason why nothing changes.
    pub fn apply(&self, event: Event, now: Time) -> Result<Job, Refusal> {
        match event {
            Event::Wake => match self.state {
                State::Waiting { run_at } if run_at > now => Ok(self.with(State::Scheduled { run_at })),
                // The job goes to the end of the queue: it could not run before.
                State::Waiting { .. } => Ok(self.with(State::Queued { since: now })),
                _ => Err(self.refusal()),
            },
            Event::Due => match self.state {
                State::Scheduled { run_at } if run_at <= now => Ok(self.with(State::Queued { since: run_at })),
                _ => Err(self.refusal()),
            },
            Event::Claim { worker, loads } => match self.state {
                State::Queued { since } => {
                    let epoch = self.epoch.next();
                    let claim = Claim { worker, epoch, at: now, waiting_since: since, begun: false };
                    let state = if loads { State::Loading(claim) } else { State::Working(claim) };
                    Ok(Job { epoch, attempt: self.attempt + 1, ..self.with(state) })
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
            Event::Fail { by, error, random_unit, retry_at } => {
                self.claimed(by)?;
                let failed = self.failed(error, random_unit, now);
                Ok(match (retry_at, &failed.state) {
                    // The delay that the next failure grows from stays as it was.
                    (Some(at), State::Scheduled { .. }) => self.with(State::Scheduled { run_at: at.max(now) }),
                    _ => failed,
                })
            }
            Event::TimeOut { by, timeout_s, random_unit } => {
                self.claimed(by)?;
                let failed = self.failed(JobError::timeout(timeout_s), random_unit, now);
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
            Event::Suspend { by, is_satisfied } => {
                let claim = self.claimed(by)?;
                // The wake-up may come from a transaction that began before this one, so its time may be earlier than
                // `now`.
                let state = match is_satisfied {
                    true => State::Queued { since: now },
                    false => State::Waiting { run_at: claim.waiting_since },
                };
                Ok(Job { attempt: self.attempt - 1, ..self.with(state) })
            }
            Event::Release { by } => {
                let claim = self.claimed(by)?;
                Ok(Job { attempt: self.attempt - 1, ..self.with(State::Queued { since: claim.waiting_since }) })
            }
            Event::CancelClaimed { by } => {
                self.claimed(by)?;
                Ok(self.ended(Outcome::Canceled, now))
            }
            Event::PassDeadline { .. } if self.job_state().is_terminal() => Err(Refusal::AlreadyEnded),
            Event::PassDeadline { deadline_s } => {
                Ok(self.ended(Outcome::Failed(JobError::past_deadline(deadline_s)), now))
            }
            Event::Interrupt => match self.state {
                State::Loading(_) | State::Working(_) => {
                    let queued = self.with(State::Queued { since: now });
                    Ok(Job { epoch: self.epoch.next(), attempt: self.attempt - 1, ..queued })
                }
                _ => Err(self.refusal()),
            },
            Event::Cancel => match self.state {
                State::Ended { .. } => Err(Refusal::AlreadyEnded),
                _ => Ok(self.ended(Outcome::Canceled, now)),
            },
        }
    }

    /// The error of a job that ended as failed.
    pub fn failure(&self) -> Option<&JobError> {
        match &self.state {
            State::Ended { outcome: Outcome::Failed(error), .. } => Some(error),
            _ => None,
        }
    }

    pub fn job_state(&self) -> JobState {
        match &self.state {
            State::Waiting { .. } => JobState::Waiting,
            State::Scheduled { .. } => JobState::Scheduled,
            State::Queued { .. } => JobState::Queued,
            State::Loading(_) => JobState::Loading,
            State::Working(_) => JobState::Working,
            State::Ended { outcome: Outcome::Succeeded, .. } => JobState::Succeeded,
            State::Ended { outcome: Outcome::Failed(_), .. } => JobState::Failed,
            State::Ended { outcome: Outcome::Canceled, .. } => JobState::Canceled,
        }
    }

    /// Returns the current claim if `by` matches it.
    fn claimed(&self, by: ClaimRef) -> Result<Claim, Refusal> {
        match &self.state {
            State::Loading(claim) | State::Working(claim) if claim.worker == by.worker && claim.epoch == by.epoch => {
                Ok(*claim)
            }
            // The newer attempt owns the job. An outcome with an older epoch is lost even if the newer attempt has
            // ended.
            State::Ended { .. } if by.epoch >= self.epoch => Err(Refusal::AlreadyEnded),
            _ => Err(Refusal::ClaimLost),
        }
    }

    fn failed(&self, error: JobError, random_unit: f64, now: Time) -> Job {
        if !error.retryable || self.attempt >= self.max_attempts {
            return self.ended(Outcome::Failed(error), now);
        }
        let wait_s = self.retry.next_wait_s(self.wait_s);
        let wait_ms = (wait_s as i64).saturating_mul(1_000) + self.retry.jitter_ms(wait_s, random_unit);
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

//! The outcomes that workers report, and the answers to them. The callers of `Store::settle` build and read these types.

use domain::{Epoch, JobError, JobId, Label, TenantId, Time};

use crate::fleet::subjects::facts::FactChanges;
use crate::workflows::journal::Wake;

#[derive(Clone, Debug)]
pub struct Outcome {
    pub job: JobId,
    pub epoch: Epoch,
    pub end: End,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum End {
    /// Succeeded, with a result as JSON.
    Finish(Option<Box<str>>),
    /// Succeeded, with facts for the job's subject.
    FinishWith {
        result: Option<Box<str>>,
        facts: FactChanges,
    },
    Fail(JobError),
    /// Failed, and the worker chooses how long the subject is left alone and when the job runs again.
    FailUntil {
        error: JobError,
        backoff: ChosenBackoff,
    },
    Cancel,
    Snooze {
        delay_ms: i64,
    },
    Release,
    /// The job waits until enough of these entries of its journal are resolved.
    Suspend(Wake),
    /// Succeeded. A new job with this payload, as JSON, continues it.
    ContinueAs {
        payload: Box<str>,
    },
}

/// A backoff that a failing worker chooses, instead of the policy of the process, the job or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenBackoff {
    ForMs(i64),
    Until(Time),
}

impl ChosenBackoff {
    fn until(self, now: Time) -> Time {
        match self {
            Self::ForMs(millis) => now.plus_ms(millis),
            Self::Until(at) => at,
        }
    }
}

impl End {
    /// The name of the outcome, as workers send it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Finish(_) | Self::FinishWith { .. } => "finish",
            Self::Fail(_) | Self::FailUntil { .. } => "fail",
            Self::Cancel => "cancel",
            Self::Snooze { .. } => "snooze",
            Self::Release => "release",
            Self::Suspend(_) => "suspend",
            Self::ContinueAs { .. } => "continue_as",
        }
    }

    pub(super) fn chosen_backoff(&self, now: Time) -> Option<Time> {
        match self {
            Self::FailUntil { backoff, .. } => Some(backoff.until(now)),
            _ => None,
        }
    }

    pub(super) fn result(&self) -> Option<&str> {
        match self {
            Self::Finish(result) | Self::FinishWith { result, .. } => result.as_deref(),
            _ => None,
        }
    }

    pub(super) fn facts(&self) -> Option<&FactChanges> {
        match self {
            Self::FinishWith { facts, .. } => Some(facts),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleStatus {
    Applied,
    ClaimLost,
    AlreadyEnded,
    NotFound,
}

impl SettleStatus {
    /// The answer to a worker of an attempt with this epoch whose job is not live. `ended` is the tenant and the last
    /// epoch of the job, if it has ended.
    pub(crate) fn of_ended(ended: Option<&(TenantId, Epoch)>, tenant: TenantId, epoch: Epoch) -> Self {
        match ended {
            Some((of, last)) if *of == tenant && epoch >= *last => Self::AlreadyEnded,
            Some((of, _)) if *of == tenant => Self::ClaimLost,
            _ => Self::NotFound,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// One status per outcome, in order.
    Results(Vec<SettleStatus>),
    /// The outcome at this index has facts, and its job has no subject. Nothing was settled.
    FactsWithoutSubject(usize),
    /// The outcome at this index waits for a key that the job's journal does not have. Nothing was settled.
    NoSuchKey(usize, Label),
    NoSuchWorker,
}

//! The operations that a worker records in a journal, and the answers to them. The callers of `Store::journal` build and
//! read these types.

use std::collections::BTreeMap;

use domain::workflows::journal::JournalError;
use domain::{Epoch, JobError, JobId, JournalOp, Label, Time};

use super::{AskedApproval, AwaitedEvent, JournalEntry};
use crate::db::codec::to_json;
use crate::queue::enqueue::NewJob;
use crate::queue::settle::SettleStatus;

/// Operations of one claimed job.
#[derive(Clone, Debug)]
pub struct JournalWrite {
    pub job: JobId,
    pub epoch: Epoch,
    /// A step with another digest than the recorded one is refused.
    pub strict: bool,
    pub ops: Vec<NewJournalOperation>,
}

#[derive(Clone, Debug)]
pub struct NewJournalOperation {
    pub key: Label,
    pub hash: Option<String>,
    pub input: OperationInput,
}

#[derive(Clone, Debug)]
pub enum OperationInput {
    /// A finished step, or a failed attempt of one.
    Step { outcome: StepOutcome, attempt: Option<i64>, duration_ms: Option<i64> },
    /// An event to publish in the commit of the write.
    Publish { topic: Label, data: Box<str> },
    /// Resolves when the database clock reaches the end.
    Sleep { until: SleepEnd },
    /// Resolves with the data of a signal event, or with the error `timeout`.
    Event {
        name: Label,
        /// Members of the data that must have these values.
        matches: BTreeMap<String, serde_json::Value>,
        timeout_ms: Option<i64>,
        /// Events that were sent before are ignored.
        since_now: bool,
    },
    /// Resolves with the answer of a person, or with the error `timeout`.
    Approval {
        title: String,
        detail: Option<String>,
        /// The right that the approver needs.
        right: String,
        timeout_ms: Option<i64>,
    },
    /// Starts jobs, and resolves when all of them have ended.
    Child {
        jobs: Vec<NewJob>,
        /// The lanes of the jobs. `Store::journal` sets them.
        lanes: Vec<i64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepEnd {
    At(Time),
    After { delay_ms: i64 },
}

#[derive(Clone, Debug)]
pub enum StepOutcome {
    /// JSON.
    Result(Box<str>),
    Error(JobError),
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEntry {
    pub entry: JournalEntry,
    /// The key was resolved before. Otherwise the caller knows the result of a step, and `entry` omits it.
    pub existing: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JournalResult {
    pub status: SettleStatus,
    /// One entry per operation, in order. Empty unless the write applied.
    pub entries: Vec<RecordedEntry>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Journaled {
    /// One result per write, in order.
    Results(Vec<JournalResult>),
    /// The journal refuses an operation. Nothing was recorded.
    Refused {
        write: usize,
        op: usize,
        error: JournalError,
    },
    NoSuchWorker,
}

impl NewJournalOperation {
    pub(super) fn op(&self) -> JournalOp {
        match self.input {
            OperationInput::Step { .. } => JournalOp::Step,
            OperationInput::Publish { .. } => JournalOp::Publish,
            OperationInput::Sleep { .. } => JournalOp::Sleep,
            OperationInput::Event { .. } => JournalOp::Event,
            OperationInput::Approval { .. } => JournalOp::Approval,
            OperationInput::Child { .. } => JournalOp::Child,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.key.as_str().len()
            + match &self.input {
                OperationInput::Step { outcome: StepOutcome::Result(result), .. } => result.len(),
                OperationInput::Step { outcome: StepOutcome::Error(error), .. } => error.message.len(),
                OperationInput::Publish { data, .. } => data.len(),
                OperationInput::Child { jobs, .. } => jobs.iter().map(|job| job.payload.len()).sum(),
                OperationInput::Sleep { .. } | OperationInput::Event { .. } | OperationInput::Approval { .. } => 0,
            }
    }

    pub(super) fn jobs(&self) -> usize {
        match &self.input {
            OperationInput::Child { jobs, .. } => jobs.len(),
            _ => 0,
        }
    }

    /// What the open entry waits for, as JSON.
    pub(super) fn waits_for(&self) -> Option<String> {
        match &self.input {
            OperationInput::Event { name, matches, .. } => {
                Some(to_json(&AwaitedEvent { name: name.to_string(), matches: matches.clone() }))
            }
            OperationInput::Approval { title, detail, right, .. } => {
                Some(to_json(&AskedApproval { title: title.clone(), detail: detail.clone(), right: right.clone() }))
            }
            _ => None,
        }
    }

    /// When the open entry resolves by itself.
    pub(super) fn due_at(&self, now: Time) -> Option<Time> {
        match &self.input {
            OperationInput::Sleep { until: SleepEnd::At(at) } => Some(*at),
            OperationInput::Sleep { until: SleepEnd::After { delay_ms } } => Some(now.plus_ms(*delay_ms)),
            OperationInput::Event { timeout_ms, .. } | OperationInput::Approval { timeout_ms, .. } => {
                timeout_ms.map(|timeout_ms| now.plus_ms(timeout_ms))
            }
            _ => None,
        }
    }
}

//! The journal of a job in memory, while a commit records operations in it. `write` loads it, `save` stores what changed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use domain::limits::{JOURNAL_ATTEMPT_MESSAGE_BYTES, JOURNAL_ATTEMPTS};
use domain::workflows::journal::{JournalError, has_drifted};
use domain::{Epoch, JobError, JournalOp, Label, Time};

use super::operation::{NewJournalOperation, OperationInput, StepOutcome};
use super::{AwaitedEvent, FailedStepAttempt, JournalEntry, JournalHead};
use crate::db::codec::{error_to_json, from_json, storable_error, to_json};
use crate::db::tx::Row;
use crate::error::StoreError;
use crate::triggers::events::Event;

/// The journal of a job, with the entries that the requests name.
#[derive(Default)]
pub(super) struct OpenJournal {
    pub(super) head: JournalHead,
    pub(super) is_changed: bool,
    pub(super) entries: HashMap<Label, OpenEntry>,
    /// Events that no operation has got, with the names that the requests wait for.
    pub(super) mailbox: Vec<KeptEvent>,
}

/// An event that was sent before an operation waited for it.
pub(super) struct KeptEvent {
    pub(super) number: i64,
    pub(super) name: String,
    pub(super) data: String,
    /// The operation of this commit that gets it.
    pub(super) consumed_by: Option<Label>,
}

#[derive(Clone)]
pub(super) struct OpenEntry {
    pub(super) entry: JournalEntry,
    pub(super) epoch: Epoch,
    /// Number of children of a new entry.
    pub(super) pending: Option<i64>,
    pub(super) is_stored: bool,
    pub(super) is_changed: bool,
}

impl OpenEntry {
    pub(super) fn read(row: &Row) -> Result<Self, StoreError> {
        let op = row.text("op")?;
        let entry = JournalEntry {
            key: Label::stored(&row.text("key")?),
            op: JournalOp::parse(&op).ok_or_else(|| StoreError::unexpected(format!("operation {op}")))?,
            position: row.int("position")?,
            seq: row.opt_int("seq")?,
            hash: row.opt_text("hash")?,
            attempt: row.int("attempt")?,
            attempts: row.opt_text("attempts")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default(),
            result: None,
            error: None,
            bytes: row.int("bytes")?,
            duration_ms: row.opt_int("duration_ms")?,
            created_at: row.time("created_at")?,
            resolved_at: row.opt_time("resolved_at")?,
            input: None,
            due_at: row.opt_time("due_at")?,
        };
        Ok(Self { entry, epoch: Epoch::default(), pending: None, is_stored: true, is_changed: false })
    }

    /// Whether the entry is new and resolves by itself.
    pub(super) fn is_new_timer(&self) -> bool {
        !self.is_stored && self.entry.due_at.is_some()
    }
}

impl OpenJournal {
    /// Records an operation. Returns whether its key was resolved before, and the event to publish.
    pub(super) fn record(
        &mut self,
        new: &NewJournalOperation,
        (epoch, strict): (Epoch, bool),
        now: Time,
        event: impl FnOnce(&Label, &str) -> Event,
    ) -> Result<(bool, Option<Event>), JournalError> {
        let open = match self.entries.entry(new.key.clone()) {
            Entry::Occupied(open) => {
                let open = open.into_mut();
                let (recorded, met) = (open.entry.op, new.op());
                if recorded != met {
                    return Err(JournalError::OtherOperation { recorded, met });
                }
                if has_drifted(open.entry.hash.as_deref(), new.hash.as_deref()) {
                    if strict {
                        let of = |hash: &Option<String>| hash.clone().unwrap_or_default();
                        return Err(JournalError::Drift { recorded: of(&open.entry.hash), met: of(&new.hash) });
                    }
                    self.is_changed |= self.head.drift.is_none();
                    self.head.drift.get_or_insert_with(|| new.key.to_string());
                }
                if open.entry.seq.is_some() {
                    return Ok((true, None));
                }
                // Only a step has several records. Any other open operation waits for what resolves it.
                if met != JournalOp::Step {
                    return Ok((false, None));
                }
                open
            }
            Entry::Vacant(vacant) => {
                let bytes = new.key.as_str().len() as i64;
                self.head.size = self.head.size.with(1, bytes)?;
                let entry = JournalEntry {
                    key: new.key.clone(),
                    op: new.op(),
                    position: self.head.size.entries,
                    seq: None,
                    hash: new.hash.clone(),
                    attempt: 0,
                    attempts: Vec::new(),
                    result: None,
                    error: None,
                    bytes,
                    duration_ms: None,
                    created_at: now,
                    resolved_at: None,
                    input: new.waits_for(),
                    due_at: new.due_at(now),
                };
                vacant.insert(OpenEntry { entry, epoch, pending: None, is_stored: false, is_changed: true })
            }
        };
        let before = open.entry.bytes;
        let mut published = None;
        match &new.input {
            OperationInput::Step { outcome, attempt, duration_ms } => {
                let attempt = attempt.unwrap_or(open.entry.attempt + 1);
                match outcome {
                    StepOutcome::Error(error) if error.retryable => {
                        // A repeated request reports an attempt that is recorded already.
                        if attempt <= open.entry.attempt {
                            return Ok((false, None));
                        }
                        open.entry.add_attempt(attempt, error, now);
                    }
                    StepOutcome::Error(error) => {
                        open.entry.error = Some(storable_error(error));
                        open.entry.bytes += error_to_json(error).len() as i64;
                    }
                    StepOutcome::Result(result) => {
                        open.entry.result = Some(result.to_string());
                        open.entry.bytes += result.len() as i64;
                    }
                }
                open.entry.attempt = open.entry.attempt.max(attempt);
                open.entry.duration_ms = *duration_ms;
            }
            OperationInput::Publish { topic, data } => {
                let event = event(topic, data);
                let result = to_json(&event.id.to_string());
                open.entry.attempt = 1;
                open.entry.bytes += result.len() as i64;
                open.entry.result = Some(result);
                published = Some(event);
            }
            OperationInput::Sleep { .. } => {
                if open.entry.due_at.is_some_and(|due_at| due_at <= now) {
                    open.entry.result = Some("null".into());
                }
            }
            OperationInput::Event { since_now, .. } => {
                let waits_for = open.entry.input.as_deref().map(from_json::<AwaitedEvent>);
                let kept = self.mailbox.iter_mut().filter(|_| !since_now).find(|kept| {
                    let is_match = |awaited: &AwaitedEvent| awaited.is_matched_by(&kept.name, &kept.data);
                    kept.consumed_by.is_none() && waits_for.as_ref().is_some_and(|w| w.as_ref().is_ok_and(is_match))
                });
                if let Some(kept) = kept {
                    kept.consumed_by = Some(new.key.clone());
                    open.entry.bytes += kept.data.len() as i64;
                    open.entry.result = Some(kept.data.clone());
                }
            }
            OperationInput::Approval { .. } => {}
            OperationInput::Child { jobs, .. } => open.pending = Some(jobs.len() as i64),
        }
        self.head.size = self.head.size.with(0, open.entry.bytes - before)?;
        if open.entry.result.is_some() || open.entry.error.is_some() {
            self.head.resolved += 1;
            open.entry.seq = Some(self.head.resolved);
            open.entry.resolved_at = Some(now);
            open.entry.due_at = None;
            open.entry.attempt = open.entry.attempt.max(1);
        }
        open.is_changed = true;
        self.is_changed = true;
        Ok((false, published))
    }
}

impl JournalEntry {
    /// Adds a failed attempt and drops the oldest of too many.
    fn add_attempt(&mut self, attempt: i64, error: &JobError, now: Time) {
        let JobError { code, mut message, .. } = storable_error(error);
        message.truncate(message.floor_char_boundary(JOURNAL_ATTEMPT_MESSAGE_BYTES));
        let before = self.attempts_json().map_or(0, |json| json.len());
        self.attempts.push(FailedStepAttempt { attempt, at: now.micros(), code, message });
        let excess = self.attempts.len().saturating_sub(JOURNAL_ATTEMPTS);
        self.attempts.drain(..excess);
        self.bytes += self.attempts_json().map_or(0, |json| json.len()) as i64 - before as i64;
    }

    pub(super) fn attempts_json(&self) -> Option<String> {
        (!self.attempts.is_empty()).then(|| to_json(&self.attempts))
    }
}

//! The journal of a claimed job as the wire contract shows it. The cursor of a page is the position of its last entry.

use client::BackendError;
use domain::Time;
use store::StoreError;
use store::workflows::journal::JournalEntry;
use store::workflows::journal::read::JournalPage;
use wire::{ClaimedJournal, RawValue};

use crate::backend::{timestamp, unavailable};

pub(crate) fn page(page: JournalPage) -> Result<ClaimedJournal, BackendError> {
    let entries = page.entries.into_iter().map(|recorded| entry(recorded, None)).collect::<Result<_, _>>()?;
    Ok(ClaimedJournal { entries, next_cursor: page.next.map(|position| position.to_string()) })
}

/// `existing`: the entry answers a write and was resolved before it.
pub(crate) fn entry(entry: JournalEntry, existing: Option<bool>) -> Result<wire::JournalEntry, BackendError> {
    let raw =
        |json| RawValue::from_string(json).map_err(|error| unavailable(StoreError::unexpected(error.to_string())));
    let attempts = entry.attempts.into_iter().map(|failed| wire::JournalAttempt {
        attempt: failed.attempt,
        at: timestamp(Time::from_micros(failed.at)),
        code: failed.code,
        message: failed.message,
    });
    Ok(wire::JournalEntry {
        key: entry.key.to_string(),
        op: entry.op.to_string(),
        status: if entry.seq.is_some() { "resolved" } else { "open" }.into(),
        existing,
        position: entry.position,
        seq: entry.seq,
        hash: entry.hash,
        attempt: entry.attempt,
        attempts: attempts.collect(),
        result: entry.result.map(raw).transpose()?,
        error: entry.error.map(|error| wire::JobError {
            code: error.code,
            message: error.message,
            retryable: error.retryable,
        }),
        bytes: entry.bytes,
        duration_ms: entry.duration_ms,
        created_at: timestamp(entry.created_at),
        resolved_at: entry.resolved_at.map(timestamp),
        input: entry.input.map(raw).transpose()?,
        due_at: entry.due_at.map(timestamp),
    })
}

//! Views of journals.

use store::StoreError;
use store::workflows::journal::JournalEntry;

use crate::view::{error, raw, time};

/// `existing`: the entry answers a write and was resolved before it.
pub(crate) fn entry(entry: JournalEntry, existing: Option<bool>) -> Result<wire::JournalEntry, StoreError> {
    let attempts = entry.attempts.into_iter().map(|failed| wire::JournalAttempt {
        attempt: failed.attempt,
        at: time(domain::Time::from_micros(failed.at)),
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
        error: entry.error.map(error),
        bytes: entry.bytes,
        duration_ms: entry.duration_ms,
        created_at: time(entry.created_at),
        resolved_at: entry.resolved_at.map(time),
        input: entry.input.map(raw).transpose()?,
        due_at: entry.due_at.map(time),
    })
}

/// Removes the parts of an entry that the caller may not read.
pub(crate) fn redacted(mut entry: wire::JournalEntry, results: bool, messages: bool) -> wire::JournalEntry {
    entry.result = entry.result.filter(|_| results);
    if !messages {
        entry.attempts.iter_mut().for_each(|failed| failed.message.clear());
        if let Some(error) = &mut entry.error {
            error.message.clear();
        }
    }
    entry
}

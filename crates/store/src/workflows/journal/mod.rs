//! The journal of a job: recorded operations, by key. `write` records them, `read` returns them, `fork` copies them to a
//! new job.

pub mod fork;
pub mod read;
pub mod write;

use domain::workflows::journal::JournalSize;
use domain::{JobError, JournalOp, Label, Time};
use serde::{Deserialize, Serialize};

use crate::db::codec::{error_from_json, from_json};
use crate::db::tx::Row;
use crate::error::StoreError;

/// One recorded operation.
#[derive(Clone, Debug, PartialEq)]
pub struct JournalEntry {
    pub key: Label,
    pub op: JournalOp,
    /// Number of the entry, from 1, in the order in which the operations were recorded first.
    pub position: i64,
    /// Place in the order of resolution, from 1. `None`: the operation is not resolved.
    pub seq: Option<i64>,
    pub hash: Option<String>,
    /// Number of attempts.
    pub attempt: i64,
    /// The last failed attempts.
    pub attempts: Vec<FailedAttempt>,
    pub result: Option<String>,
    pub error: Option<JobError>,
    pub bytes: i64,
    pub duration_ms: Option<i64>,
    pub created_at: Time,
    pub resolved_at: Option<Time>,
}

/// A failed attempt of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedAttempt {
    pub attempt: i64,
    /// Microseconds since 1970.
    pub at: i64,
    pub code: String,
    pub message: String,
}

impl JournalEntry {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let op = row.text("op")?;
        Ok(Self {
            key: Label::stored(&row.text("key")?),
            op: JournalOp::parse(&op).ok_or_else(|| StoreError::unexpected(format!("operation {op}")))?,
            position: row.int("position")?,
            seq: row.opt_int("seq")?,
            hash: row.opt_text("hash")?,
            attempt: row.int("attempt")?,
            attempts: row.opt_text("attempts")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default(),
            result: row.opt_text("result")?,
            error: row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?,
            bytes: row.int("bytes")?,
            duration_ms: row.opt_int("duration_ms")?,
            created_at: row.time("created_at")?,
            resolved_at: row.opt_time("resolved_at")?,
        })
    }
}

/// The row of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalHead {
    pub size: JournalSize,
    /// Number of resolved entries.
    pub resolved: i64,
    /// Key of the first step that was met with another digest.
    pub drift: Option<String>,
}

impl JournalHead {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        let size = JournalSize { entries: row.int("entries")?, bytes: row.int("bytes")? };
        Ok(Self { size, resolved: row.int("resolved")?, drift: row.opt_text("drift")? })
    }

    /// Sentences about the journal for the signal of its job.
    pub fn warnings(&self) -> Vec<String> {
        let drift = self.drift.as_ref().map(|key| {
            format!(
                "the step {key} was recorded with another input or code: the handler has changed since the job began"
            )
        });
        drift.into_iter().chain(self.size.warning()).collect()
    }
}

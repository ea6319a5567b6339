//! The journal of a job: recorded operations, by key. `write` records them, `read` returns them, `fork` copies them to a
//! new job. `operation`, `open_journal`, `undo`, `start_children` and `save` are the parts of `write`.

pub mod approvals;
pub(crate) mod children;
pub(crate) mod compensate;
pub mod events;
pub mod fork;
mod open_journal;
mod operation;
pub mod read;
pub mod resolve;
mod save;
mod start_children;
mod undo;
pub(crate) mod waits_for;
mod wake_keys;
pub mod write;

use std::collections::BTreeMap;

use domain::workflows::journal::JournalSize;
use domain::{JobError, JournalOp, Label, Time};
use serde::{Deserialize, Serialize};

use crate::db::codec::{error_from_json, from_json, to_json};
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
    pub attempts: Vec<FailedStepAttempt>,
    pub result: Option<String>,
    pub error: Option<JobError>,
    pub bytes: i64,
    pub duration_ms: Option<i64>,
    pub created_at: Time,
    pub resolved_at: Option<Time>,
    /// What the operation waits for, as JSON.
    pub input: Option<String>,
    /// When the open operation resolves by itself.
    pub due_at: Option<Time>,
}

/// A failed attempt of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailedStepAttempt {
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
            input: row.opt_text("input")?,
            due_at: row.opt_time("due_at")?,
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
                "the step {key} was recorded with another input or operation: the handler has changed since the job began"
            )
        });
        drift.into_iter().chain(self.size.warning()).collect()
    }
}

/// What wakes a suspended job: `count` of these entries are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub keys: Vec<Label>,
    pub count: i64,
}

impl Wake {
    fn keys_json(&self) -> String {
        to_json(&self.keys.iter().map(Label::as_str).collect::<Vec<_>>())
    }

    fn read(row: &Row) -> Result<Option<Self>, StoreError> {
        let Some(keys) = row.opt_text("wake_keys")? else { return Ok(None) };
        let keys: Vec<String> = from_json(&keys)?;
        let keys = keys.iter().map(|key| Label::stored(key)).collect();
        Ok(Some(Self { keys, count: row.int("wake_count")? }))
    }
}

/// What an `event` operation waits for.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AwaitedEvent {
    name: String,
    /// Members of the data that must have these values.
    #[serde(default, rename = "match", skip_serializing_if = "BTreeMap::is_empty")]
    matches: BTreeMap<String, serde_json::Value>,
}

impl AwaitedEvent {
    fn is_matched_by(&self, name: &str, data: &str) -> bool {
        if self.name != name || self.matches.is_empty() {
            return self.name == name;
        }
        // Numbers are compared by their value as JSON: 1 and 1.0 differ.
        match serde_json::from_str::<BTreeMap<String, serde_json::Value>>(data) {
            Ok(data) => self.matches.iter().all(|(member, value)| data.get(member) == Some(value)),
            Err(_) => false,
        }
    }
}

/// What an `approval` operation asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct AskedApproval {
    title: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The right that the approver needs.
    right: String,
}

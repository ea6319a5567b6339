//! Files and batches of the OpenAI-compatible face (R8). A batch is jobs of one run, whose name is the batch's id.

pub mod batches;
pub mod files;
pub mod prune;
pub mod steps;

use domain::{TenantId, Time};

use crate::codec::from_json;
use crate::error::StoreError;
use crate::tx::Row;

/// A file without its content.
#[derive(Clone, Debug)]
pub struct File {
    pub id: String,
    pub filename: String,
    pub purpose: String,
    pub bytes: i64,
    pub principal: String,
    pub created_at: Time,
    pub expires_at: Option<Time>,
}

/// From seven columns, in the order of the members.
fn file(row: &Row) -> Result<File, StoreError> {
    Ok(File {
        id: row.text(0)?,
        filename: row.text(1)?,
        purpose: row.text(2)?,
        bytes: row.int(3)?,
        principal: row.text(4)?,
        created_at: row.time(5)?,
        expires_at: row.opt_time(6)?,
    })
}

/// Where a batch stands, in the words of that API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStatus {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl BatchStatus {
    pub const ALL: [Self; 8] = [
        Self::Validating,
        Self::Failed,
        Self::InProgress,
        Self::Finalizing,
        Self::Completed,
        Self::Expired,
        Self::Cancelling,
        Self::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    fn parse(text: &str) -> Result<Self, StoreError> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| StoreError::unexpected(format!("the status {text}")))
    }
}

/// What is wrong with a line of the input.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LineFault {
    pub code: String,
    pub message: String,
    /// From 1; none where it is about the whole file.
    pub line: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Batch {
    pub id: String,
    pub tenant: TenantId,
    pub endpoint: String,
    pub input_file: String,
    pub completion_window: String,
    pub status: BatchStatus,
    /// JSON.
    pub metadata: Option<String>,
    pub errors: Vec<LineFault>,
    pub output_file: Option<String>,
    pub error_file: Option<String>,
    /// How long its files are kept; until they are deleted, when `None`.
    pub files_kept_s: Option<i64>,
    pub total: i64,
    /// Lines that have their jobs.
    pub made: i64,
    pub completed: i64,
    pub failed: i64,
    pub principal: String,
    pub created_at: Time,
    pub expires_at: Time,
    pub in_progress_at: Option<Time>,
    pub finalizing_at: Option<Time>,
    pub cancelling_at: Option<Time>,
    pub ended_at: Option<Time>,
}

impl Batch {
    /// What the origin of each of its jobs begins with, as a pattern.
    fn origins(&self) -> String {
        format!("batch:{}:%", self.id)
    }
}

/// From twenty-two columns, in the order of the members.
fn batch(row: &Row) -> Result<Batch, StoreError> {
    Ok(Batch {
        id: row.text(0)?,
        tenant: TenantId(row.int(1)?),
        endpoint: row.text(2)?,
        input_file: row.text(3)?,
        completion_window: row.text(4)?,
        status: BatchStatus::parse(&row.text(5)?)?,
        metadata: row.opt_text(6)?,
        errors: from_json(&row.text(7)?)?,
        output_file: row.opt_text(8)?,
        error_file: row.opt_text(9)?,
        files_kept_s: row.opt_int(10)?,
        total: row.int(11)?,
        made: row.int(12)?,
        completed: row.int(13)?,
        failed: row.int(14)?,
        principal: row.text(15)?,
        created_at: row.time(16)?,
        expires_at: row.time(17)?,
        in_progress_at: row.opt_time(18)?,
        finalizing_at: row.opt_time(19)?,
        cancelling_at: row.opt_time(20)?,
        ended_at: row.opt_time(21)?,
    })
}

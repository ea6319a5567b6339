//! Files and batches of the OpenAI-compatible API. A batch is a set of jobs of one run; the run's name is the batch's
//! id.

pub mod batches;
pub mod files;
pub mod prune;
pub mod steps;

use domain::{TenantId, Time};

use crate::db::codec::from_json;
use crate::db::tx::Row;
use crate::error::StoreError;

/// The metadata of a file.
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

fn file(row: &Row) -> Result<File, StoreError> {
    Ok(File {
        id: row.text("id")?,
        filename: row.text("filename")?,
        purpose: row.text("purpose")?,
        bytes: row.int("bytes")?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        expires_at: row.opt_time("expires_at")?,
    })
}

/// The status of a batch, as defined by the OpenAI API.
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
        found.ok_or_else(|| StoreError::unexpected(format!("unknown batch status `{text}`")))
    }
}

/// An error in a line of the input file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LineFault {
    pub code: String,
    pub message: String,
    /// Line number, starting at 1; `None` if the error concerns the whole file.
    pub line: Option<i64>,
}

/// A batch.
#[derive(Clone, Debug)]
pub struct OpenAiBatch {
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
    /// Retention of its output files; until they are deleted if `None`.
    pub files_kept_s: Option<i64>,
    pub total: i64,
    /// Lines for which jobs have been made.
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

impl OpenAiBatch {
    /// Returns the `like` pattern that matches the origin of each of its jobs.
    fn origin_pattern(&self) -> String {
        format!("batch:{}:%", self.id)
    }
}

fn batch(row: &Row) -> Result<OpenAiBatch, StoreError> {
    Ok(OpenAiBatch {
        id: row.text("id")?,
        tenant: TenantId(row.int("tenant")?),
        endpoint: row.text("endpoint")?,
        input_file: row.text("input_file")?,
        completion_window: row.text("completion_window")?,
        status: BatchStatus::parse(&row.text("status")?)?,
        metadata: row.opt_text("metadata")?,
        errors: from_json(&row.text("errors")?)?,
        output_file: row.opt_text("output_file")?,
        error_file: row.opt_text("error_file")?,
        files_kept_s: row.opt_int("files_kept_s")?,
        total: row.int("total")?,
        made: row.int("made")?,
        completed: row.int("completed")?,
        failed: row.int("failed")?,
        principal: row.text("principal")?,
        created_at: row.time("created_at")?,
        expires_at: row.time("expires_at")?,
        in_progress_at: row.opt_time("in_progress_at")?,
        finalizing_at: row.opt_time("finalizing_at")?,
        cancelling_at: row.opt_time("cancelling_at")?,
        ended_at: row.opt_time("ended_at")?,
    })
}

//! The error type of the store, with variants by what a caller can do: retry, fix the setup, or report a bug.

use thiserror::Error;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

#[derive(Debug, Error)]
pub enum StoreError {
    /// The database is down, full, read-only or overloaded. Nothing was changed; a retry may succeed later.
    #[error("the database is unavailable: {reason}")]
    Unavailable {
        reason: String,
        #[source]
        source: Option<Source>,
    },
    /// The folder or bucket of large artifacts is missing, full or not writable. Nothing visible was changed.
    #[error("the artifact storage is unavailable: {reason}")]
    ArtifactsUnavailable {
        reason: String,
        #[source]
        source: Option<Source>,
    },
    /// The connection was lost during a commit. The transaction may or may not be committed.
    #[error("connection lost during COMMIT; the outcome is unknown: {reason}")]
    InDoubt { reason: String },
    /// The database cannot be used in its current state; an operator must act.
    #[error("{0}")]
    Unusable(String),
    /// A row names a blob that is not in this node's storage: it was lost, or another node uses a different storage.
    #[error("blob {0} not found in the artifact storage of this node")]
    BlobMissing(String),
    /// A row that this version cannot have written, or a statement that the database rejects.
    #[error("unexpected answer from the database: {context}")]
    Unexpected {
        context: String,
        #[source]
        source: Option<Source>,
    },
}

impl StoreError {
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), source: None }
    }

    pub fn unexpected(context: impl Into<String>) -> Self {
        Self::Unexpected { context: context.into(), source: None }
    }

    /// True if the cause is usually temporary.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::ArtifactsUnavailable { .. } | Self::InDoubt { .. })
    }

    /// Copies the error for another caller of the same group commit.
    pub(crate) fn share(&self) -> Self {
        match self {
            Self::Unavailable { reason, .. } => Self::unavailable(reason.clone()),
            Self::ArtifactsUnavailable { reason, .. } => {
                Self::ArtifactsUnavailable { reason: reason.clone(), source: None }
            }
            Self::InDoubt { reason } => Self::InDoubt { reason: reason.clone() },
            Self::Unusable(reason) => Self::Unusable(reason.clone()),
            Self::BlobMissing(location) => Self::BlobMissing(location.clone()),
            Self::Unexpected { context, source } => {
                let cause = source.as_ref().map(|source| format!(": {source}")).unwrap_or_default();
                Self::unexpected(format!("{context}{cause}"))
            }
        }
    }
}

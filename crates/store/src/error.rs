//! What a caller of the store can do about a failure: wait, or report a bug.

use thiserror::Error;

type Source = Box<dyn std::error::Error + Send + Sync + 'static>;

#[derive(Debug, Error)]
pub enum StoreError {
    /// The database is down, full, read-only or too busy. Nothing was changed; the same call may succeed later.
    #[error("the database is unavailable: {reason}")]
    Unavailable {
        reason: String,
        #[source]
        source: Option<Source>,
    },
    /// The folder or bucket of large artifacts is away, full or not writable. Nothing that anyone sees was changed.
    #[error("the place for artifacts is unavailable: {reason}")]
    ArtifactsUnavailable {
        reason: String,
        #[source]
        source: Option<Source>,
    },
    /// The database went away while a commit was on its way: it may hold or not.
    #[error("the database went away during a commit, which may hold or not: {reason}")]
    InDoubt { reason: String },
    /// The database cannot be used as it is; a person must act.
    #[error("{0}")]
    Unusable(String),
    /// A row names a blob that is not where this node looks: it was lost, or another node keeps its blobs elsewhere.
    #[error("the blob {0} is not there")]
    BlobMissing(String),
    /// A row that this program cannot have written, or a statement the database does not accept.
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

    /// Whether the cause may pass by itself.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::ArtifactsUnavailable { .. } | Self::InDoubt { .. })
    }

    /// The same failure for another caller of a shared commit.
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

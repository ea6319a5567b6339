//! What can go wrong between a caller and the server.

use std::error::Error;

use wire::{Problem, code};

use crate::backend::BackendError;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("the server's address is not valid: {0}")]
    Address(String),
    #[error("the token has characters that a header cannot carry")]
    Token,
    /// The server answered with a refusal or a failure of its own; `status` and `code` say which.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// No answer came. `sent` is false when the server was not reached at all, so that nothing can have been done.
    #[error("the server cannot be reached")]
    Unreachable { sent: bool, source: Box<dyn Error + Send + Sync> },
    #[error("the server's answer cannot be read")]
    Decode(#[source] serde_json::Error),
    /// What was to be sent could not be read or written as JSON.
    #[error("the request cannot be made")]
    Encode(#[source] Box<dyn Error + Send + Sync>),
}

impl ClientError {
    /// The HTTP status of a refusal or failure that the server told.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            _ => None,
        }
    }

    /// The stable code of a refusal or failure that the server told.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Problem(problem) => match (problem.status, problem.code.as_str()) {
                (410, _) => Self::Gone,
                (408 | 425 | 429, _) | (503, code::UNAVAILABLE | code::SHUTTING_DOWN) => {
                    Self::Unavailable(Box::new(ClientError::Problem(problem)))
                }
                // Only the server itself knows that nothing was done; a proxy that lost it does not.
                (500.., _) => Self::Unanswered(Box::new(ClientError::Problem(problem))),
                _ => Self::Refused(problem),
            },
            ClientError::Unreachable { sent: true, .. } | ClientError::Decode(_) => Self::Unanswered(Box::new(error)),
            ClientError::Unreachable { sent: false, .. }
            | ClientError::Address(_)
            | ClientError::Token
            | ClientError::Encode(_) => Self::Unavailable(Box::new(error)),
        }
    }
}

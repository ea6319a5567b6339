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
    #[error("the certificates to trust cannot be taken: {0}")]
    Authority(String),
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

/// The `type` of a problem that the client wrote itself, because the answer came without a problem document: it is from
/// something before the server, which does not know what was done.
pub(crate) const UNDOCUMENTED: &str = "about:blank#undocumented";

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Problem(problem) => of_problem(problem),
            ClientError::Unreachable { sent: true, .. } | ClientError::Decode(_) => Self::Unanswered(Box::new(error)),
            ClientError::Unreachable { sent: false, .. }
            | ClientError::Address(_)
            | ClientError::Token
            | ClientError::Authority(_)
            | ClientError::Encode(_) => Self::Unavailable(Box::new(error)),
        }
    }
}

fn of_problem(problem: Box<Problem>) -> BackendError {
    match (problem.status, problem.code.as_str()) {
        // A proxy says 404 too while the server is away. What is too large for it is too large the next time.
        (status, _) if problem.kind == UNDOCUMENTED && !matches!(status, 408 | 413 | 425 | 429) => {
            BackendError::Unanswered(Box::new(ClientError::Problem(problem)))
        }
        (_, code::BODY_BROKEN_OFF) => BackendError::Unanswered(Box::new(ClientError::Problem(problem))),
        (410, _) => BackendError::Gone,
        (408 | 425 | 429, _) | (503, code::UNAVAILABLE | code::SHUTTING_DOWN) => {
            BackendError::Unavailable(Box::new(ClientError::Problem(problem)))
        }
        // Only the server itself knows that nothing was done.
        (500.., _) => BackendError::Unanswered(Box::new(ClientError::Problem(problem))),
        _ => BackendError::Refused(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: &str) -> BackendError {
        let problem = Problem { kind: "about:blank".into(), status, code: code.into(), ..Problem::default() };
        ClientError::Problem(Box::new(problem)).into()
    }

    #[test]
    fn only_what_the_server_refuses_is_a_refusal() {
        assert!(matches!(of(422, code::INVALID_FIELD), BackendError::Refused(_)));
        assert!(matches!(of(404, code::NO_SUCH_ROUTE), BackendError::Refused(_)));
        assert!(matches!(of(410, code::WORKER_GONE), BackendError::Gone));
        let undocumented = |status| Problem { kind: UNDOCUMENTED.into(), status, ..Problem::default() };
        assert!(matches!(of_problem(Box::new(undocumented(404))), BackendError::Unanswered(_)), "a proxy may say so");
        assert!(
            matches!(of_problem(Box::new(undocumented(413))), BackendError::Refused(_)),
            "it would say so for ever"
        );
        assert!(matches!(of(503, code::UNAVAILABLE), BackendError::Unavailable(_)));
        assert!(matches!(of(503, code::OUTCOME_UNKNOWN), BackendError::Unanswered(_)));
        assert!(
            matches!(of(400, code::BODY_BROKEN_OFF), BackendError::Unanswered(_)),
            "it is whole when it is sent again"
        );
    }
}

//! Errors of the client.

use std::error::Error;

use wire::{Problem, code};

use crate::backend::BackendError;

/// Errors of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL of the server is invalid.
    #[error("invalid server URL: {0}")]
    Address(String),
    /// The token cannot be sent.
    #[error("the token contains characters that are not valid in a header")]
    Token,
    /// The certificates are invalid.
    #[error("invalid certificate authorities: {0}")]
    Authority(String),
    /// The server returned an error; see `status` and `code`.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// No response arrived. `sent` is false if the server could not be reached, so that nothing was changed.
    #[error("{}", describe_unreachable(.sent))]
    Unreachable {
        /// The request may have reached the server.
        sent: bool,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The response has another form than expected.
    #[error("cannot parse the server's response")]
    Decode(#[source] serde_json::Error),
    /// The request could not be serialized or built.
    #[error("cannot build the request")]
    Encode(#[source] Box<dyn Error + Send + Sync>),
}

fn describe_unreachable(sent: &bool) -> &'static str {
    if *sent { "no response from the server" } else { "cannot reach the server" }
}

impl ClientError {
    /// The HTTP status of an error that the server returned.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            _ => None,
        }
    }

    /// The stable code of an error that the server returned.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Problem(problem) => Some(&problem.code),
            _ => None,
        }
    }
}

/// The `type` of a problem that the client created for an error response without a problem document. Such a response
/// comes from a proxy, which does not know whether the request was applied.
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
        // A proxy returns 404 while the server is down, too. A body that is too large for the proxy will stay too
        // large.
        (status, _) if problem.kind == UNDOCUMENTED && !matches!(status, 408 | 413 | 425 | 429) => {
            BackendError::Unanswered(Box::new(ClientError::Problem(problem)))
        }
        (_, code::BODY_BROKEN_OFF) => BackendError::Unanswered(Box::new(ClientError::Problem(problem))),
        (410, _) => BackendError::LeaseExpired,
        (429, _) => BackendError::Throttled(problem),
        (408 | 425, _) | (503, code::UNAVAILABLE) => BackendError::Unavailable(Box::new(ClientError::Problem(problem))),
        // Only the server itself knows that nothing was changed.
        (500.., _) => BackendError::Unanswered(Box::new(ClientError::Problem(problem))),
        _ => BackendError::Refused(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: &str) -> BackendError {
        let problem = Problem { kind: Problem::kind_of(code), status, code: code.into(), ..Problem::default() };
        ClientError::Problem(Box::new(problem)).into()
    }

    #[test]
    fn only_a_documented_rejection_counts_as_refused() {
        assert!(matches!(of(422, code::INVALID_FIELD), BackendError::Refused(_)));
        assert!(matches!(of(404, code::NO_SUCH_ROUTE), BackendError::Refused(_)));
        assert!(matches!(of(410, code::WORKER_GONE), BackendError::LeaseExpired));
        let undocumented = |status| Problem { kind: UNDOCUMENTED.into(), status, ..Problem::default() };
        assert!(
            matches!(of_problem(Box::new(undocumented(404))), BackendError::Unanswered(_)),
            "may come from a proxy"
        );
        assert!(
            matches!(of_problem(Box::new(undocumented(413))), BackendError::Refused(_)),
            "a retry would fail again"
        );
        assert!(matches!(of(503, code::UNAVAILABLE), BackendError::Unavailable(_)));
        assert!(matches!(of(503, code::OUTCOME_UNKNOWN), BackendError::Unanswered(_)));
        assert!(
            matches!(of(400, code::BODY_BROKEN_OFF), BackendError::Unanswered(_)),
            "a retry sends the complete body"
        );
    }
}

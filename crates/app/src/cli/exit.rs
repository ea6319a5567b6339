//! Exit codes and error output. The codes are stable.

use std::fmt;
use std::io;
use std::process::ExitCode;

use client::{ClientError, WorkerError};
use wire::{Problem, code};

pub(crate) const HELP: &str = "\
Environment:
  WINDLASS_URL    Address of the server, like --url.
  WINDLASS_TOKEN  Token to authenticate with. WINDLASS_TOKEN_FILE names a file with it.
  WINDLASS_CA     Additional certificate authorities to trust, like --ca.
  NO_COLOR        Disable colors.

Exit codes:
  0    Success.
  1    The job failed or was canceled, or another error occurred.
  2    Invalid command line.
  3    The server rejected the request.
  4    Not found.
  5    The server is unreachable or unavailable.
  6    Timed out while waiting; the job or the operation continues.
  130  Interrupted.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Refused = 3,
    NotFound = 4,
    Unavailable = 5,
    TimedOut = 6,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The command line parsed, but its values are invalid.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::error::Error for UsageError {}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object does not exist; detected without a request for its id.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) String);

impl std::error::Error for NotFound {}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints an error and returns the exit code for it.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    let is_broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    let is_request = error.chain().any(|cause| cause.is::<ClientError>() || cause.is::<WorkerError>());
    if !is_request && error.chain().any(is_broken_pipe) {
        // The reader of stdout, for example `head`, has closed the pipe.
        return Exit::Done;
    }
    match error.downcast_ref::<CannotReach>() {
        // The causes below only repeat this in terms of the HTTP library.
        Some(cannot_reach) => super::output::error(&cannot_reach.to_string()),
        None => super::output::error(&format!("{error:#}")),
    }
    if wants_token(error) {
        super::output::note("The server requires a token: set WINDLASS_TOKEN.");
    }
    of(error)
}

/// The server at an address could not be reached, or did not respond.
#[derive(Debug)]
struct CannotReach(String);

impl fmt::Display for CannotReach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Adds the server's address and a remedy to an error if the server could not be reached.
pub(crate) fn with_address(error: anyhow::Error, address: &str) -> anyhow::Error {
    let sent = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(ClientError::Unreachable { sent, .. }) => Some(*sent),
        _ => None,
    });
    let Some(sent) = sent else { return error };
    let cause = error.root_cause();
    let reason = match cause.downcast_ref::<io::Error>() {
        Some(cause) if cause.kind() != io::ErrorKind::Other && cause.get_ref().is_none() => cause.kind().to_string(),
        _ => cause.to_string(),
    };
    let message = match sent {
        true => no_response(address, &reason),
        false => cannot_reach(address, &reason),
    };
    error.context(CannotReach(message))
}

fn cannot_reach(address: &str, reason: &str) -> String {
    let plain = address.strip_prefix("https://");
    let remedy = match plain {
        // rustls reports bytes that are not TLS in these terms.
        Some(host) if reason.contains("corrupt message") || reason.contains("InvalidContentType") => {
            return format!("{address} does not speak TLS; use http://{host}");
        }
        Some(_) if reason.contains("UnknownIssuer") => {
            "pass its certificate authority with --ca FILE or WINDLASS_CA".to_owned()
        }
        _ if reason.contains("lookup") => "check the host name in --url or WINDLASS_URL".to_owned(),
        _ => "is `windlass serve` running?".to_owned(),
    };
    format!("cannot reach {address}: {reason}; {remedy}")
}

fn no_response(address: &str, reason: &str) -> String {
    match address.strip_prefix("http://") {
        Some(host) if !reason.contains("timed out") => {
            format!("no response from {address}: {reason}; if the server uses TLS, use https://{host}")
        }
        _ => format!("no response from {address}: {reason}"),
    }
}

fn wants_token(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(ClientError::Problem(problem)), _) | (_, Some(WorkerError::Refused(problem))) => {
            problem.code == code::TOKEN_REQUIRED
        }
        _ => false,
    })
}

/// Reports an error for one of several objects; the caller continues with the others.
pub(crate) fn report_of(error: impl Into<anyhow::Error>, what: &str) -> Exit {
    report(&error.into().context(what.to_owned()))
}

fn of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if cause.is::<UsageError>() {
            return Exit::Usage;
        }
        if cause.is::<NotFound>() {
            return Exit::NotFound;
        }
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return match error {
                ClientError::Problem(problem) => of_problem(problem),
                ClientError::Unreachable { .. } | ClientError::Decode(_) => Exit::Unavailable,
                ClientError::Address(_) | ClientError::Token | ClientError::Authority(_) => Exit::Usage,
                ClientError::Encode(_) => Exit::Failed,
            };
        }
        if let Some(WorkerError::Refused(problem)) = cause.downcast_ref() {
            return of_problem(problem);
        }
    }
    Exit::Failed
}

fn of_problem(problem: &Problem) -> Exit {
    match (problem.code.as_str(), problem.status) {
        // A synchronous call's job failed; the server itself did what was requested.
        (code::CALL_REFUSED | code::CALL_FAILED | code::CALL_BROKEN | code::CALL_OUT_OF_RESOURCES, _) => Exit::Failed,
        (code::CALL_TIMED_OUT, _) => Exit::TimedOut,
        (code::CALL_UNAVAILABLE, _) => Exit::Unavailable,
        // The address is not that of a Windlass API: a wrong path, or another program.
        (code::NO_SUCH_ROUTE, 404) => Exit::Usage,
        (_, 404) => Exit::NotFound,
        (_, 500.. | 408 | 425 | 429) => Exit::Unavailable,
        _ => Exit::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, code: &str) -> anyhow::Error {
        let problem = Problem { status, detail: "no".into(), code: code.into(), ..Problem::default() };
        anyhow::Error::from(ClientError::Problem(Box::new(problem))).context("cannot do it")
    }

    #[test]
    fn exit_codes_distinguish_rejections_from_outages() {
        assert_eq!(of(&problem(422, "invalid_field")), Exit::Refused);
        assert_eq!(of(&problem(404, "not_found")), Exit::NotFound);
        assert_eq!(of(&problem(404, code::NO_SUCH_ROUTE)), Exit::Usage, "the address is wrong, not the id");
        assert_eq!(of(&NotFound("no such trigger".into()).into()), Exit::NotFound);
        assert_eq!(of(&problem(503, "unavailable")), Exit::Unavailable);
        assert_eq!(of(&ClientError::Unreachable { sent: false, source: "refused".into() }.into()), Exit::Unavailable);
        assert_eq!(of(&anyhow::anyhow!("else")), Exit::Failed);
        assert_eq!(of(&UsageError("no".into()).into()), Exit::Usage);
    }

    #[test]
    fn a_server_that_cannot_be_reached_is_named_with_the_reason() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = ClientError::Unreachable { sent: false, source: Box::new(refused()) };
        let error = with_address(error.into(), "http://127.0.0.1:7717");
        let expected = "cannot reach http://127.0.0.1:7717: connection refused; is `windlass serve` running?";
        assert_eq!((error.to_string().as_str(), of(&error)), (expected, Exit::Unavailable));
        let closed = ClientError::Unreachable { sent: true, source: "connection closed".into() };
        let expected = "no response from http://x: connection closed; if the server uses TLS, use https://x";
        assert_eq!(with_address(closed.into(), "http://x").to_string(), expected);
    }

    #[test]
    fn the_remedy_for_an_unreachable_server_depends_on_the_reason() {
        let error = |address: &str, reason: &str| cannot_reach(address, reason);
        let plain = error("https://x:1", "received corrupt message of type InvalidContentType");
        assert_eq!(plain, "https://x:1 does not speak TLS; use http://x:1");
        assert!(error("https://x", "invalid peer certificate: UnknownIssuer").contains("--ca FILE"));
        assert!(error("http://x", "failed to lookup address information").contains("check the host name"));
        assert!(error("http://x", "connection refused").ends_with("is `windlass serve` running?"));
        assert!(!no_response("http://x", "operation timed out").contains("TLS"));
    }

    /// Requirement X7.
    #[test]
    fn only_a_request_without_a_token_gets_the_token_hint() {
        let refused = Problem { status: 401, code: code::TOKEN_REQUIRED.into(), ..Problem::default() };
        assert!(wants_token(&WorkerError::Refused(Box::new(refused)).into()));
        assert!(wants_token(&problem(401, code::TOKEN_REQUIRED)));
        assert!(!wants_token(&problem(401, code::INVALID_TOKEN)), "it was sent one");
    }

    #[test]
    fn exit_codes_distinguish_a_failed_call_from_a_failed_server() {
        for (status, code) in [
            (422, code::CALL_REFUSED),
            (502, code::CALL_FAILED),
            (500, code::CALL_BROKEN),
            (507, code::CALL_OUT_OF_RESOURCES),
        ] {
            assert_eq!(of(&problem(status, code)), Exit::Failed, "{code}");
        }
        assert_eq!(of(&problem(504, code::CALL_TIMED_OUT)), Exit::TimedOut);
        assert_eq!(of(&problem(503, code::CALL_UNAVAILABLE)), Exit::Unavailable);
        assert_eq!(of(&problem(502, code::OUTCOME_UNKNOWN)), Exit::Unavailable, "a proxy that lost the server");
    }
}

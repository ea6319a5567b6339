//! What the exit code tells a script. The numbers are stable.

use std::fmt;
use std::io;
use std::process::ExitCode;

use client::{ClientError, WorkerError};
use wire::{Problem, code};

pub(crate) const HELP: &str = "\
Environment:
  WINDLASS_URL    The server's address, like --url.
  WINDLASS_TOKEN  The token to send.
  WINDLASS_CA     Certificate authorities to trust beside the public ones, like --ca.
  NO_COLOR        Print without colour.

Exit codes:
  0    Done.
  1    The job failed or was canceled, or something else went wrong.
  2    The command line was not understood.
  3    The server refused the request.
  4    There is no such thing.
  5    The server cannot be reached or cannot answer now.
  6    The job or the operation had not ended when the command stopped waiting; it goes on.
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

/// What the caller typed was understood as a command but makes no sense.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::error::Error for UsageError {}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What was named is not there, as far as this program can tell without asking for it by id.
#[derive(Debug)]
pub(crate) struct NotFound(pub(crate) String);

impl std::error::Error for NotFound {}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints the error, and says with which code to exit.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    let is_broken_pipe = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    let asked = error.chain().any(|cause| cause.is::<ClientError>() || cause.is::<WorkerError>());
    if !asked && error.chain().any(is_broken_pipe) {
        // The reader of what is printed, say `head`, has seen enough.
        return Exit::Done;
    }
    super::output::error(&format!("{error:#}"));
    if wants_token(error) {
        super::output::note("This server wants a token and was sent none: put one into WINDLASS_TOKEN.");
    }
    of(error)
}

fn wants_token(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match (cause.downcast_ref(), cause.downcast_ref()) {
        (Some(ClientError::Problem(problem)), _) | (_, Some(WorkerError::Refused(problem))) => {
            problem.code == code::TOKEN_REQUIRED
        }
        _ => false,
    })
}

/// The same for one of several things, by what was to be done to it; whoever asks goes on with the others.
pub(crate) fn report_of(error: ClientError, what: &str) -> Exit {
    report(&anyhow::Error::from(error).context(what.to_owned()))
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
        // A call's job ended badly: the server did all that was asked of it.
        (code::CALL_REFUSED | code::CALL_FAILED | code::CALL_BROKEN | code::CALL_OUT_OF_RESOURCES, _) => Exit::Failed,
        (code::CALL_TIMED_OUT, _) => Exit::TimedOut,
        (code::CALL_UNAVAILABLE, _) => Exit::Unavailable,
        // Nothing of ours is at that address: a path too much, or another program's.
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
        let (kind, title, detail, code) = ("about:blank".into(), String::new(), "no".into(), code.into());
        let problem = wire::Problem { kind, title, status, detail, code, ..wire::Problem::default() };
        anyhow::Error::from(ClientError::Problem(Box::new(problem))).context("cannot do it")
    }

    #[test]
    fn the_code_tells_refusals_from_outages() {
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
    fn x7_who_was_sent_away_without_a_token_is_told_where_to_put_one() {
        let refused = Problem { status: 401, code: code::TOKEN_REQUIRED.into(), ..Problem::default() };
        assert!(wants_token(&WorkerError::Refused(Box::new(refused)).into()));
        assert!(wants_token(&problem(401, code::TOKEN_REQUIRED)));
        assert!(!wants_token(&problem(401, code::INVALID_TOKEN)), "it was sent one");
    }

    #[test]
    fn a_call_that_failed_is_told_from_a_server_that_did() {
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

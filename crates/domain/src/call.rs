//! What a synchronous call that went wrong means for its caller (Q5).

use crate::job::JobError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The handler will not do this; the same again would end the same.
    Refused,
    /// The handler tried and failed, or its worker was lost on the way.
    Failed,
    /// Nobody was there to do it.
    Unavailable,
    TimedOut,
    /// There was not enough memory, disk or quota for it.
    OutOfResources,
    /// The handler itself broke.
    Broken,
}

impl CallFailure {
    /// By the code that the handler or the engine gave, and else by whether another try could help.
    pub fn of(error: &JobError) -> Self {
        match error.code.as_str() {
            "timeout" | "timed_out" | "deadline_exceeded" => Self::TimedOut,
            "unavailable" | "overloaded" | "busy" => Self::Unavailable,
            "out_of_memory" | "resource_exhausted" | "insufficient_storage" | "quota_exceeded" => Self::OutOfResources,
            "panic" | "internal" | "internal_error" => Self::Broken,
            _ if error.retryable => Self::Failed,
            _ => Self::Refused,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: &str, retryable: bool, expected: CallFailure) {
        let error = JobError { code: code.into(), message: String::new(), retryable };
        assert_eq!(CallFailure::of(&error), expected, "{code}");
    }

    #[test]
    fn q5_a_failure_is_told_by_its_code_and_else_by_whether_a_retry_could_help() {
        check("bad_address", false, CallFailure::Refused);
        check("smtp_down", true, CallFailure::Failed);
        check("expired", true, CallFailure::Failed);
        check("timeout", true, CallFailure::TimedOut);
        check("busy", true, CallFailure::Unavailable);
        check("out_of_memory", false, CallFailure::OutOfResources);
        check("panic", true, CallFailure::Broken);
    }
}

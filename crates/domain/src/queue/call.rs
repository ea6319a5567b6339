//! Classifies the failure of a synchronous call for its caller.

use crate::queue::job::JobError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The handler rejected the request. A retry would be rejected as well.
    Refused,
    /// The handler tried and failed, or its worker was lost.
    Failed,
    /// No worker was available.
    Unavailable,
    TimedOut,
    /// Memory, disk or quota was insufficient.
    OutOfResources,
    /// The handler itself is defective.
    Broken,
}

impl CallFailure {
    /// Classifies by the error code of the handler or the engine, else by whether the error is retryable.
    pub fn of(error: &JobError) -> Self {
        match error.code.as_str() {
            "timeout" | "timed_out" | "deadline_exceeded" => Self::TimedOut,
            "unavailable" | "overloaded" | "busy" => Self::Unavailable,
            "out_of_memory" | "resource_exhausted" | "insufficient_storage" | "quota_exceeded" | "script_ceiling" => {
                Self::OutOfResources
            }
            "panic" | "internal" | "internal_error" | "script_invalid" => Self::Broken,
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

    /// Requirement Q5.
    #[test]
    fn a_call_failure_is_mapped_by_its_code_then_by_retryability() {
        check("bad_address", false, CallFailure::Refused);
        check("smtp_down", true, CallFailure::Failed);
        check("expired", true, CallFailure::Failed);
        check("timeout", true, CallFailure::TimedOut);
        check("busy", true, CallFailure::Unavailable);
        check("out_of_memory", false, CallFailure::OutOfResources);
        check("panic", true, CallFailure::Broken);
        check("script_ceiling", false, CallFailure::OutOfResources);
        check("script_failed", true, CallFailure::Failed);
    }
}

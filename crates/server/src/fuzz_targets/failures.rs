//! Fuzz target for failure grouping and signatures.

use domain::limits::FAILURE_PATTERN_BYTES;
use domain::signals::failure::message_pattern;
use domain::signals::signature::{FailureCase, SignaturePattern, exactly};

use super::first_line;

/// Input: an error message, then a regular expression and a subject, each on a line.
///
/// A message pattern must contain no digits and stay within its limit. A regular expression must be refused or match in
/// bounded time. A pattern made from a text must match that text and no longer one.
pub fn failure(data: &[u8]) {
    let (message, rest) = first_line(data);
    let (expression, subject) = first_line(rest);
    let [message, expression, subject] = [message, expression, subject].map(String::from_utf8_lossy);
    let pattern = message_pattern(&message);
    assert!(pattern.len() <= FAILURE_PATTERN_BYTES);
    assert!(!pattern.bytes().any(|byte| byte.is_ascii_digit()), "{pattern}");

    let of = |expression: String| {
        SignaturePattern { subject_pattern: Some(expression), ..SignaturePattern::default() }.matcher()
    };
    if let Ok(matcher) = of(expression.into_owned()) {
        let case = FailureCase { subject: Some(&subject), ..FailureCase::default() };
        assert_eq!(matcher.matches(case), matcher.may_match_job(None, Some(&subject)));
        assert!(!matcher.may_match_job(None, None), "nothing matches no pattern");
    }
    if let Ok(matcher) = of(exactly(&subject)) {
        assert!(matcher.may_match_job(None, Some(&subject)), "{subject:?}");
        assert!(!matcher.may_match_job(None, Some(&format!("{subject}x"))), "{subject:?}");
        assert!(!matcher.may_match_job(None, Some(&format!("x{subject}"))), "{subject:?}");
    }
}

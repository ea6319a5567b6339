//! What is the same about failures, and signatures of them.

use domain::failure::message_pattern;
use domain::limits::FAILURE_PATTERN_BYTES;
use domain::signature::{Case, Pattern, exactly};

use super::first_line;

/// An error's message and, from the second line on, a regular expression and a subject.
///
/// No number is left in a message's pattern, which is bounded; a regular expression is refused or matches in bounded time; one
/// that was made of a text matches that text and none that is longer.
pub fn failure(data: &[u8]) {
    let (message, rest) = first_line(data);
    let (expression, subject) = first_line(rest);
    let [message, expression, subject] = [message, expression, subject].map(String::from_utf8_lossy);
    let pattern = message_pattern(&message);
    assert!(pattern.len() <= FAILURE_PATTERN_BYTES);
    assert!(!pattern.bytes().any(|byte| byte.is_ascii_digit()), "{pattern}");

    let of = |expression: String| Pattern { subject_pattern: Some(expression), ..Pattern::default() }.matcher();
    if let Ok(matcher) = of(expression.into_owned()) {
        let case = Case { subject: Some(&subject), ..Case::default() };
        assert_eq!(matcher.matches(case), matcher.could_befall(None, Some(&subject)));
        assert!(!matcher.could_befall(None, None), "nothing matches no pattern");
    }
    if let Ok(matcher) = of(exactly(&subject)) {
        assert!(matcher.could_befall(None, Some(&subject)), "{subject:?}");
        assert!(!matcher.could_befall(None, Some(&format!("{subject}x"))), "{subject:?}");
        assert!(!matcher.could_befall(None, Some(&format!("x{subject}"))), "{subject:?}");
    }
}

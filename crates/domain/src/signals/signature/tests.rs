use proptest::prelude::*;

use super::*;

fn subject(regex: &str) -> SignaturePattern {
    SignaturePattern { subject_pattern: Some(regex.into()), ..SignaturePattern::default() }
}

fn matches(regex: &str, text: &str) -> bool {
    let matcher = subject(regex).matcher().unwrap_or_else(|error| panic!("{regex}: {error}"));
    matcher.matches(FailureCase { subject: Some(text), ..FailureCase::default() })
}

/// Requirement S6.
#[test]
fn an_empty_signature_pattern_is_rejected() {
    assert_eq!(SignaturePattern::default().matcher().err(), Some(PatternError::Empty));
}

/// Requirement S6.
#[test]
fn an_absent_pattern_part_matches_anything_and_an_absent_value_never_matches() {
    let pattern = SignaturePattern { phase: Some("fetch".into()), kind: Some("scan".into()), ..subject("^nginx") };
    let matcher = pattern.matcher().expect("it is good");
    let case =
        FailureCase { phase: Some("fetch"), kind: Some("scan"), subject: Some("nginx:1"), error_code: Some("any") };
    assert!(matcher.matches(case));
    for other in [
        FailureCase { phase: None, ..case },
        FailureCase { kind: Some("other"), ..case },
        FailureCase { subject: None, ..case },
        FailureCase { subject: Some("my-nginx"), ..case },
    ] {
        assert!(!matcher.matches(other), "{other:?}");
    }
}

/// Requirement S6.
#[test]
fn angle_brackets_are_literals_and_not_word_boundaries() {
    assert!(matches("a>b", "a>b") && matches("^<[<>]+$", "<<>"));
    assert!(matches(&exactly("<a> & b"), "<a> & b"));
    assert_eq!(portable("a>b.c").as_deref(), Ok("a>b.c"));
    assert!(portable("\\<a").is_err());
}

/// Requirement S6.
#[test]
fn the_canonical_form_of_a_pattern_depends_on_its_fields() {
    let one = SignaturePattern { kind: Some("a".into()), phase: Some("b".into()), ..SignaturePattern::default() };
    let other = SignaturePattern { kind: Some("b".into()), phase: Some("a".into()), ..SignaturePattern::default() };
    assert_ne!(one.canonical(), other.canonical());
    assert_eq!(one.canonical(), one.clone().canonical());
}

/// Requirement S6.
#[test]
fn an_invalid_too_large_or_unportable_regex_is_rejected() {
    let long = "a".repeat(1_000);
    for bad in [
        "(",
        "[a",
        "a{2,1}",
        "*a",
        "(?i)a",
        "(?P<x>a)",
        "\\bword",
        "\\p{L}",
        "[[:alpha:]]",
        "[a&&b]",
        "(?=a)",
        "\\1",
        "a{1000}",
        "((a{200}){200}){200}",
        "^*",
        "",
        "a\u{0}",
        "a\\x00",
        "[\\x00-\\x1f]",
        "[^\\u{0}]",
        "[^\\W]",
        "\\Aa",
        &long,
    ] {
        assert!(matches!(subject(bad).matcher(), Err(PatternError::Regex(_))), "{bad}");
    }
}

/// Requirement S6.
#[test]
fn common_regular_expressions_match_as_expected() {
    assert!(matches("^registry\\.example\\.com/.+:v\\d+$", "registry.example.com/a/b:v17"));
    assert!(!matches("^registry\\.example\\.com/", "registryXexample.com/"));
    assert!(matches("node-[0-9]{2,3}", "my node-17 is down"));
    assert!(matches("(red|green)+ ?hat", "greenred hat"));
    assert!(matches("größe", "die größe"));
    assert!(matches("a.c", "a\nc"), "a dot is any character, on PostgreSQL too");
    assert!(matches(&exactly("a+b (c)"), "a+b (c)") && !matches(&exactly("a+b (c)"), "aab (c)"));
}

/// Requirement S7.
#[test]
fn confidence_grows_with_samples_and_decays_over_time() {
    assert!((confidence(3, 0.0) - 0.5).abs() < 1e-9);
    assert!((confidence(9, 0.0) - 0.75).abs() < 1e-9);
    assert!((confidence(9, 14.0) - 0.375).abs() < 1e-9);
    assert!(confidence(3, 14.0) < 0.3);
    assert_eq!(confidence(0, 0.0), 0.0);
}

proptest! {
    /// Any text is refused or compiles within its limits, and matches the same after it was rewritten.
    /// Requirement S6.
    #[test]
    fn any_text_is_rejected_or_matches_like_the_regex_crate(text in "[a-c().|*+?{}\\[\\]^$\\\\0-9,dws-]{0,40}", subject_text in "[a-c0-9. -]{0,40}") {
        let direct = RegexBuilder::new(&text).dot_matches_new_line(true).size_limit(SIGNATURE_PROGRAM_BYTES).build();
        if let (Ok(portable), Ok(direct), Ok(matcher)) = (portable(&text), direct, subject(&text).matcher()) {
            let case = FailureCase { subject: Some(&subject_text), ..FailureCase::default() };
            prop_assert_eq!(matcher.matches(case), direct.is_match(&subject_text), "{} as {}", text, portable);
        }
    }
}

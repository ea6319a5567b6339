use proptest::prelude::*;

use super::*;

fn subject(regex: &str) -> Pattern {
    Pattern { subject_pattern: Some(regex.into()), ..Pattern::default() }
}

fn matches(regex: &str, text: &str) -> bool {
    let matcher = subject(regex).matcher().unwrap_or_else(|error| panic!("{regex}: {error}"));
    matcher.matches(Case { subject: Some(text), ..Case::default() })
}

#[test]
fn s6_an_empty_pattern_is_refused() {
    assert_eq!(Pattern::default().matcher().err(), Some(PatternError::Empty));
}

#[test]
fn s6_what_is_missing_matches_anything_and_nothing_never_matches() {
    let pattern = Pattern { phase: Some("fetch".into()), kind: Some("scan".into()), ..subject("^nginx") };
    let matcher = pattern.matcher().expect("it is good");
    let case = Case { phase: Some("fetch"), kind: Some("scan"), subject: Some("nginx:1"), error_code: Some("any") };
    assert!(matcher.matches(case));
    for other in [
        Case { phase: None, ..case },
        Case { kind: Some("other"), ..case },
        Case { subject: None, ..case },
        Case { subject: Some("my-nginx"), ..case },
    ] {
        assert!(!matcher.matches(other), "{other:?}");
    }
}

#[test]
fn s6_angle_brackets_are_themselves_and_no_edges_of_words() {
    assert!(matches("a>b", "a>b") && matches("^<[<>]+$", "<<>"));
    assert!(matches(&exactly("<a> & b"), "<a> & b"));
    assert_eq!(portable("a>b.c").as_deref(), Ok("a>b.c"));
    assert!(portable("\\<a").is_err());
}

#[test]
fn s6_the_order_of_the_parts_does_not_make_another_pattern() {
    let one = Pattern { kind: Some("a".into()), phase: Some("b".into()), ..Pattern::default() };
    let other = Pattern { kind: Some("b".into()), phase: Some("a".into()), ..Pattern::default() };
    assert_ne!(one.canonical(), other.canonical());
    assert_eq!(one.canonical(), one.clone().canonical());
}

#[test]
fn s6_a_regex_is_refused_when_it_is_bad_too_large_or_read_differently_elsewhere() {
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

#[test]
fn s6_common_expressions_match_as_they_read() {
    assert!(matches("^registry\\.example\\.com/.+:v\\d+$", "registry.example.com/a/b:v17"));
    assert!(!matches("^registry\\.example\\.com/", "registryXexample.com/"));
    assert!(matches("node-[0-9]{2,3}", "my node-17 is down"));
    assert!(matches("(red|green)+ ?hat", "greenred hat"));
    assert!(matches("größe", "die größe"));
    assert!(matches("a.c", "a\nc"), "a dot is any character, on PostgreSQL too");
    assert!(matches(&exactly("a+b (c)"), "a+b (c)") && !matches(&exactly("a+b (c)"), "aab (c)"));
}

#[test]
fn s7_confidence_grows_with_samples_and_fades_with_silence() {
    assert!((confidence(3, 0.0) - 0.5).abs() < 1e-9);
    assert!((confidence(9, 0.0) - 0.75).abs() < 1e-9);
    assert!((confidence(9, 14.0) - 0.375).abs() < 1e-9);
    assert!(confidence(3, 14.0) < 0.3);
    assert_eq!(confidence(0, 0.0), 0.0);
}

proptest! {
    /// Whatever is written is refused or compiles within its caps, and is read the same after it was rewritten.
    #[test]
    fn s6_any_text_is_refused_or_compiles(text in "[a-c().|*+?{}\\[\\]^$\\\\0-9,dws-]{0,40}", subject_text in "[a-c0-9. -]{0,40}") {
        let direct = RegexBuilder::new(&text).dot_matches_new_line(true).size_limit(SIGNATURE_PROGRAM_BYTES).build();
        if let (Ok(portable), Ok(direct), Ok(matcher)) = (portable(&text), direct, subject(&text).matcher()) {
            let case = Case { subject: Some(&subject_text), ..Case::default() };
            prop_assert_eq!(matcher.matches(case), direct.is_match(&subject_text), "{} as {}", text, portable);
        }
    }
}

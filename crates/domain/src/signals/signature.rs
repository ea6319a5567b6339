//! Failure signatures: patterns that recognize known failures, and the confidence in them.
//!
//! The regular expression of a pattern is matched by two engines: Rust's in this module, PostgreSQL's in
//! `match_failure_signature`. It is restricted to the syntax that both interpret alike, checked when the signature is
//! written, and rewritten so that classes and escapes are explicit. Both engines take linear time and the text is
//! bounded, so no pattern can make matching slow.

use std::fmt::Write;

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, Ast};

use crate::limits::{SIGNATURE_PATTERN_BYTES, SIGNATURE_PROGRAM_BYTES, SIGNATURE_REPEATS};

/// The properties of a matching failure. Missing parts match anything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignaturePattern {
    pub phase: Option<String>,
    pub error_code: Option<String>,
    pub kind: Option<String>,
    /// A regular expression for the subject. Without a subject, for the payload's `image`.
    pub subject_pattern: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("must have at least one of phase, error_code, kind, subject_pattern")]
    Empty,
    #[error("{0}")]
    Regex(String),
}

/// The known properties of a failure, or of a job that may fail.
#[derive(Clone, Copy, Debug, Default)]
pub struct FailureCase<'a> {
    pub phase: Option<&'a str>,
    pub error_code: Option<&'a str>,
    pub kind: Option<&'a str>,
    pub subject: Option<&'a str>,
}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Matcher {
    pattern: SignaturePattern,
    subject: Option<Regex>,
}

impl SignaturePattern {
    pub fn is_empty(&self) -> bool {
        let Self { phase, error_code, kind, subject_pattern } = self;
        [phase, error_code, kind, subject_pattern].iter().all(|part| part.is_none())
    }

    /// The input of the pattern's hash: equal patterns have equal text.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        for (name, part) in [
            ("error_code", &self.error_code),
            ("kind", &self.kind),
            ("phase", &self.phase),
            ("subject_pattern", &self.subject_pattern),
        ] {
            if let Some(part) = part {
                let _ = writeln!(text, "{name}:{}:{part}", part.len());
            }
        }
        text
    }

    /// Compiles the pattern. Refuses an empty pattern, and a regular expression that is invalid, too large, or
    /// interpreted differently by the two engines.
    pub fn matcher(self) -> Result<Matcher, PatternError> {
        if self.is_empty() {
            return Err(PatternError::Empty);
        }
        let subject = self.subject_pattern.as_deref().map(compile).transpose()?;
        Ok(Matcher { pattern: self, subject })
    }
}

impl Matcher {
    pub fn pattern(&self) -> &SignaturePattern {
        &self.pattern
    }

    /// True if the pattern matches the failure. A part of the pattern does not match a missing value.
    pub fn matches(&self, case: FailureCase<'_>) -> bool {
        let same = |wanted: &Option<String>, got: Option<&str>| wanted.is_none() || wanted.as_deref() == got;
        same(&self.pattern.phase, case.phase)
            && same(&self.pattern.error_code, case.error_code)
            && self.may_match_job(case.kind, case.subject)
    }

    /// True if a job of this kind and subject may fail this way: the check before the job has started.
    pub fn may_match_job(&self, kind: Option<&str>, subject: Option<&str>) -> bool {
        (self.pattern.kind.is_none() || self.pattern.kind.as_deref() == kind)
            && match (&self.subject, subject) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(regex), Some(subject)) => regex.is_match(bounded(subject)),
            }
    }
}

/// The part of a subject that is matched.
pub fn bounded(subject: &str) -> &str {
    let mut end = subject.len().min(crate::limits::SIGNATURE_SUBJECT_BYTES);
    while !subject.is_char_boundary(end) {
        end -= 1;
    }
    &subject[..end]
}

fn compile(text: &str) -> Result<Regex, PatternError> {
    let portable = portable(text)?;
    RegexBuilder::new(&portable)
        .size_limit(SIGNATURE_PROGRAM_BYTES)
        .dot_matches_new_line(true)
        .build()
        .map_err(|_| PatternError::Regex("is too large once its repetitions are spelled out; make it shorter".into()))
}

/// Rewrites a regular expression in the syntax that Rust and PostgreSQL interpret alike.
pub fn portable(text: &str) -> Result<String, PatternError> {
    let refuse = |reason: &str| PatternError::Regex(reason.to_owned());
    if text.is_empty() {
        return Err(refuse("must not be empty"));
    }
    if text.len() > SIGNATURE_PATTERN_BYTES {
        return Err(PatternError::Regex(format!(
            "may have at most {SIGNATURE_PATTERN_BYTES} bytes; it has {}",
            text.len()
        )));
    }
    if text.chars().any(char::is_control) {
        return Err(refuse("must not contain control characters"));
    }
    let parsed = ast::parse::ParserBuilder::new().nest_limit(32).build().parse(text);
    let ast =
        parsed.map_err(|error| PatternError::Regex(format!("is not a valid regular expression: {}", error.kind())))?;
    let mut out = String::new();
    write_ast(&ast, &mut out)?;
    Ok(out)
}

fn write_ast(ast: &Ast, out: &mut String) -> Result<(), PatternError> {
    let refuse = |reason: &str| Err(PatternError::Regex(reason.to_owned()));
    match ast {
        Ast::Empty(_) => out.push_str("(?:)"),
        Ast::Flags(_) => return refuse("must not set flags"),
        Ast::Literal(literal) => write_literal(literal.c, out)?,
        Ast::Dot(_) => out.push('.'),
        Ast::Assertion(assertion) => match assertion.kind {
            ast::AssertionKind::StartLine => out.push('^'),
            ast::AssertionKind::EndLine => out.push('$'),
            _ => return refuse("may use no assertions other than ^ and $"),
        },
        Ast::ClassUnicode(_) => return refuse("must not use \\p classes"),
        Ast::ClassPerl(class) => {
            let (negated, inside) = perl(class);
            let _ = write!(out, "[{}{inside}]", if negated { "^" } else { "" });
        }
        Ast::ClassBracketed(class) => write_class(class, out)?,
        Ast::Repetition(repetition) => write_repetition(repetition, out)?,
        Ast::Group(group) => {
            match &group.kind {
                ast::GroupKind::CaptureIndex(_) => {}
                ast::GroupKind::NonCapturing(flags) if flags.items.is_empty() => {}
                ast::GroupKind::CaptureName { .. } => return refuse("must not use named groups"),
                ast::GroupKind::NonCapturing(_) => return refuse("must not set flags"),
            }
            out.push_str("(?:");
            write_ast(&group.ast, out)?;
            out.push(')');
        }
        Ast::Alternation(alternation) => {
            for (number, branch) in alternation.asts.iter().enumerate() {
                if number > 0 {
                    out.push('|');
                }
                write_ast(branch, out)?;
            }
        }
        Ast::Concat(concat) => {
            for part in &concat.asts {
                write_ast(part, out)?;
            }
        }
    }
    Ok(())
}

/// Writes `<` and `>` without a backslash: with one, Rust interprets them as word boundaries and PostgreSQL as the
/// literal characters.
fn write_literal(c: char, out: &mut String) -> Result<(), PatternError> {
    if c == '\0' {
        // PostgreSQL text cannot contain this character.
        return Err(PatternError::Regex("must not match the character U+0000, which text cannot contain".into()));
    }
    if c.is_ascii_punctuation() && !matches!(c, '<' | '>') {
        out.push('\\');
    }
    out.push(c);
    Ok(())
}

/// `\d`, `\s`, `\w` as ASCII classes, independent of the database's locale.
fn perl(class: &ast::ClassPerl) -> (bool, &'static str) {
    let inside = match class.kind {
        ast::ClassPerlKind::Digit => "0-9",
        ast::ClassPerlKind::Space => " \\t\\n\\r\\f\\v",
        ast::ClassPerlKind::Word => "A-Za-z0-9_",
    };
    (class.negated, inside)
}

fn write_class(class: &ast::ClassBracketed, out: &mut String) -> Result<(), PatternError> {
    let ast::ClassSet::Item(item) = &class.kind else {
        return Err(PatternError::Regex("must not use class set operations".into()));
    };
    out.push_str(if class.negated { "[^" } else { "[" });
    write_item(item, out)?;
    out.push(']');
    Ok(())
}

fn write_item(item: &ast::ClassSetItem, out: &mut String) -> Result<(), PatternError> {
    let refuse = |reason: &str| Err(PatternError::Regex(reason.to_owned()));
    match item {
        ast::ClassSetItem::Literal(literal) => write_literal(literal.c, out)?,
        ast::ClassSetItem::Range(range) => {
            if !range.start.c.is_ascii() || !range.end.c.is_ascii() {
                return refuse("must use only ASCII characters in ranges");
            }
            write_literal(range.start.c, out)?;
            out.push('-');
            write_literal(range.end.c, out)?;
        }
        ast::ClassSetItem::Perl(class) => match perl(class) {
            (false, inside) => out.push_str(inside),
            (true, _) => return refuse("must not use \\D, \\S or \\W inside brackets"),
        },
        ast::ClassSetItem::Union(union) => {
            for item in &union.items {
                write_item(item, out)?;
            }
        }
        ast::ClassSetItem::Empty(_) => return refuse("must not have empty brackets"),
        ast::ClassSetItem::Ascii(_) | ast::ClassSetItem::Unicode(_) | ast::ClassSetItem::Bracketed(_) => {
            return refuse("may contain only characters, ranges and \\d, \\s, \\w inside brackets");
        }
    }
    Ok(())
}

fn write_repetition(repetition: &ast::Repetition, out: &mut String) -> Result<(), PatternError> {
    let refuse = |reason: String| Err(PatternError::Regex(reason));
    if matches!(*repetition.ast, Ast::Assertion(_) | Ast::Empty(_)) {
        return refuse("must not repeat an empty match".into());
    }
    out.push_str("(?:");
    write_ast(&repetition.ast, out)?;
    out.push(')');
    let within = |count: u32| count <= SIGNATURE_REPEATS;
    match &repetition.op.kind {
        ast::RepetitionKind::ZeroOrOne => out.push('?'),
        ast::RepetitionKind::ZeroOrMore => out.push('*'),
        ast::RepetitionKind::OneOrMore => out.push('+'),
        ast::RepetitionKind::Range(ast::RepetitionRange::Exactly(n)) if within(*n) => {
            let _ = write!(out, "{{{n}}}");
        }
        ast::RepetitionKind::Range(ast::RepetitionRange::AtLeast(n)) if within(*n) => {
            let _ = write!(out, "{{{n},}}");
        }
        ast::RepetitionKind::Range(ast::RepetitionRange::Bounded(n, m)) if within(*n) && within(*m) => {
            let _ = write!(out, "{{{n},{m}}}");
        }
        ast::RepetitionKind::Range(_) => return refuse(format!("may repeat at most {SIGNATURE_REPEATS} times")),
    }
    Ok(())
}

/// A regular expression that matches exactly this text.
pub fn exactly(text: &str) -> String {
    format!("^{}$", regex::escape(text))
}

/// The confidence in a learned signature: samples against a prior of three, halved for every 14 days without a match.
///
/// `samples / (samples + 3) × 2^(−days since the last match / 14)`: 0.5 when it is proposed after three samples, 0.75
/// after nine, below 0.3 about two weeks after the last match.
pub fn confidence(samples: u64, days_since_last: f64) -> f64 {
    let samples = samples as f64;
    let recency = 0.5_f64.powf(days_since_last.max(0.0) / 14.0);
    (samples / (samples + 3.0) * recency).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests;

//! Limits that the server enforces for outcomes. They are also checked here, so that the handler gets a specific error
//! immediately; a rejection by the server would turn a successful job into a failed one.

use wire::RawValue;

use super::handler::HandlerError;

pub(crate) const RESULT_BYTES: usize = 1 << 20;
const FACT_BYTES: usize = 16 << 10;
const FACTS: usize = 256;
const NAME_BYTES: usize = 128;

pub(crate) fn check_result(result: &RawValue) -> Result<(), HandlerError> {
    let got = result.get().len();
    if got <= RESULT_BYTES {
        return Ok(());
    }
    let message = format!("The result has {got} bytes; the limit is {RESULT_BYTES}. Store it as an artifact.");
    Err(HandlerError::permanent("result_too_large", message))
}

/// Checks a fact, given the number of `others` that are already set.
pub(super) fn check_fact(
    subject: Option<&str>,
    name: &str,
    value: &RawValue,
    others: usize,
) -> Result<(), HandlerError> {
    let refuse =
        |reason: String| Err(HandlerError::permanent("invalid_fact", format!("Invalid fact {name:?}: {reason}.")));
    if subject.is_none() {
        return refuse("the job has no subject".into());
    }
    if !is_name(name) {
        return refuse(format!("a name has 1 to {NAME_BYTES} letters, digits and any of . _ - : / @ + #"));
    }
    let got = value.get().len();
    if got > FACT_BYTES {
        return refuse(format!("the value has {got} bytes; the limit is {FACT_BYTES}"));
    }
    if others >= FACTS {
        return refuse(format!("a job can set at most {FACTS} facts"));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@+#".contains(c);
    (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(is_plain) && !matches!(name, "." | "..")
}

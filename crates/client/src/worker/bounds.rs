//! What a server takes with an outcome. It is checked here too, so that a handler hears of it at once and by name: refused by
//! the server, it would cost a job that succeeded its success.

use wire::RawValue;

use super::handler::HandlerError;

const RESULT_BYTES: usize = 1 << 20;
const FACT_BYTES: usize = 16 << 10;
const FACTS: usize = 256;
const NAME_BYTES: usize = 128;

pub(super) fn check_result(result: &RawValue) -> Result<(), HandlerError> {
    let got = result.get().len();
    if got <= RESULT_BYTES {
        return Ok(());
    }
    let message = format!("The result may have at most {RESULT_BYTES} bytes; it has {got}. Keep it as an artifact.");
    Err(HandlerError::permanent("result_too_large", message))
}

/// A fact beside `others` that are set already.
pub(super) fn check_fact(
    subject: Option<&str>,
    name: &str,
    value: &RawValue,
    others: usize,
) -> Result<(), HandlerError> {
    let refuse = |reason: String| Err(HandlerError::permanent("invalid_fact", format!("The fact {name:?} {reason}.")));
    if subject.is_none() {
        return refuse("has nowhere to go: the job has no subject".into());
    }
    if !is_name(name) {
        return refuse(format!("must be named by 1 to {NAME_BYTES} letters, digits and any of . _ - : / @ + #"));
    }
    let got = value.get().len();
    if got > FACT_BYTES {
        return refuse(format!("may have at most {FACT_BYTES} bytes; it has {got}"));
    }
    if others >= FACTS {
        return refuse(format!("is one too many: a job sets at most {FACTS}"));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:/@+#".contains(c);
    (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(is_plain) && !matches!(name, "." | "..")
}

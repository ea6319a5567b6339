//! The digest of an operation, by which the journal notices that a handler has changed.

use serde::Serialize;
use sha2::{Digest, Sha256};
use wire::JournalOp;

/// Bytes of the digest that are recorded.
const BYTES: usize = 16;

/// The name of an operation in the journal.
pub(crate) fn operation_name(op: JournalOp) -> &'static str {
    match op {
        JournalOp::Step => "step",
        JournalOp::Sleep => "sleep",
        JournalOp::Event => "event",
        JournalOp::Approval => "approval",
        JournalOp::Child => "child",
        JournalOp::Publish => "publish",
    }
}

/// The digest of an operation, its name and its input.
pub(super) fn digest(op: JournalOp, name: &str, input: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut hasher = Sha256::new();
    for part in [operation_name(op).as_bytes(), name.as_bytes(), &serde_json::to_vec(input)?] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    Ok(hasher.finalize().iter().take(BYTES).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_name_and_input_change_the_digest() {
        let of = |op, name: &str, input: i64| digest(op, name, &input).unwrap();
        let first = of(JournalOp::Step, "charge", 1);
        assert_eq!(first.len(), 2 * BYTES);
        assert_eq!(first, of(JournalOp::Step, "charge", 1));
        for other in
            [of(JournalOp::Sleep, "charge", 1), of(JournalOp::Step, "refund", 1), of(JournalOp::Step, "charge", 2)]
        {
            assert_ne!(first, other);
        }
    }
}

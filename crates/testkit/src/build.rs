//! Short builders, so that a test states only what matters to it.

use domain::{Label, Name};
use store::queue::enqueue::NewJob;

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

pub fn label(text: &str) -> Label {
    Label::new(text).expect("a valid label")
}

/// A plain job of kind `k` that can run at once.
pub fn job(queue: &str) -> NewJob {
    NewJob {
        queue: name(queue),
        kind: name("k"),
        payload: "{}".into(),
        affinity: None,
        priority: 0,
        run_at: None,
        max_attempts: 3,
        principal: "test".into(),
        extras: None,
    }
}

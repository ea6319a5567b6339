//! Rows that this program cannot read, of a newer one perhaps: passed over here, so that they stop nobody else's work.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::error::StoreError;

/// What was told of: the same row is met with every request.
static TOLD: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
const TOLD_MOST: usize = 1_000;

/// What was read, or nothing and, once, a word about it.
pub(crate) fn pass_over<T>(read: Result<T, StoreError>, what: impl FnOnce() -> String) -> Option<T> {
    let error = match read {
        Ok(read) => return Some(read),
        Err(error) => error,
    };
    let what = what();
    let mut told = TOLD.lock().expect("nobody panics with it in hand");
    if told.len() >= TOLD_MOST {
        told.clear();
    }
    if told.insert(what.clone()) {
        tracing::warn!(what, %error, "a row cannot be read and is passed over here");
    }
    None
}

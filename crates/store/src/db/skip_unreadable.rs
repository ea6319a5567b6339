//! Skips rows that this version cannot decode (for example, written by a newer node), so that one bad row does not
//! block a sweep.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::error::StoreError;

/// Rows that were logged. A sweep meets the same row every time, so each is logged once.
static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// Capacity of [`LOGGED`], which is cleared when it is full.
const MAX_LOGGED: usize = 1_000;

/// Returns the decoded row, or `None` after logging the error once per row. `what` names the row.
pub(crate) fn skip_unreadable<T>(read: Result<T, StoreError>, what: impl FnOnce() -> String) -> Option<T> {
    let error = match read {
        Ok(read) => return Some(read),
        Err(error) => error,
    };
    let what = what();
    let mut logged = LOGGED.lock().expect("lock poisoned");
    if logged.len() >= MAX_LOGGED {
        logged.clear();
    }
    if logged.insert(what.clone()) {
        tracing::warn!(what, %error, "a row cannot be decoded and is skipped");
    }
    None
}

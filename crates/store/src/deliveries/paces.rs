//! How fast each receiver is sent to from this node: faster while it keeps up, slower when it is in trouble. A node that
//! starts begins anew.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use domain::circuit::Pace;

/// By endpoint, once one was sent as many as it may be sent.
#[derive(Default)]
pub(crate) struct Paces {
    known: Mutex<HashMap<i64, Known>>,
}

#[derive(Clone, Copy, Default)]
struct Known {
    pace: Pace,
    /// As many are under way as may be: without that, a success says nothing of what else the receiver could take.
    used_up: bool,
}

impl Paces {
    fn known(&self) -> MutexGuard<'_, HashMap<i64, Known>> {
        self.known.lock().expect("nobody panics with the map in hand")
    }

    pub(super) fn of(&self, endpoint: i64) -> Pace {
        self.known().get(&endpoint).copied().unwrap_or_default().pace
    }

    pub(super) fn used_up(&self, endpoint: i64) {
        self.known().entry(endpoint).or_default().used_up = true;
    }

    /// It took one more. Until a round has used that up too, there is nothing to learn.
    pub(super) fn kept_up(&self, endpoint: i64) {
        if let Some(known) = self.known().get_mut(&endpoint).filter(|known| known.used_up) {
            *known = Known { pace: known.pace.faster(), used_up: false };
        }
    }

    pub(super) fn in_trouble(&self, endpoint: i64) {
        let mut known = self.known();
        let Some(pace) = known.get(&endpoint).map(|known| known.pace.slower()) else { return };
        if pace == Pace::default() {
            known.remove(&endpoint);
        } else {
            known.insert(endpoint, Known { pace, used_up: false });
        }
    }
}

//! Which queues workers look into, as this node last saw it: on PostgreSQL a claim then asks for their heads as its transaction
//! opens, before it has read the worker. It is a guess, and the worker's row is what counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use domain::{Name, WorkerId};

/// Workers that are remembered; beyond that all are learned anew.
const REMEMBERED: usize = 4_096;

#[derive(Clone, Default)]
pub(crate) struct Habits {
    queues: Arc<Mutex<HashMap<WorkerId, Arc<[Name]>>>>,
}

impl Habits {
    pub(crate) fn of(&self, worker: WorkerId) -> Option<Arc<[Name]>> {
        self.queues.lock().expect("nobody panics with it in hand").get(&worker).cloned()
    }

    pub(crate) fn remember(&self, worker: WorkerId, queues: &[Name]) {
        let mut known = self.queues.lock().expect("nobody panics with it in hand");
        if known.get(&worker).is_some_and(|known| **known == *queues) {
            return;
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(worker, queues.into());
    }
}

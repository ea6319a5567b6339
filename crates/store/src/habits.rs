//! What workers look into and what they were last given, as this node last saw it: on PostgreSQL a claim then asks for heads as
//! its transaction opens, before it has read the worker, or is one statement altogether (`jobs/claim/at_once.rs`). It is a
//! guess; what the rows say is what counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use domain::{Name, WorkerId};

use crate::jobs::claim::Usual;
use crate::lines::Takes;

/// Workers that are remembered; beyond that all are learned anew.
const REMEMBERED: usize = 4_096;

#[derive(Clone, Default)]
pub(crate) struct Habits {
    known: Arc<Mutex<HashMap<WorkerId, Habit>>>,
}

#[derive(Clone)]
pub(crate) struct Habit {
    pub(crate) queues: Arc<[Name]>,
    /// Where its jobs came from last time, if that was one lane which needs no looking after.
    pub(crate) usual: Option<Arc<Usual>>,
}

/// What a claim says about the next one of the same worker.
pub(crate) enum Lesson {
    /// No job waited.
    Nothing,
    Usual(Usual),
    /// There is more to look at than a single statement does.
    Unusual,
}

impl Habits {
    pub(crate) fn of(&self, worker: WorkerId) -> Option<Habit> {
        self.known.lock().expect("nobody panics with it in hand").get(&worker).cloned()
    }

    pub(crate) fn remember(&self, worker: WorkerId, takes: &Takes, lesson: Lesson) {
        let mut known = self.known.lock().expect("nobody panics with it in hand");
        if known.len() >= REMEMBERED && !known.contains_key(&worker) {
            known.clear();
        }
        let queues = || takes.queues.clone().into();
        let habit = known.entry(worker).or_insert_with(|| Habit { queues: queues(), usual: None });
        if *habit.queues != *takes.queues {
            *habit = Habit { queues: queues(), usual: None };
        }
        match lesson {
            Lesson::Nothing => {}
            Lesson::Usual(usual) => habit.usual = Some(Arc::new(usual)),
            Lesson::Unusual => habit.usual = None,
        }
    }
}

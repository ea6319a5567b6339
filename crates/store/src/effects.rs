//! What others should hear of once a transaction holds.

use std::collections::BTreeSet;

use domain::{JobId, Name, TenantId, WorkerId};

use crate::hints::Topic;
use crate::store::Store;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    pub(crate) ended: Vec<JobId>,
    pub(crate) ready: BTreeSet<(TenantId, Name)>,
    pub(crate) workers: BTreeSet<WorkerId>,
    /// A job was scheduled, perhaps earlier than any other.
    pub(crate) due: bool,
    /// Something is to be sent.
    pub(crate) deliveries: bool,
    /// The scan may have work, or a moment to look again, that it does not know of.
    pub(crate) scan: bool,
    /// Something is to be started.
    pub(crate) outbox: bool,
    /// Something is to be done to a runtime.
    pub(crate) runtimes: bool,
}

impl Store {
    pub(crate) fn announce(&self, effects: &Effects) {
        let hints = self.hints();
        for job in &effects.ended {
            hints.wake(&Topic::Ended(*job));
            hints.tell_changed(*job);
        }
        self.ended_feed().note(&effects.ended);
        for (tenant, queue) in &effects.ready {
            self.floors().drop_of(*tenant, queue);
            hints.tell(Topic::Ready(*tenant, queue.clone()));
        }
        effects.workers.iter().for_each(|worker| hints.tell(Topic::Worker(*worker)));
        if effects.due {
            hints.wake(&Topic::Due);
        }
        if effects.deliveries {
            hints.wake(&Topic::Deliveries);
        }
        if effects.scan {
            hints.wake(&Topic::Scan);
        }
        if effects.runtimes {
            hints.wake(&Topic::Runtimes);
        }
        if effects.outbox {
            hints.wake(&Topic::Outbox);
        }
    }
}

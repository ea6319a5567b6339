//! The notifications that a transaction causes. The caller sends them with [`Store::announce`] after the commit.

use std::collections::BTreeSet;

use domain::{JobId, Name, TenantId, WorkerId};

use crate::db::notifier::{JobChange, Topic};
use crate::store::Store;
use crate::workflows::runs::end::RunJobEnd;

/// Notifications to send after a commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// Jobs that ended.
    pub(crate) ended: Vec<JobId>,
    /// Ended jobs of runs, until the transaction records them.
    pub(crate) run_ends: Vec<RunJobEnd>,
    /// The remaining jobs of a run must be canceled.
    pub(crate) stopping_runs: bool,
    /// Changes of jobs, for signal streams.
    pub(crate) changes: Vec<JobChange>,
    /// Queues that may have a runnable job.
    pub(crate) ready: BTreeSet<(TenantId, Name)>,
    /// Workers with a cancel or a drain.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// A job was scheduled, perhaps earlier than all others.
    pub(crate) due: bool,
    /// A delivery may be due.
    pub(crate) deliveries: bool,
    /// The process scan may have new work, or an earlier check time.
    pub(crate) scan: bool,
    /// The outbox may have a new row.
    pub(crate) outbox: bool,
    /// An operation on a runtime was requested.
    pub(crate) runtimes: bool,
}

impl Store {
    /// Sends the notifications. Must be called after the commit.
    pub(crate) fn announce(&self, effects: &Effects) {
        let notifier = self.notifier();
        for job in &effects.ended {
            notifier.notify_local(&Topic::Ended(*job));
        }
        notifier.notify_jobs_changed(&effects.changes);
        self.duration_sampler().observe_ended(&effects.ended);
        for (tenant, queue) in &effects.ready {
            self.fast_path().watermarks().remove(*tenant, queue);
            notifier.notify(Topic::Ready(*tenant, queue.clone()));
        }
        effects.workers.iter().for_each(|worker| notifier.notify(Topic::Worker(*worker)));
        if effects.stopping_runs {
            notifier.notify_local(&Topic::StoppingRuns);
        }
        if effects.due {
            notifier.notify_local(&Topic::Due);
        }
        if effects.deliveries {
            notifier.notify_local(&Topic::Deliveries);
        }
        if effects.scan {
            notifier.notify_local(&Topic::Scan);
        }
        if effects.runtimes {
            notifier.notify_local(&Topic::Runtimes);
        }
        if effects.outbox {
            notifier.notify_local(&Topic::Outbox);
        }
    }
}

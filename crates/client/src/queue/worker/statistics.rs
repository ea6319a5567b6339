//! Counters of a worker.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::OutcomeKind;

/// Counters of a worker. Outcomes count once the server has applied them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Claimed jobs.
    pub claimed: u64,
    /// Succeeded jobs.
    pub done: u64,
    /// Attempts that failed; their jobs may be retried.
    pub failed: u64,
    /// Canceled jobs.
    pub canceled: u64,
    /// Attempts that put their job off.
    pub snoozed: u64,
    /// Jobs that were given back.
    pub released: u64,
    /// Attempts that gave their job back until something happens.
    pub suspended: u64,
    /// Attempts that lost their claim, or with a job that had ended, before the outcome arrived.
    pub lost: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    claimed: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
    canceled: AtomicU64,
    snoozed: AtomicU64,
    released: AtomicU64,
    suspended: AtomicU64,
    lost: AtomicU64,
}

impl Counters {
    pub(super) fn claimed(&self, jobs: usize) {
        self.claimed.fetch_add(jobs as u64, Ordering::Relaxed);
    }

    pub(super) fn applied(&self, outcome: OutcomeKind) {
        let counter = match outcome {
            OutcomeKind::Finish | OutcomeKind::ContinueAs => &self.done,
            OutcomeKind::Fail => &self.failed,
            OutcomeKind::Cancel => &self.canceled,
            OutcomeKind::Snooze => &self.snoozed,
            OutcomeKind::Release => &self.released,
            OutcomeKind::Suspend => &self.suspended,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn lost(&self, outcomes: usize) {
        self.lost.fetch_add(outcomes as u64, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> Statistics {
        Statistics {
            claimed: self.claimed.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            canceled: self.canceled.load(Ordering::Relaxed),
            snoozed: self.snoozed.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
            suspended: self.suspended.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }
}

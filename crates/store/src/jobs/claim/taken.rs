//! What the rows of jobs say that a claim takes.

use std::collections::{BTreeMap, HashMap};

use domain::{Epoch, JobState, Name};

use super::{ClaimedJob, Taking};
use crate::deliveries::notices::Notice;
use crate::error::StoreError;
use crate::in_hand::Taken;
use crate::lanes::Lane;
use crate::tx::Row;

/// A job that is to be taken, or was.
pub(super) struct Found {
    pub(super) job: ClaimedJob,
    pub(super) lane: i64,
    /// Somebody hears of its changes.
    pub(super) has_webhook: bool,
    /// Where SQLite has it, if an end need look at nothing else that it brings along.
    pub(super) row: Option<i64>,
}

impl Found {
    /// Reads the columns of `TAKE` and `TAKE_CHOSEN`.
    pub(super) fn read(mut row: Row, lane: &Lane) -> Result<Self, StoreError> {
        let job = ClaimedJob {
            id: row.job(0)?,
            epoch: Epoch(row.int(1)?),
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            payload: row.take_text(3)?,
            affinity: lane.affinity.clone(),
            priority: lane.priority,
            subject: row.opt_text(4)?,
            process: row.opt_text(5)?,
            run: row.opt_text(6)?,
            attempt: row.int(7)? as i32,
            max_attempts: row.int(8)? as i32,
            timeout_s: row.opt_int(9)?,
            created_at: row.time(10)?,
            tenant: None,
            run_at: row.time(11)?,
        };
        Ok(Self { job, lane: row.int(2)?, has_webhook: !row.is_null(12)?, row: None })
    }

    /// The same from SQLite's text of `TAKE`, which tells more.
    pub(super) fn in_place(row: Row, lane: &Lane) -> Result<Self, StoreError> {
        let place = if row.bool(13)? { Some(row.row_id()?) } else { None };
        Ok(Self { row: place, ..Self::read(row, lane)? })
    }
}

impl Taking {
    /// Jobs that are this worker's now.
    pub(super) fn took(&mut self, mut taken: Vec<Found>) {
        taken.sort_by_key(|found| (found.job.run_at, found.job.id));
        let mut by_queue: BTreeMap<&Name, i64> = BTreeMap::new();
        taken.iter().for_each(|found| *by_queue.entry(&found.job.queue).or_default() += 1);
        for (queue, jobs) in by_queue {
            self.changes.moved(self.tenant, queue, (JobState::Queued, JobState::Working), jobs);
        }
        for Found { job, lane, has_webhook, row } in taken {
            let attempt = job.attempt;
            if has_webhook {
                let (from, to) = (JobState::Queued, JobState::Working);
                self.notices.push(Notice { tenant: self.tenant, job: job.id, from, to, attempt });
            } else if let Some(row) = row {
                let (claim, worker, epoch) = (self.claim, self.worker, job.epoch);
                self.in_hand.push((job.id, Taken { row, claim, tenant: self.tenant, worker, epoch, lane, attempt }));
            }
            self.jobs.push(job);
        }
    }

    pub(super) fn took_rows(&mut self, rows: Vec<Row>, lanes: &HashMap<i64, &Lane>) -> Result<(), StoreError> {
        let lane = |row: &Row| {
            lanes.get(&row.int(2)?).copied().ok_or_else(|| StoreError::unexpected("a job from another lane"))
        };
        let taken = rows.into_iter().map(|row| lane(&row).and_then(|lane| Found::read(row, lane)));
        self.took(taken.collect::<Result<_, _>>()?);
        Ok(())
    }
}

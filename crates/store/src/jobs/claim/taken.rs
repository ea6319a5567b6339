//! What the rows of jobs say that a claim takes.

use std::collections::{HashMap, HashSet};

use domain::{Epoch, JobState};

use super::heads::Head;
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

/// Reads what SQLite's and PostgreSQL's texts of `TAKE`, and `TAKE_CHOSEN`, begin with.
fn claimed(row: &mut Row, lane: &Lane) -> Result<ClaimedJob, StoreError> {
    Ok(ClaimedJob {
        id: row.job(0)?,
        epoch: Epoch(row.int(1)?),
        queue: lane.queue.clone(),
        kind: lane.kind.clone(),
        payload: row.take_text(2)?,
        affinity: lane.affinity.clone(),
        priority: lane.priority,
        subject: None,
        process: row.opt_text(3)?,
        run: row.opt_text(4)?,
        attempt: row.int(5)? as i32,
        max_attempts: row.int(6)? as i32,
        timeout_s: row.opt_int(7)?,
        created_at: row.time(8)?,
        tenant: None,
        run_at: row.time(9)?,
    })
}

/// Where `TAKE_CHOSEN`, and `TAKE` on PostgreSQL, tell the lane.
const LANE: usize = 10;

impl Found {
    /// Of `TAKE_CHOSEN`, and of `TAKE` on PostgreSQL.
    pub(super) fn read(mut row: Row, lane: &Lane) -> Result<Self, StoreError> {
        let job = ClaimedJob { subject: row.opt_text(11)?, ..claimed(&mut row, lane)? };
        Ok(Self { job, lane: row.int(LANE)?, has_webhook: !row.is_null(12)?, row: None })
    }

    /// Of `TAKE` on SQLite, which tells those things alone in which jobs of a lane without guards may differ: none has a subject.
    pub(super) fn in_place(mut row: Row, head: &Head) -> Result<Self, StoreError> {
        let tells = row.int(10)?;
        let place = if tells == 0 { Some(row.row_id()?) } else { None };
        let job = claimed(&mut row, &head.lane)?;
        Ok(Self { job, lane: head.head.lane, has_webhook: tells == 2, row: place })
    }
}

impl Taking {
    /// Jobs that are this worker's now.
    pub(super) fn took(
        &mut self,
        rows: Vec<Row>,
        read: impl Fn(Row) -> Result<Found, StoreError>,
    ) -> Result<(), StoreError> {
        let before = self.jobs.len();
        let mut heard = HashSet::new();
        self.jobs.reserve(rows.len());
        self.in_hand.reserve(rows.len());
        for row in rows {
            let Found { job, lane, has_webhook, row } = read(row)?;
            if has_webhook {
                heard.insert(job.id);
            } else if let Some(row) = row {
                let (claim, worker, epoch, attempt) = (self.claim, self.worker, job.epoch, job.attempt);
                self.in_hand.push((job.id, Taken { row, claim, tenant: self.tenant, worker, epoch, lane, attempt }));
            }
            self.jobs.push(job);
        }
        let taken = &mut self.jobs[before..];
        // SQLite gives them in order.
        if !taken.is_sorted_by_key(ClaimedJob::place) {
            taken.sort_by_key(ClaimedJob::place);
        }
        for alike in taken.chunk_by(|one, next| one.queue == next.queue) {
            let moved = (JobState::Queued, JobState::Working);
            self.changes.moved(self.tenant, &alike[0].queue, moved, alike.len() as i64);
        }
        let told = taken.iter().filter(|job| heard.contains(&job.id));
        self.notices.extend(told.map(|job| Notice {
            tenant: self.tenant,
            job: job.id,
            from: JobState::Queued,
            to: JobState::Working,
            attempt: job.attempt,
        }));
        Ok(())
    }

    pub(super) fn took_rows(&mut self, rows: Vec<Row>, lanes: &HashMap<i64, &Lane>) -> Result<(), StoreError> {
        let lane = |row: &Row| {
            lanes.get(&row.int(LANE)?).copied().ok_or_else(|| StoreError::unexpected("a job from another lane"))
        };
        self.took(rows, |row| lane(&row).and_then(|lane| Found::read(row, lane)))
    }
}

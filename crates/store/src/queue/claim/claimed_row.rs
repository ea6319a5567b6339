//! Decodes the rows of claimed jobs.

use std::collections::HashMap;

use domain::{Epoch, JobState};

use super::ClaimedJob;
use super::fast_path::claimed_row_cache::ClaimedRow;
use super::fill::ClaimBuilder;
use crate::db::tx::Row;
use crate::error::StoreError;
use crate::queue::lanes::Lane;
use crate::workflows::journal::read::JournalPage;

/// The positions of the columns in a result. They are resolved once per result: a claim may have thousands of rows.
pub(super) struct ClaimColumns {
    required: [usize; 12],
    /// Only in results of `TAKE_CHOSEN` and of PostgreSQL. Jobs in lanes without guards have no subject.
    subject: Option<usize>,
    /// Not in results of the single-statement claim, which takes no job with inputs.
    has_inputs: Option<usize>,
    /// Only in results of `TAKE` on SQLite: the columns of the claimed-row cache.
    cache: Option<[usize; 2]>,
}

const REQUIRED: [&str; 12] = [
    "id",
    "epoch",
    "payload",
    "process",
    "run",
    "attempt",
    "max_attempts",
    "timeout_s",
    "created_at",
    "run_at",
    "has_webhook",
    "has_journal",
];

impl ClaimColumns {
    pub(super) fn of(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            required: row.positions(REQUIRED)?,
            subject: row.positions(["subject"]).ok().map(|[position]| position),
            has_inputs: row.positions(["has_inputs"]).ok().map(|[position]| position),
            cache: row.positions(["is_cacheable", "rowid"]).ok(),
        })
    }

    /// Reads a row of this result. `lane` is the lane of its job.
    pub(super) fn read(
        &self,
        row: &mut Row,
        lane_id: i64,
        lane: &Lane,
        state: JobState,
    ) -> Result<ClaimedJob, StoreError> {
        let [
            id,
            epoch,
            payload,
            process,
            run,
            attempt,
            max_attempts,
            timeout_s,
            created_at,
            run_at,
            has_webhook,
            has_journal,
        ] = self.required;
        Ok(ClaimedJob {
            id: row.job(id)?,
            epoch: Epoch(row.int(epoch)?),
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            payload: row.take_text(payload)?,
            affinity: lane.affinity.clone(),
            priority: lane.priority,
            subject: self.subject.map_or(Ok(None), |subject| row.opt_text(subject))?,
            process: row.opt_text(process)?,
            run: row.opt_text(run)?,
            attempt: row.int(attempt)? as i32,
            max_attempts: row.int(max_attempts)? as i32,
            timeout_s: row.opt_int(timeout_s)?,
            created_at: row.time(created_at)?,
            tenant: None,
            journal: row.bool(has_journal)?.then(JournalPage::default),
            state,
            inputs: match self.has_inputs.map_or(Ok(false), |position| row.bool(position))? {
                true => Some(Vec::new()),
                false => None,
            },
            traceparent: None,
            run_at: row.time(run_at)?,
            lane: lane_id,
            has_webhook: row.bool(has_webhook)?,
        })
    }

    /// The row id on SQLite, if the end of the job needs no other column.
    fn cacheable_row(&self, row: &Row, job: &ClaimedJob) -> Result<Option<i64>, StoreError> {
        match self.cache {
            Some([is_cacheable, row_id]) if !job.has_webhook && row.bool(is_cacheable)? => row.int(row_id).map(Some),
            _ => Ok(None),
        }
    }
}

impl ClaimBuilder {
    /// Adds claimed rows to the claim. `lane_of` returns the lane of a row.
    pub(super) fn add<'l>(
        &mut self,
        rows: Vec<Row>,
        lane_of: impl Fn(&Row) -> Result<(i64, &'l Lane), StoreError>,
    ) -> Result<(), StoreError> {
        let Some(first) = rows.first() else { return Ok(()) };
        let columns = ClaimColumns::of(first)?;
        let before = self.jobs.len();
        self.jobs.reserve(rows.len());
        self.claimed_rows.reserve(rows.len());
        for mut row in rows {
            let (lane_id, lane) = lane_of(&row)?;
            let job = columns.read(&mut row, lane_id, lane, self.claimed_state(lane))?;
            if let Some(row) = columns.cacheable_row(&row, &job)? {
                let (claim, worker, epoch, attempt, lane) = (self.claim, self.worker, job.epoch, job.attempt, job.lane);
                let claimed = ClaimedRow { row, claim, tenant: self.tenant, worker, epoch, lane, attempt };
                self.claimed_rows.push((job.id, claimed));
            }
            self.bytes_left = self.bytes_left.saturating_sub(job.payload.len());
            self.jobs.push(job);
        }
        // SQLite returns the rows in order.
        let added = &mut self.jobs[before..];
        if !added.is_sorted_by_key(ClaimedJob::cursor) {
            added.sort_by_key(ClaimedJob::cursor);
        }
        Ok(())
    }

    /// Adds rows of several lanes.
    pub(super) fn add_rows(&mut self, rows: Vec<Row>, lanes: &HashMap<i64, &Lane>) -> Result<(), StoreError> {
        self.add(rows, |row| {
            let id = row.int("lane")?;
            let lane = lanes.get(&id).ok_or_else(|| StoreError::unexpected("a job from another lane"))?;
            Ok((id, *lane))
        })
    }
}

//! What the rows that a claim took say.

use std::collections::HashMap;

use domain::{Epoch, JobState};

use super::{ClaimedJob, Taking};
use crate::deliveries::notices::Notice;
use crate::error::StoreError;
use crate::lanes::Lane;
use crate::tx::Row;

impl Taking {
    pub(super) fn add(&mut self, rows: &[Row], lanes: &HashMap<i64, &Lane>) -> Result<(), StoreError> {
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            let lane = lanes.get(&row.int(2)?).ok_or_else(|| StoreError::unexpected("a job from another lane"))?;
            let job = claimed(row, lane)?;
            self.changes.moved(self.tenant, &lane.queue, JobState::Queued, JobState::Working);
            if row.opt_text(12)?.is_some() {
                self.notices.push(Notice {
                    tenant: self.tenant,
                    job: job.id,
                    from: JobState::Queued,
                    to: JobState::Working,
                    attempt: job.attempt,
                });
            }
            jobs.push(job);
        }
        jobs.sort_by_key(|job| (job.run_at, job.id));
        self.jobs.extend(jobs);
        Ok(())
    }
}

fn claimed(row: &Row, lane: &Lane) -> Result<ClaimedJob, StoreError> {
    Ok(ClaimedJob {
        id: row.job(0)?,
        epoch: Epoch(row.int(1)?),
        queue: lane.queue.clone(),
        kind: lane.kind.clone(),
        payload: row.text(3)?,
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
    })
}

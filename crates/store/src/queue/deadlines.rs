//! Fails jobs that did not end before their deadline, in any live state. A deadline counts from the creation of its job;
//! the timeout of an attempt is in `workers/attempt_timeouts`. The background task `fail_overdue_jobs` calls it.
//!
//! A job that ended in time costs nothing at its end: its row is cleared when the deadline comes.

use domain::queue::job::Event;
use domain::{JobError, JobId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::LaneCache;
use crate::queue::overdue::{fail, list_overdue};
use crate::queue::transition;
use crate::store::Store;
use crate::workflows::runs::cancel::lock_run_of;

/// What a pass of [`Store::fail_overdue_jobs`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverdueJobs {
    /// Deadlines that have come, of live and of ended jobs.
    pub deadlines: usize,
    pub failed: usize,
    pub unreadable: usize,
}

impl Store {
    /// Fails one batch of live jobs past their deadline.
    pub async fn fail_overdue_jobs(&self) -> Result<OverdueJobs, StoreError> {
        let due = self.read(ListDue).await?;
        let mut overdue = OverdueJobs { deadlines: due.len(), ..OverdueJobs::default() };
        for job in due {
            match self.write(FailOverdueJob { job, lanes: self.lanes().clone() }).await {
                Ok((failed, effects)) => {
                    self.announce(&effects);
                    overdue.failed += usize::from(failed);
                }
                Err(error) if error.is_unavailable() => return Err(error),
                // A row that cannot be decoded must not block the others.
                Err(error) => {
                    tracing::warn!(%job, %error, "cannot fail a job past its deadline");
                    overdue.unreadable += 1;
                    self.write(ClearDeadline { job }).await?;
                }
            }
        }
        Ok(overdue)
    }
}

struct ListDue;

const DUE: Sql = Sql::both(&["select job as id from job_options where due_at <= $1
         and (select s.since < $3 and s.beat_at >= $4 from service s where s.id = 1)
     order by due_at, job limit $2"]);

impl Operation for ListDue {
    type Output = Vec<JobId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        list_overdue(tx, &DUE).await
    }
}

struct FailOverdueJob {
    job: JobId,
    lanes: LaneCache,
}

const DEADLINE: Sql = Sql::both(&["select deadline_s, due_at from job_options where job = $1"]);
const CLEAR: Sql = Sql::both(&["update job_options set due_at = null where job = $1"]);

impl Operation for FailOverdueJob {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (bool, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, Effects), StoreError> {
        let now = tx.now();
        lock_run_of(tx, self.job).await?;
        let live = transition::load(tx, &[self.job]).await?.remove(&self.job);
        // Read under the lock: another node may have handled the deadline.
        let row = tx.query_opt(&DEADLINE, &[Param::from(self.job)]).await?;
        let is_due = row.as_ref().map(|row| row.opt_time("due_at")).transpose()?.flatten().is_some_and(|at| at <= now);
        if !is_due {
            return Ok((false, Effects::default()));
        }
        let deadline_s = row.map(|row| row.opt_int("deadline_s")).transpose()?.flatten().unwrap_or_default();
        tx.execute(&CLEAR, &[Param::from(self.job)]).await?;
        let Some(before) = live else { return Ok((false, Effects::default())) };
        let lane = self.lanes.one(tx, before.lane).await?;
        let after = before.job(&lane.kind, &Default::default())?.apply(Event::PassDeadline { deadline_s }, now);
        let effects = fail(tx, &self.lanes, before, after, JobError::past_deadline(deadline_s)).await?;
        Ok((true, effects))
    }
}

struct ClearDeadline {
    job: JobId,
}

impl Operation for ClearDeadline {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&CLEAR, &[Param::from(self.job)]).await.map(drop)
    }
}

//! Ends attempts that run longer than the timeout of their job. The lease sweep calls it.
//!
//! A timeout counts from the claim of an attempt, and the job is tried again. The deadline of a job counts from its
//! creation, and the job fails: see `queue/deadlines`. The column `jobs.deadline_at` has the end of the timeout.

use domain::queue::job::{ClaimRef, Event};
use domain::{JobError, JobId};
use uuid::Uuid;

use crate::db::clock::random_unit;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::LaneCache;
use crate::queue::overdue::{fail, list_overdue};
use crate::queue::queues;
use crate::queue::transition;

pub(super) struct ListTimedOut;

const TIMED_OUT: Sql = Sql::both(&["select id from jobs where deadline_at < $1
         and (select s.since < $3 and s.beat_at >= $4 from service s where s.id = 1)
     order by deadline_at, id limit $2"]);

impl Operation for ListTimedOut {
    type Output = Vec<JobId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        list_overdue(tx, &TIMED_OUT).await
    }
}

pub(super) struct TimeOutAttempt {
    pub(super) job: JobId,
    pub(super) lanes: LaneCache,
}

const TIMEOUT: Sql = Sql::both(&["select deadline_at from jobs where id = $1"]);

impl Operation for TimeOutAttempt {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether an attempt timed out.
    type Output = (bool, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, Effects), StoreError> {
        let now = tx.now();
        let Some(before) = transition::load(tx, &[self.job]).await?.remove(&self.job) else {
            return Ok((false, Effects::default()));
        };
        let row = tx.query_opt(&TIMEOUT, &[Param::from(self.job)]).await?;
        let times_out_at = row.map(|row| row.opt_time("deadline_at")).transpose()?.flatten();
        let (Some(worker), Some(started_at), Some(times_out_at)) = (before.worker, before.started_at, times_out_at)
        else {
            return Ok((false, Effects::default()));
        };
        if times_out_at >= now {
            return Ok((false, Effects::default()));
        }
        let lane = self.lanes.one(tx, before.lane).await?;
        let settings = queues::settings(tx, before.tenant, &lane.queue).await?;
        let by = ClaimRef { worker, epoch: before.epoch };
        let timeout_s = times_out_at.ms_since(started_at) / 1_000;
        let event = Event::TimeOut { by, timeout_s, random_unit: random_unit() };
        let after = before.job(&lane.kind, &settings)?.apply(event, now);
        let effects = fail(tx, &self.lanes, before, after, JobError::timeout(timeout_s)).await?;
        Ok((true, effects))
    }
}

const CLEAR: Sql = Sql::both(&["update jobs set deadline_at = null where id = $1"]);

/// Removes the timeout of the current attempt, so that a row that cannot be read is not listed again.
pub(super) async fn clear(tx: &mut Tx<'_>, job: Uuid) -> Result<(), StoreError> {
    tx.execute(&CLEAR, &[Param::Uuid(job)]).await.map(drop)
}

//! Why a job is not running, from what surrounds it now (Q15).

use domain::line::Waiting;
use domain::why::{Circumstances, Why};
use domain::{JobId, JobState, TenantId};

use crate::error::StoreError;
use crate::jobs::get::{StoredJob, find};
use crate::jobs::held_back;
use crate::jobs::holds::SUBJECT;
use crate::signals::surroundings;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn why(&self, tenant: TenantId, job: JobId) -> Result<Option<Why>, StoreError> {
        self.read(AskWhy { tenant, job }).await
    }
}

struct AskWhy {
    tenant: TenantId,
    job: JobId,
}

const PACE: Sql = Sql::both(&["select count(*), min(finished_at) from (
         select finished_at from ended where lane = $1 order by id desc limit 200) recent
     where finished_at > $2"]);

impl Operation for AskWhy {
    type Output = Option<Why>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Why>, StoreError> {
        let Some(mut job) = find(tx, self.tenant, self.job).await? else { return Ok(None) };
        let mut known = Circumstances {
            state: Some(job.state),
            run_at: Some(job.run_at),
            last_error_code: job.error.as_ref().map(|error| error.code.clone()),
            ..Circumstances::default()
        };
        if job.state == JobState::Queued {
            known.backoff = held_back::find(tx, self.tenant, &mut job).await?;
            self.surroundings(tx, &job, &mut known).await?;
        }
        Ok(Some(known.why()))
    }
}

/// The job as one of those that wait.
pub fn waiting(job: &StoredJob) -> Waiting {
    Waiting {
        id: job.id,
        priority: job.lane.priority,
        run_at: job.run_at,
        affinity: job.lane.affinity.clone(),
        lane: job.lane_id,
    }
}

impl AskWhy {
    async fn surroundings(
        &self,
        tx: &mut Tx<'_>,
        job: &StoredJob,
        known: &mut Circumstances,
    ) -> Result<(), StoreError> {
        let around = surroundings::read(tx, self.tenant, &job.lane.queue).await?;
        let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
        known.ahead = around.line.place(&waiting(job), &around.loaded(kind, affinity), around.now).ahead;
        match &job.parked {
            Some(scope) if scope.starts_with(SUBJECT) => known.subject_busy = job.subject.clone(),
            Some(_) if known.backoff.is_some() => {}
            Some(scope) => known.limit = Some(format!("all places are taken for {scope}")),
            None => {
                known.backoff = around.left_alone.get(affinity).cloned();
                known.limit = around.limit();
                known.limit_until = around.limit_until(known.ahead);
            }
        }
        known.affinity = affinity.as_ref().map(|affinity| affinity.as_str().to_owned());
        known.workers = around.serving(kind, affinity).count() as u64;
        known.lost = around.lost.get(affinity).cloned();
        known.queue_paused = around.paused;
        known.eta_s = self.eta_s(tx, job, known.ahead).await?;
        Ok(())
    }

    /// At the pace of the job's lane in the last minutes; nothing when there was none to speak of.
    async fn eta_s(&self, tx: &mut Tx<'_>, job: &StoredJob, ahead: u64) -> Result<Option<u64>, StoreError> {
        let params = [Param::Int(job.lane_id), Param::Time(tx.now().plus_s(-600))];
        let Some(row) = tx.query_opt(&PACE, &params).await? else { return Ok(None) };
        let ended = row.int(0)?;
        let Some(oldest) = row.opt_time(1)? else { return Ok(None) };
        if ended < 5 {
            return Ok(None);
        }
        let span_ms = tx.now().ms_since(oldest).max(1) as f64;
        Ok(Some(((ahead + 1) as f64 * span_ms / ended as f64 / 1_000.0).ceil() as u64))
    }
}

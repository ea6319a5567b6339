//! Explains why a job is not running, from the current state of its queue, limits, backoffs and workers.

use domain::limits::WHY_NEEDS;
use domain::queue::queue_position::QueuedJob;
use domain::queue::why::{Circumstances, Why};
use domain::{JobId, JobState, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::blocked_reason;
use crate::queue::get::{StoredJob, find};
use crate::queue::holds::SUBJECT;
use crate::signals::queue_snapshot;
use crate::store::Store;
use crate::workflows::runs::waits_for::open_need;

impl Store {
    /// Returns the explanation. `None` when the tenant has no such job.
    pub async fn why(&self, tenant: TenantId, job: JobId) -> Result<Option<Why>, StoreError> {
        self.read(ExplainJob { tenant, job }).await
    }
}

struct ExplainJob {
    tenant: TenantId,
    job: JobId,
}

const RECENT_ENDS: Sql = Sql::both(&["select count(*) as jobs, min(finished_at) as oldest_at from (
         select finished_at from ended where lane = $1 order by id desc limit 200) recent
     where finished_at > $2"]);

impl Operation for ExplainJob {
    type Output = Option<Why>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Why>, StoreError> {
        let Some(job) = find(tx, self.tenant, self.job).await? else { return Ok(None) };
        let waits_for = match job.state {
            JobState::Waiting => Some(self.waits_for(tx, job.id).await?),
            _ => None,
        };
        self.explain(tx, job, waits_for).await.map(Some)
    }
}

/// Converts a stored job to the form that queue positions are computed from.
pub fn queued_job(job: &StoredJob) -> QueuedJob {
    QueuedJob {
        id: job.id,
        priority: job.lane.priority,
        run_at: job.run_at,
        affinity: job.lane.affinity.clone(),
        lane: job.lane_id,
    }
}

impl ExplainJob {
    async fn explain(&self, tx: &mut Tx<'_>, mut job: StoredJob, waits_for: Option<String>) -> Result<Why, StoreError> {
        let mut circumstances = Circumstances {
            state: Some(job.state),
            run_at: Some(job.run_at),
            last_error: job.error.clone(),
            waits_for,
            ..Circumstances::default()
        };
        if job.state == JobState::Queued {
            circumstances.backoff = blocked_reason::find(tx, self.tenant, &mut job).await?;
            self.read_queue(tx, &job, &mut circumstances).await?;
        }
        Ok(circumstances.why())
    }

    /// Follows the needs of a waiting job to the first one that does not wait, and explains that one.
    async fn waits_for(&self, tx: &mut Tx<'_>, job: JobId) -> Result<String, StoreError> {
        let (mut text, mut at) = (String::new(), job);
        for _ in 0..WHY_NEEDS {
            let Some(need) = open_need(tx, at).await? else { break };
            let separator = if text.is_empty() { "" } else { ", which " };
            let of = if need.of == 1 { String::new() } else { format!(" ({} of {} needs left)", need.unmet, need.of) };
            text.push_str(&format!("{separator}waits for {}{of}", need.name));
            let Some(needed) = find(tx, self.tenant, need.job).await? else { break };
            at = need.job;
            if needed.state != JobState::Waiting {
                let why = self.explain(tx, needed, None).await?;
                // Readers of a node need not have the right to read the errors of another.
                text.push_str(&format!(": {}", why.public_detail.unwrap_or(why.detail)));
                break;
            }
        }
        Ok(if text.is_empty() { "waiting until something wakes it".into() } else { text })
    }

    async fn read_queue(
        &self,
        tx: &mut Tx<'_>,
        job: &StoredJob,
        circumstances: &mut Circumstances,
    ) -> Result<(), StoreError> {
        let snapshot = queue_snapshot::read(tx, self.tenant, &job.lane.queue).await?;
        let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
        circumstances.ahead =
            snapshot.order.position(&queued_job(job), &snapshot.loaded(kind, affinity), snapshot.now).ahead;
        match &job.parked {
            Some(scope) if scope.starts_with(SUBJECT) => circumstances.subject_busy = job.subject.clone(),
            Some(_) if circumstances.backoff.is_some() => {}
            Some(scope) => circumstances.limit = Some(format!("the limit of {scope} is reached")),
            None => {
                circumstances.backoff = snapshot.member_backoff.get(affinity).cloned();
                circumstances.limit = snapshot.limit();
                circumstances.limit_until = snapshot.limit_until(circumstances.ahead);
            }
        }
        circumstances.affinity = affinity.as_ref().map(|affinity| affinity.as_str().to_owned());
        circumstances.workers = snapshot.serving(kind, affinity).count() as u64;
        circumstances.lost = snapshot.lost.get(affinity).cloned();
        circumstances.queue_paused = snapshot.paused;
        circumstances.eta_s = self.eta_s(tx, job, circumstances.ahead).await?;
        Ok(())
    }

    /// Estimates the wait in seconds from the rate at which jobs of the same lane ended in the last 10 minutes. `None`
    /// if fewer than 5 ended.
    async fn eta_s(&self, tx: &mut Tx<'_>, job: &StoredJob, ahead: u64) -> Result<Option<u64>, StoreError> {
        let params = [Param::Int(job.lane_id), Param::Time(tx.now().plus_s(-600))];
        let Some(row) = tx.query_opt(&RECENT_ENDS, &params).await? else { return Ok(None) };
        let ended = row.int("jobs")?;
        let Some(oldest) = row.opt_time("oldest_at")? else { return Ok(None) };
        if ended < 5 {
            return Ok(None);
        }
        let span_ms = tx.now().ms_since(oldest).max(1) as f64;
        Ok(Some(((ahead + 1) as f64 * span_ms / ended as f64 / 1_000.0).ceil() as u64))
    }
}

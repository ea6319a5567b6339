//! Explains why a job is not running, from the current state of its queue, limits, backoffs and workers.

use domain::limits::WHY_NEEDS;
use domain::queue::queue_position::QueuedJob;
use domain::queue::why::{Circumstances, Why};
use domain::{JobId, JobState, TenantId, Time};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::blocked_reason;
use crate::queue::get::{StoredJob, find};
use crate::queue::holds::SUBJECT;
use crate::signals::queue_snapshot;
use crate::store::Store;
use crate::workflows::journal::waits_for::{open_wait, to_the_second};
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

/// What a waiting job waits for.
#[derive(Default)]
struct WaitsFor {
    text: String,
    /// When the wait ends by itself.
    until: Option<Time>,
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
            JobState::Waiting => self.waits_for(tx, job.id).await?,
            _ => WaitsFor::default(),
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
    async fn explain(&self, tx: &mut Tx<'_>, mut job: StoredJob, waits: WaitsFor) -> Result<Why, StoreError> {
        let mut circumstances = Circumstances {
            state: Some(job.state),
            run_at: Some(job.run_at),
            last_error: job.error.clone(),
            waits_for: (!waits.text.is_empty()).then_some(waits.text),
            waits_until: waits.until,
            ..Circumstances::default()
        };
        if job.state == JobState::Queued {
            circumstances.backoff = blocked_reason::find(tx, self.tenant, &mut job).await?;
            self.read_queue(tx, &job, &mut circumstances).await?;
        }
        Ok(circumstances.why())
    }

    /// Follows what a waiting job waits for (nodes, children) to the first job that does not wait, and explains that one.
    async fn waits_for(&self, tx: &mut Tx<'_>, job: JobId) -> Result<WaitsFor, StoreError> {
        let (mut found, mut at) = (WaitsFor::default(), job);
        for _ in 0..WHY_NEEDS {
            let separator = if found.text.is_empty() { "" } else { ", which " };
            let next = if let Some(need) = open_need(tx, at).await? {
                let of = match need.of {
                    1 => String::new(),
                    _ => format!(" ({} of {} needs left)", need.unmet, need.of),
                };
                found.text.push_str(&format!("{separator}waits for {}{of}", need.name));
                Some(need.job)
            } else if let Some(wait) = open_wait(tx, at).await? {
                found.text.push_str(&format!("{separator}waits for {}", wait.what));
                found.until = wait.until.filter(|_| at == job);
                wait.child
            } else {
                None
            };
            let Some(next) = next else { break };
            let Some(needed) = find(tx, self.tenant, next).await? else { break };
            at = next;
            if needed.state != JobState::Waiting {
                let why = self.explain(tx, needed, WaitsFor::default()).await?;
                let until = why.until.map_or(String::new(), |until| format!(" until {}", to_the_second(until)));
                // Readers of a node need not have the right to read the errors of another.
                found.text.push_str(&format!(": {}{until}", why.public_detail.unwrap_or(why.detail)));
                break;
            }
        }
        if found.text.is_empty() {
            found.text = "waiting until something wakes it".into();
        }
        Ok(found)
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

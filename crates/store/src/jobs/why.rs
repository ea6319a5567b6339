//! Why a job is not running, from kept facts and bounded looks (Q15).

use domain::why::{Circumstances, Why};
use domain::{JobId, JobState, TenantId};

use crate::backoffs;
use crate::codec::from_json;
use crate::error::StoreError;
use crate::jobs::get::{StoredJob, find};
use crate::jobs::holds::{SUBJECT, queue_scope};
use crate::queues;
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

/// Jobs ahead are counted up to this; the answer then says "at least".
const AHEAD: i64 = 10_000;

const PAUSED: Sql = Sql::both(&["select coalesce(paused_reason, 'no reason given') from queues
     where tenant = $1 and name = $2 and paused_at is not null"]);
const WORKERS: Sql = Sql::both(&["select queues, kinds, affinities from workers
     where tenant = $1 and dead_at is null and lease_until >= $2 limit 10000"]);
const HOLDERS: Sql = Sql::both(&["select count(*) from holds where tenant = $1 and scope = $2"]);
const AHEAD_OF: Sql = Sql::both(&["select count(*) from (
         select 1 from lanes l join jobs j on j.lane = l.lane
         where l.tenant = $1 and l.queue = $2 and j.due_at is null and j.parked is null and j.worker is null
             and (l.priority > $3 or (l.priority = $3 and (j.run_at < $4 or (j.run_at = $4 and j.id < $5))))
         limit $6) ahead"]);
const PACE: Sql = Sql::both(&["select count(*), min(finished_at) from (
         select finished_at from ended where lane = $1 order by id desc limit 200) recent
     where finished_at > $2"]);

impl Operation for AskWhy {
    type Output = Option<Why>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Why>, StoreError> {
        let Some(job) = find(tx, self.tenant, self.job).await? else { return Ok(None) };
        let mut known = Circumstances {
            state: Some(job.state),
            run_at: Some(job.run_at),
            last_error_code: job.error.as_ref().map(|error| error.code.clone()),
            ..Circumstances::default()
        };
        if job.state == JobState::Queued {
            self.surroundings(tx, &job, &mut known).await?;
        }
        Ok(Some(known.why()))
    }
}

impl AskWhy {
    async fn surroundings(
        &self,
        tx: &mut Tx<'_>,
        job: &StoredJob,
        known: &mut Circumstances,
    ) -> Result<(), StoreError> {
        let tenant = Param::Int(self.tenant.0);
        let queue = Param::Text(job.lane.queue.as_str());
        if let Some(row) = tx.query_opt(&PAUSED, &[tenant, queue]).await? {
            known.queue_paused = Some(row.text(0)?);
        }
        match &job.parked {
            Some(scope) if scope.starts_with(SUBJECT) => known.subject_busy = job.subject.clone(),
            Some(scope) if scope.starts_with(backoffs::SCOPE) => {
                let subject = job.subject.as_deref().unwrap_or_default();
                let all = backoffs::of_subject(tx, self.tenant, subject).await?;
                let by = all.into_iter().find(|stored| backoffs::scope(&stored.process, subject) == *scope);
                known.backoff = by.map(|stored| stored.backoff);
            }
            Some(scope) => known.limit = Some(format!("all places are taken for {scope}")),
            None => known.limit = self.queue_limit(tx, job).await?,
        }
        for row in tx.query(&WORKERS, &[tenant, Param::Time(tx.now())]).await? {
            let serves = |column: usize, wanted: &str| -> Result<bool, StoreError> {
                let names: Option<Vec<String>> = row.opt_text(column)?.map(|text| from_json(&text)).transpose()?;
                Ok(names.is_none_or(|names| names.iter().any(|name| name == wanted)))
            };
            let affinity = match &job.lane.affinity {
                Some(affinity) => serves(2, affinity.as_str())?,
                None => true,
            };
            if serves(0, job.lane.queue.as_str())? && serves(1, job.lane.kind.as_str())? && affinity {
                known.workers += 1;
            }
        }
        let params = [
            tenant,
            queue,
            Param::Int(i64::from(job.lane.priority)),
            Param::Time(job.run_at),
            Param::from(job.id),
            Param::Int(AHEAD),
        ];
        let row = tx.query_opt(&AHEAD_OF, &params).await?;
        known.ahead = row.map(|row| row.int(0)).transpose()?.unwrap_or(0) as u64;
        known.eta_s = self.eta_s(tx, job, known.ahead).await?;
        Ok(())
    }

    async fn queue_limit(&self, tx: &mut Tx<'_>, job: &StoredJob) -> Result<Option<String>, StoreError> {
        let settings = queues::settings(tx, self.tenant, &job.lane.queue).await?;
        let Some(limit) = settings.concurrency else { return Ok(None) };
        let scope = queue_scope(&job.lane.queue);
        let row = tx.query_opt(&HOLDERS, &[Param::Int(self.tenant.0), Param::Text(&scope)]).await?;
        let running = row.map(|row| row.int(0)).transpose()?.unwrap_or(0);
        Ok((running >= i64::from(limit)).then(|| format!("{running} of {limit} jobs of the queue are running")))
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

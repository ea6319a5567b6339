//! Reads the jobs that a worker holds.

use domain::limits::{WORKER_PAGE_CLAIMS, WORKER_PAGE_JOBS};
use domain::{JobId, TenantId, Time, WorkerId};
use uuid::Uuid;

use crate::db::codec::from_json;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// A job that a worker holds.
#[derive(Clone, Debug, PartialEq)]
pub struct HeldJob {
    pub id: JobId,
    pub queue: String,
    pub kind: String,
    pub state: String,
    pub attempt: i64,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub started_at: Option<Time>,
}

impl Store {
    /// Returns jobs that the worker has claimed and not settled, at most `WORKER_PAGE_JOBS`.
    pub async fn jobs_of_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<Vec<HeldJob>, StoreError> {
        self.read(ReadHeldJobs { tenant, worker }).await
    }
}

struct ReadHeldJobs {
    tenant: TenantId,
    worker: WorkerId,
}

const CLAIMS: Sql = Sql::both(&["select jobs from claims where worker = $1 order by claim desc limit $2"]);
const JOBS: Sql = Sql::new(
    &["select id, queue, kind, state, attempt, phase, progress, started_at from live_jobs
       where id = $1 and worker = $2 and tenant = $3"],
    "select id, queue, kind, state, attempt, phase, progress, started_at from live_jobs
     where id = any($1::uuid[]) and worker = $2 and tenant = $3",
);

impl Operation for ReadHeldJobs {
    type Output = Vec<HeldJob>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<HeldJob>, StoreError> {
        let mut ids: Vec<Uuid> = Vec::new();
        for row in tx.query(&CLAIMS, &[Param::from(self.worker), Param::Int(WORKER_PAGE_CLAIMS as i64)]).await? {
            ids.extend(from_json::<Vec<Uuid>>(&row.text("jobs")?)?);
        }
        ids.sort_unstable();
        ids.dedup();
        // Settled jobs of a claim stay in its list.
        let params = [Param::from(self.worker), Param::Int(self.tenant.0)];
        let mut jobs = Vec::new();
        for row in tx.query_each(&JOBS, &[Column::uuids(ids)], &params).await? {
            jobs.push(HeldJob {
                id: row.job("id")?,
                queue: row.text("queue")?,
                kind: row.text("kind")?,
                state: row.text("state")?,
                attempt: row.int("attempt")?,
                phase: row.opt_text("phase")?,
                progress: row.opt_real("progress")?,
                started_at: row.opt_time("started_at")?,
            });
        }
        jobs.sort_by_key(|job| (job.started_at, job.id));
        jobs.truncate(WORKER_PAGE_JOBS);
        Ok(jobs)
    }
}

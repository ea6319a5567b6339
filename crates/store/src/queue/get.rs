//! Reads one job, live or ended. Also maps a row of `live_jobs` or `ended_jobs` to [`StoredJob`] for other operations.

use domain::{Affinity, Epoch, JobError, JobId, JobState, Name, RetryPolicy, TenantId, Time, TraceContext, WorkerId};

use crate::db::codec::{error_from_json, from_json, retry_from_json};
use crate::db::tx::{Operation, Param, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::Lane;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct StoredJob {
    pub id: JobId,
    pub lane: Lane,
    pub(crate) lane_id: i64,
    pub state: JobState,
    pub payload: String,
    pub run_at: Time,
    pub attempt: i32,
    pub max_attempts: i32,
    pub epoch: Epoch,
    pub worker: Option<WorkerId>,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub created_at: Time,
    pub updated_at: Time,
    pub timeout_s: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub subject: Option<String>,
    pub process: Option<String>,
    pub run: Option<String>,
    pub unique_key: Option<String>,
    pub concurrency_key: Option<String>,
    pub tags: Vec<String>,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub result: Option<String>,
    pub error: Option<JobError>,
    pub webhook: Option<String>,
    pub parent: Option<JobId>,
    pub retried_as: Option<JobId>,
    pub principal: String,
    pub actor: Option<String>,
    pub triggered_by: Option<String>,
    pub depth: i32,
    pub version: i64,
    /// Scope that the job is parked for (a hold or a backoff), if it is parked.
    pub parked: Option<String>,
    /// Seconds from its creation after which the live job fails. Only jobs that were read by their ids have it.
    pub deadline_s: Option<i64>,
    /// Only jobs that were read by their ids have it.
    pub traceparent: Option<TraceContext>,
}

impl StoredJob {
    pub fn affinity(&self) -> &Affinity {
        &self.lane.affinity
    }

    pub fn queue(&self) -> &Name {
        &self.lane.queue
    }
}

// The views `live_jobs` and `ended_jobs` have the same columns. The columns are named instead of `*`, because a newer
// version may add columns while this one runs.
const LIVE: Sql = Sql::both(&["select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at,
         attempt, max_attempts, epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry,
         subject, process, run, unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent,
         retried_as, principal, actor, triggered_by, depth, version, parked, lane,
         (select o.deadline_s from job_options o where o.job = id) as deadline_s,
         (select o.traceparent from job_options o where o.job = id) as traceparent
     from live_jobs where id = $1 and tenant = $2"]);
const ENDED: Sql = Sql::both(&["select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at,
         attempt, max_attempts, epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry,
         subject, process, run, unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent,
         retried_as, principal, actor, triggered_by, depth, version, parked, lane,
         (select o.deadline_s from job_options o where o.job = id) as deadline_s,
         (select o.traceparent from job_options o where o.job = id) as traceparent
     from ended_jobs where id = $1 and tenant = $2"]);

impl Store {
    /// Returns the job, live or ended. `None` when the tenant has no such job or it was pruned.
    pub async fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<StoredJob>, StoreError> {
        self.read(FindJob { tenant, id }).await
    }
}

struct FindJob {
    tenant: TenantId,
    id: JobId,
}

impl Operation for FindJob {
    type Output = Option<StoredJob>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        let params = vec![Param::from(self.id), Param::Int(self.tenant.0)];
        vec![Prefetch { sql: LIVE, columns: Vec::new(), params }]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<StoredJob>, StoreError> {
        find(tx, self.tenant, self.id).await
    }
}

/// Looks for the job among live jobs, then among ended ones. The order matters: a job that ends between the two
/// queries is found by the second.
pub(crate) async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: JobId) -> Result<Option<StoredJob>, StoreError> {
    let params = [Param::from(id), Param::Int(tenant.0)];
    let row = match tx.query_opt(&LIVE, &params).await? {
        Some(row) => Some(row),
        None => tx.query_opt(&ENDED, &params).await?,
    };
    row.as_ref().map(read).transpose()
}

/// Maps a row of `live_jobs` or `ended_jobs`.
pub(crate) fn read(row: &Row) -> Result<StoredJob, StoreError> {
    let state = row.text("state")?;
    let tags: Option<Vec<String>> = row.opt_text("tags")?.map(|text| from_json(&text)).transpose()?;
    Ok(StoredJob {
        id: row.job("id")?,
        lane: Lane::read(row)?,
        lane_id: row.int("lane")?,
        state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
        payload: row.text("payload")?,
        run_at: row.time("run_at")?,
        attempt: row.int("attempt")? as i32,
        max_attempts: row.int("max_attempts")? as i32,
        epoch: Epoch(row.int("epoch")?),
        worker: row.opt_uuid("worker")?.map(WorkerId::new),
        started_at: row.opt_time("started_at")?,
        finished_at: row.opt_time("finished_at")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
        timeout_s: row.opt_int("timeout_s")?,
        retry: row.opt_text("retry")?.map(|text| retry_from_json(&text)).transpose()?,
        subject: row.opt_text("subject")?,
        process: row.opt_text("process")?,
        run: row.opt_text("run")?,
        unique_key: row.opt_text("unique_key")?,
        concurrency_key: row.opt_text("concurrency_key")?,
        tags: tags.unwrap_or_default(),
        phase: row.opt_text("phase")?,
        progress: row.opt_real("progress")?,
        result: row.opt_text("result")?,
        error: row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?,
        webhook: row.opt_text("webhook")?,
        parent: row.opt_uuid("parent")?.map(JobId::new),
        retried_as: row.opt_uuid("retried_as")?.map(JobId::new),
        principal: row.text("principal")?,
        actor: row.opt_text("actor")?,
        triggered_by: row.opt_text("triggered_by")?,
        depth: row.int("depth")? as i32,
        version: row.int("version")?,
        parked: row.opt_text("parked")?,
        deadline_s: row.positions(["deadline_s"]).ok().map_or(Ok(None), |[position]| row.opt_int(position))?,
        traceparent: match row.positions(["traceparent"]) {
            Ok([position]) => row.opt_text(position)?.as_deref().and_then(TraceContext::parse),
            Err(_) => None,
        },
    })
}

//! One job, live or ended, as everyone may read it (Q1).

use domain::{Affinity, Epoch, JobError, JobId, JobState, Name, RetryPolicy, TenantId, Time, WorkerId};

use crate::codec::{error_from_json, from_json, retry_from_json};
use crate::error::StoreError;
use crate::lanes::{Lane, lane_at};
use crate::store::Store;
use crate::tx::{First, Operation, Param, Row, Sql, Tx};

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
    /// What holds it back, when something does.
    pub parked: Option<String>,
}

impl StoredJob {
    pub fn affinity(&self) -> &Affinity {
        &self.lane.affinity
    }

    pub fn queue(&self) -> &Name {
        &self.lane.queue
    }
}

// The views `live_jobs` and `ended_jobs` have the same columns, here in the order `read` wants them. They are named: a newer
// program may add others while this one runs.
pub(crate) const COLUMNS: usize = 40;
const LIVE: Sql = Sql::both(&["select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at,
         attempt, max_attempts, epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry,
         subject, process, run, unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent,
         retried_as, principal, actor, triggered_by, depth, version, parked, lane
     from live_jobs where id = $1 and tenant = $2"]);
const ENDED: Sql = Sql::both(&["select id, tenant, queue, kind, priority, affinity, guarded, state, payload, run_at,
         attempt, max_attempts, epoch, worker, started_at, finished_at, created_at, updated_at, timeout_s, retry,
         subject, process, run, unique_key, concurrency_key, tags, phase, progress, result, error, webhook, parent,
         retried_as, principal, actor, triggered_by, depth, version, parked, lane
     from ended_jobs where id = $1 and tenant = $2"]);

impl Store {
    pub async fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<StoredJob>, StoreError> {
        self.read(Get { tenant, id }).await
    }
}

struct Get {
    tenant: TenantId,
    id: JobId,
}

impl Operation for Get {
    type Output = Option<StoredJob>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    fn reads_first(&self) -> Vec<First<'_>> {
        let params = vec![Param::from(self.id), Param::Int(self.tenant.0)];
        vec![First { sql: LIVE, columns: Vec::new(), params }]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<StoredJob>, StoreError> {
        find(tx, self.tenant, self.id).await
    }
}

/// A job that ends between the two looks is found by the second.
pub(crate) async fn find(tx: &mut Tx<'_>, tenant: TenantId, id: JobId) -> Result<Option<StoredJob>, StoreError> {
    let params = [Param::from(id), Param::Int(tenant.0)];
    let row = match tx.query_opt(&LIVE, &params).await? {
        Some(row) => Some(row),
        None => tx.query_opt(&ENDED, &params).await?,
    };
    row.as_ref().map(read).transpose()
}

pub(crate) fn read(row: &Row) -> Result<StoredJob, StoreError> {
    let state = row.text(7)?;
    let tags: Option<Vec<String>> = row.opt_text(25)?.map(|text| from_json(&text)).transpose()?;
    Ok(StoredJob {
        id: row.job(0)?,
        lane: lane_at(row, 1)?,
        lane_id: row.int(39)?,
        state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
        payload: row.text(8)?,
        run_at: row.time(9)?,
        attempt: row.int(10)? as i32,
        max_attempts: row.int(11)? as i32,
        epoch: Epoch(row.int(12)?),
        worker: row.opt_uuid(13)?.map(WorkerId::new),
        started_at: row.opt_time(14)?,
        finished_at: row.opt_time(15)?,
        created_at: row.time(16)?,
        updated_at: row.time(17)?,
        timeout_s: row.opt_int(18)?,
        retry: row.opt_text(19)?.map(|text| retry_from_json(&text)).transpose()?,
        subject: row.opt_text(20)?,
        process: row.opt_text(21)?,
        run: row.opt_text(22)?,
        unique_key: row.opt_text(23)?,
        concurrency_key: row.opt_text(24)?,
        tags: tags.unwrap_or_default(),
        phase: row.opt_text(26)?,
        progress: row.opt_real(27)?,
        result: row.opt_text(28)?,
        error: row.opt_text(29)?.map(|text| error_from_json(&text)).transpose()?,
        webhook: row.opt_text(30)?,
        parent: row.opt_uuid(31)?.map(JobId::new),
        retried_as: row.opt_uuid(32)?.map(JobId::new),
        principal: row.text(33)?,
        actor: row.opt_text(34)?,
        triggered_by: row.opt_text(35)?,
        depth: row.int(36)? as i32,
        version: row.int(37)?,
        parked: row.opt_text(38)?,
    })
}

//! All that one signal is told from, in one keyed read (S3).

use domain::limits::PREVIOUS_JOBS;
use domain::{Backoff, JobId, JobState, TenantId, Time};

use crate::error::StoreError;
use crate::jobs::get::{self, StoredJob};
use crate::jobs::held_back;
use crate::signals::refine::StoredSignal;
use crate::store::Store;
use crate::tx::{First, Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug)]
pub struct SignalSource {
    pub job: StoredJob,
    pub said: Option<StoredSignal>,
    /// Jobs of the same kind with the same subject or key that ended before, newest first; of a retry, what it retries.
    pub previous: Vec<PreviousJob>,
    /// What the previous jobs have in common with it: `subject`, `key` or `parent`.
    pub previous_by: Option<&'static str>,
    pub has_log: bool,
    /// What it is held off by, while it waits for its subject.
    pub backoff: Option<Backoff>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousJob {
    pub id: JobId,
    pub state: JobState,
    pub finished_at: Time,
    pub error_code: Option<String>,
    pub phase: Option<String>,
    pub attempt: i32,
}

pub enum SignalRead {
    Found(Box<SignalSource>),
    /// The job is pruned and only its history is left: nothing is known of it now.
    Forgotten,
    NotFound,
}

impl Store {
    pub async fn signal_source(&self, tenant: TenantId, job: JobId) -> Result<SignalRead, StoreError> {
        self.read(ReadSignal { tenant, job }).await
    }
}

struct ReadSignal {
    tenant: TenantId,
    job: JobId,
}

// The columns of a job as `get::read` wants them, and behind them those of its signal.
const LIVE: Sql = Sql::both(&["select j.id, j.tenant, j.queue, j.kind, j.priority, j.affinity, j.guarded, j.state,
         j.payload, j.run_at, j.attempt, j.max_attempts, j.epoch, j.worker, j.started_at, j.finished_at,
         j.created_at, j.updated_at, j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key,
         j.concurrency_key, j.tags, j.phase, j.progress, j.result, j.error, j.webhook, j.parent, j.retried_as,
         j.principal, j.actor, j.triggered_by, j.depth, j.version, j.parked, j.lane, s.epoch, s.kind, s.summary,
         s.eta_s, s.last_known_outcome, s.next_actions, s.diagnostics, s.payload, s.updated_at
     from live_jobs j left join signals s on s.job = j.id and s.tenant = j.tenant where j.id = $1 and j.tenant = $2"]);
const ENDED: Sql = Sql::both(&["select j.id, j.tenant, j.queue, j.kind, j.priority, j.affinity, j.guarded, j.state,
         j.payload, j.run_at, j.attempt, j.max_attempts, j.epoch, j.worker, j.started_at, j.finished_at,
         j.created_at, j.updated_at, j.timeout_s, j.retry, j.subject, j.process, j.run, j.unique_key,
         j.concurrency_key, j.tags, j.phase, j.progress, j.result, j.error, j.webhook, j.parent, j.retried_as,
         j.principal, j.actor, j.triggered_by, j.depth, j.version, j.parked, j.lane, s.epoch, s.kind, s.summary,
         s.eta_s, s.last_known_outcome, s.next_actions, s.diagnostics, s.payload, s.updated_at
     from ended_jobs j left join signals s on s.job = j.id and s.tenant = j.tenant where j.id = $1 and j.tenant = $2"]);
const REMEMBERED: Sql = Sql::both(&["select 1 from history where job = $1 and tenant = $2 limit 1"]);
// A subject or key may have had many jobs of other kinds: the look stays short.
const BY_SUBJECT: Sql = Sql::both(&["select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from (select id, lane, state, finished_at, error_code, phase, attempt from ended
           where tenant = $1 and subject = $2 and id < $3 order by id desc limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 order by e.id desc limit $5"]);
const BY_KEY: Sql = Sql::both(&["select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from (select id, lane, state, finished_at, error_code, phase, attempt from ended
           where tenant = $1 and unique_key = $2 and id < $3 order by id desc limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 order by e.id desc limit $5"]);
const BY_ID: Sql = Sql::both(&["select id, state, finished_at, error_code, phase, attempt from ended
     where tenant = $1 and id = $2"]);
const LOG: Sql = Sql::both(&["select 1 from artifacts where job = $1 and name = 'log'"]);

impl Operation for ReadSignal {
    type Output = SignalRead;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    fn reads_first(&self) -> Vec<First<'_>> {
        let params = vec![Param::from(self.job), Param::Int(self.tenant.0)];
        vec![First { sql: LIVE, columns: Vec::new(), params }]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SignalRead, StoreError> {
        match source(tx, self.tenant, self.job).await? {
            Some(source) => Ok(SignalRead::Found(Box::new(source))),
            None => {
                let row = tx.query_opt(&REMEMBERED, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
                Ok(if row.is_some() { SignalRead::Forgotten } else { SignalRead::NotFound })
            }
        }
    }
}

pub(crate) async fn source(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<Option<SignalSource>, StoreError> {
    let params = [Param::from(job), Param::Int(tenant.0)];
    let row = match tx.query_opt(&LIVE, &params).await? {
        Some(row) => Some(row),
        None => tx.query_opt(&ENDED, &params).await?,
    };
    let Some(row) = row else { return Ok(None) };
    let (mut job, said) = (get::read(&row)?, StoredSignal::at(&row, get::COLUMNS)?);
    let backoff = held_back::find(tx, tenant, &mut job).await?;
    let (previous, previous_by) = previous(tx, tenant, &job).await?;
    // A log is written by an attempt.
    let has_log = job.attempt > 0 && tx.query_opt(&LOG, &[Param::from(job.id)]).await?.is_some();
    Ok(Some(SignalSource { job, said, previous, previous_by, has_log, backoff }))
}

async fn previous(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    job: &StoredJob,
) -> Result<(Vec<PreviousJob>, Option<&'static str>), StoreError> {
    let of = Param::Int(tenant.0);
    let of_kind =
        |word| [of, word, Param::from(job.id), Param::Text(job.lane.kind.as_str()), Param::Int(PREVIOUS_JOBS as i64)];
    let (rows, by) = match (&job.subject, &job.unique_key, job.parent) {
        (Some(subject), ..) => (tx.query(&BY_SUBJECT, &of_kind(Param::Text(subject))).await?, "subject"),
        (None, Some(key), _) => (tx.query(&BY_KEY, &of_kind(Param::Text(key))).await?, "key"),
        (None, None, Some(parent)) => (tx.query(&BY_ID, &[of, Param::from(parent)]).await?, "parent"),
        (None, None, None) => return Ok((Vec::new(), None)),
    };
    let read = |row: &Row| PreviousJob::at(row, 0);
    Ok((rows.iter().map(read).collect::<Result<_, StoreError>>()?, Some(by)))
}

impl PreviousJob {
    /// From six columns: id, state, finished_at, error_code, phase, attempt.
    pub(super) fn at(row: &Row, first: usize) -> Result<Self, StoreError> {
        let state = row.text(first + 1)?;
        Ok(Self {
            id: row.job(first)?,
            state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            finished_at: row.time(first + 2)?,
            error_code: row.opt_text(first + 3)?,
            phase: row.opt_text(first + 4)?,
            attempt: row.int(first + 5)? as i32,
        })
    }
}

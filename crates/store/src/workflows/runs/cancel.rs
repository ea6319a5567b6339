//! Cancels runs. The request marks the run; its jobs are canceled in batches, by the request itself and, after a crash, by
//! the engine's task. The first failure of a run with `on_failure: cancel` marks it too.

use domain::limits::MAINTENANCE_ROWS;
use domain::queue::job::Event;
use domain::{JobId, JobState, Label, RunState, TenantId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition::{self, Transition};
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunCanceled {
    /// Canceled by this call or an earlier one.
    Canceled,
    AlreadyEnded(RunState),
    NotFound,
}

impl Store {
    /// Cancels a run and all its jobs that have not ended.
    pub async fn cancel_run(&self, tenant: TenantId, run: Label, actor: String) -> Result<RunCanceled, StoreError> {
        let canceled = self.write(MarkCanceled { tenant, run: run.clone(), actor }).await?;
        if canceled == RunCanceled::Canceled {
            while self.stop_batch(tenant, run.as_str().to_owned()).await? {}
        }
        Ok(canceled)
    }

    /// Cancels jobs of the runs that are being stopped. Returns the number of runs.
    pub async fn stop_runs(&self) -> Result<usize, StoreError> {
        let runs = self.read(ListStopping).await?;
        for (tenant, run) in &runs {
            while self.stop_batch(*tenant, run.clone()).await? {}
        }
        Ok(runs.len())
    }

    /// Cancels one batch of jobs. Returns false if no job was left to cancel.
    async fn stop_batch(&self, tenant: TenantId, run: String) -> Result<bool, StoreError> {
        let jobs = self.read(ListRemaining { tenant, run: run.clone() }).await?;
        if jobs.is_empty() {
            return Ok(false);
        }
        let stop = StopJobs { tenant, run, jobs, lanes: self.lanes().clone() };
        let (canceled, effects) = self.write(stop).await?;
        self.announce(&effects);
        Ok(canceled > 0)
    }
}

struct MarkCanceled {
    tenant: TenantId,
    run: Label,
    actor: String,
}

const MARK: Sql = Sql::both(&["update runs set stopping_at = coalesce(stopping_at, $3),
         canceled_by = coalesce(canceled_by, $4), version = version + 1
     where tenant = $1 and run = $2 and state = 'running' returning state"]);
const STATE: Sql = Sql::both(&["select state from runs where tenant = $1 and run = $2"]);

impl Operation for MarkCanceled {
    type Output = RunCanceled;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RunCanceled, StoreError> {
        let (tenant, run) = (Param::Int(self.tenant.0), Param::Text(self.run.as_str()));
        let params = [tenant, run, Param::Time(tx.now()), Param::Text(&self.actor)];
        if tx.query_opt(&MARK, &params).await?.is_some() {
            return Ok(RunCanceled::Canceled);
        }
        let row = tx.query_opt(&STATE, &params[..2]).await?;
        let state = row.map(|row| row.text("state")).transpose()?.and_then(|state| RunState::parse(&state));
        Ok(match state {
            None => RunCanceled::NotFound,
            Some(RunState::Canceled) => RunCanceled::Canceled,
            Some(state) => RunCanceled::AlreadyEnded(state),
        })
    }
}

struct ListStopping;

const STOPPING: Sql = Sql::both(&["select tenant, run from runs where stopping_at is not null and finished_at is null
     order by stopping_at limit $1"]);

impl Operation for ListStopping {
    type Output = Vec<(TenantId, String)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query(&STOPPING, &[Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        rows.iter().map(|row| Ok((TenantId(row.int("tenant")?), row.text("run")?))).collect()
    }
}

struct ListRemaining {
    tenant: TenantId,
    run: String,
}

// After a failure, nodes that wait for failures or for every end still run. After a cancel nothing does.
const REMAINING: Sql = Sql::both(&["select j.id from jobs j join runs r on r.tenant = j.tenant and r.run = j.run
         left join run_nodes n on n.job = j.id
     where j.tenant = $1 and j.run = $2 and r.stopping_at is not null
         and (r.canceled_by is not null or n.condition is null or n.condition = 'success')
     order by j.id limit $3"]);

impl Operation for ListRemaining {
    type Output = Vec<JobId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.run), Param::Int(MAINTENANCE_ROWS as i64)];
        tx.query(&REMAINING, &params).await?.iter().map(|row| row.job("id")).collect()
    }
}

struct StopJobs {
    tenant: TenantId,
    run: String,
    jobs: Vec<JobId>,
    lanes: LaneCache,
}

const STATES: Sql = Sql::new(
    &["select j.id, j.state from rarray($1) n cross join jobs j where j.id = n.value and j.tenant = $2"],
    "select id, state from jobs where id = any($1::uuid[]) and tenant = $2",
);
const ACTOR: Sql = Sql::both(&["select canceled_by from runs where tenant = $1 and run = $2"]);

impl Operation for StopJobs {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (usize, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let (mut effects, mut counters) = (Effects::default(), CounterDeltas::default());
        let tenant = Param::Int(self.tenant.0);
        let ids: Vec<uuid::Uuid> = self.jobs.iter().map(|job| job.uuid()).collect();
        let (mut waiting, mut others) = (Vec::new(), Vec::new());
        for row in tx.query_by_ids(&STATES, &ids, &[tenant]).await? {
            let of = if row.text("state")? == JobState::Waiting.as_str() { &mut waiting } else { &mut others };
            of.push(row.job("id")?);
        }
        // The lock of the run comes before the locks of its waiting jobs, and after those of all other jobs.
        let jobs = if waiting.is_empty() {
            others
        } else {
            lock_run(tx, self.tenant, &self.run).await?;
            waiting
        };
        let row = tx.query_opt(&ACTOR, &[tenant, Param::Text(&self.run)]).await?;
        let actor = row.map(|row| row.opt_text("canceled_by")).transpose()?.flatten();
        let actor = actor.unwrap_or_else(|| format!("run {}", self.run));
        let live = transition::load(tx, &jobs).await?;
        let of_lane = self.lanes.of(tx, &live.values().map(|job| job.lane).collect::<Vec<_>>()).await?;
        let mut transitions = Vec::with_capacity(live.len());
        for before in live.into_values() {
            let job = before.job(&of_lane[&before.lane].kind, &Default::default())?;
            let after = job.apply(Event::Cancel, tx.now());
            let after = after.map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
            let revoke = before.state.is_claimed();
            let transition = Transition::new(before, after, "canceled", None, None);
            transitions.push(Transition { actor: Some(actor.clone()), revoke, ..transition });
        }
        let canceled = transitions.len();
        transition::write(tx, &self.lanes, transitions, &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        Ok((canceled, effects))
    }
}

const LOCK: Sql = Sql::new(
    &["select run from runs where tenant = $1 and run = $2"],
    "select run from runs where tenant = $1 and run = $2 for update",
);

/// Locks a run. An operation that ends a waiting job of a run calls this before it locks the job.
pub(crate) async fn lock_run(tx: &mut Tx<'_>, tenant: TenantId, run: &str) -> Result<(), StoreError> {
    tx.query(&LOCK, &[Param::Int(tenant.0), Param::Text(run)]).await.map(|_| ())
}

const WAITS_IN_RUN: Sql =
    Sql::both(&["select tenant, run from jobs where id = $1 and state = 'waiting' and run is not null"]);

/// Locks the run of a job that waits. Other jobs need no lock of their run.
pub(crate) async fn lock_run_of(tx: &mut Tx<'_>, job: JobId) -> Result<(), StoreError> {
    match tx.query_opt(&WAITS_IN_RUN, &[Param::from(job)]).await? {
        Some(row) => lock_run(tx, TenantId(row.int("tenant")?), &row.text("run")?).await,
        None => Ok(()),
    }
}

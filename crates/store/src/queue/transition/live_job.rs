//! The row of a live job, as the transition rules need it. Every caller that changes a state loads jobs here.

use std::collections::BTreeMap;

use domain::queue::job::Claim;
use domain::{Epoch, Job, JobId, JobState, Label, Name, QueueSettings, RetryPolicy, State, TenantId, Time, WorkerId};
use uuid::Uuid;

use crate::db::codec::retry_from_json;
use crate::db::tx::{Column, Row, Sql, Tx};
use crate::error::StoreError;

/// The columns of a live job that a transition reads.
#[derive(Clone, Debug)]
pub(crate) struct LiveJob {
    pub(crate) id: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) lane: i64,
    pub(crate) state: JobState,
    pub(crate) run_at: Time,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) claim: Option<Uuid>,
    pub(crate) held: bool,
    pub(crate) epoch: Epoch,
    pub(crate) attempt: i32,
    pub(crate) max_attempts: i32,
    pub(crate) started_at: Option<Time>,
    pub(crate) begun: bool,
    pub(crate) wait_s: Option<u64>,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) subject: Option<Label>,
    pub(crate) process: Option<String>,
    pub(crate) webhook: Option<String>,
    pub(crate) created_at: Time,
    pub(crate) triggered_by: Option<String>,
}

const LOAD: Sql = Sql::new(
    &["select id, tenant, lane, state, run_at, worker, claim, held, epoch, attempt, max_attempts, started_at, begun_at,
           wait_s, retry, subject, process, webhook, created_at, triggered_by
       from jobs where id = $1"],
    "select id, tenant, lane, state, run_at, worker, claim, held, epoch, attempt, max_attempts, started_at, begun_at,
         wait_s, retry, subject, process, webhook, created_at, triggered_by
     from jobs where id = any($1::uuid[]) order by id for update",
);

/// Loads and locks the rows of live jobs. Ended and unknown jobs are missing from the result.
pub(crate) async fn load(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<BTreeMap<JobId, LiveJob>, StoreError> {
    let rows = tx.query_each(&LOAD, &[Column::jobs(jobs.iter().copied())], &[]).await?;
    rows.iter().map(|row| LiveJob::read(row).map(|job| (job.id, job))).collect()
}

impl LiveJob {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let state = row.text("state")?;
        Ok(Self {
            id: row.job("id")?,
            tenant: TenantId(row.int("tenant")?),
            lane: row.int("lane")?,
            state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            run_at: row.time("run_at")?,
            worker: row.opt_uuid("worker")?.map(WorkerId::new),
            claim: row.opt_uuid("claim")?,
            held: row.bool("held")?,
            epoch: Epoch(row.int("epoch")?),
            attempt: row.int("attempt")? as i32,
            max_attempts: row.int("max_attempts")? as i32,
            started_at: row.opt_time("started_at")?,
            begun: row.opt_time("begun_at")?.is_some(),
            wait_s: row.opt_int("wait_s")?.map(|wait| wait as u64),
            retry: row.opt_text("retry")?.map(|text| retry_from_json(&text)).transpose()?,
            subject: row.opt_text("subject")?.map(|text| Label::stored(&text)),
            process: row.opt_text("process")?,
            webhook: row.opt_text("webhook")?,
            created_at: row.time("created_at")?,
            triggered_by: row.opt_text("triggered_by")?,
        })
    }

    /// Converts the row to the type that the transition rules use. `settings` are those of the job's queue.
    pub(crate) fn job(&self, kind: &Name, settings: &QueueSettings) -> Result<Job, StoreError> {
        let claim = || match (self.worker, self.started_at) {
            (Some(worker), Some(at)) => {
                Ok(Claim { worker, epoch: self.epoch, at, waiting_since: self.run_at, begun: self.begun })
            }
            _ => Err(StoreError::unexpected(format!("job {} is {} without a claim", self.id, self.state))),
        };
        let state = match self.state {
            JobState::Waiting => State::Waiting { run_at: self.run_at },
            JobState::Scheduled => State::Scheduled { run_at: self.run_at },
            JobState::Queued => State::Queued { since: self.run_at },
            JobState::Loading => State::Loading(claim()?),
            JobState::Working => State::Working(claim()?),
            ended => return Err(StoreError::unexpected(format!("job {} is live and {ended}", self.id))),
        };
        Ok(Job {
            state,
            epoch: self.epoch,
            attempt: self.attempt,
            max_attempts: self.max_attempts,
            retry: self.retry.unwrap_or_else(|| settings.retry_for(kind)),
            wait_s: self.wait_s,
        })
    }
}

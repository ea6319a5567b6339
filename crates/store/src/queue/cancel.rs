//! Cancels jobs. A job that waits ends at once. A job that runs ends at once too, but its worker learns of it with the
//! next heartbeat, and the job's holds stay until the worker responds or its lease expires.

use domain::queue::job::Event;
use domain::{JobId, JobState, Name, TenantId};
use serde_json::json;

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::queue::transition::{LiveJob, Transition};
use crate::store::Store;
use crate::workflows::journal::compensate::{CancelEntry, record_cancel};
use crate::workflows::runs::cancel::lock_run_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceled {
    /// Canceled by this call or an earlier one.
    Canceled(JobId),
    /// The job succeeded or failed before.
    AlreadyEnded(JobState),
    /// The job runs once more, so that its handler can undo its steps. By this call or an earlier one.
    Compensating(JobId, JobState),
    /// A worker has claimed the job, and the caller wanted to cancel only a waiting job.
    Claimed,
    NotFound,
}

impl Store {
    /// Cancels a live job, running or not.
    pub async fn cancel(&self, tenant: TenantId, job: JobId, actor: String) -> Result<Canceled, StoreError> {
        self.cancel_target(tenant, CancelTarget::Id(job), actor).await
    }

    /// Lets the handler of a live job with a journal undo its steps: the job runs once more, with the cancel in its journal.
    /// A job without a journal is canceled at once.
    pub async fn cancel_with_undo(&self, tenant: TenantId, job: JobId, actor: String) -> Result<Canceled, StoreError> {
        self.cancel_target(tenant, CancelTarget::Compensate(job), actor).await
    }

    /// Cancels a job unless a worker has claimed it.
    pub async fn cancel_waiting(&self, tenant: TenantId, job: JobId, actor: String) -> Result<Canceled, StoreError> {
        self.cancel_target(tenant, CancelTarget::Waiting(job), actor).await
    }

    /// Cancels the live job with this unique key.
    pub async fn cancel_by_key(
        &self,
        tenant: TenantId,
        queue: Name,
        key: String,
        actor: String,
    ) -> Result<Canceled, StoreError> {
        self.cancel_target(tenant, CancelTarget::Key(queue, key), actor).await
    }

    async fn cancel_target(
        &self,
        tenant: TenantId,
        target: CancelTarget,
        actor: String,
    ) -> Result<Canceled, StoreError> {
        let cancel = CancelJob { tenant, target, actor, lanes: self.lanes().clone() };
        let (canceled, effects) = self.write(cancel).await?;
        self.announce(&effects);
        Ok(canceled)
    }
}

enum CancelTarget {
    Id(JobId),
    Waiting(JobId),
    Compensate(JobId),
    Key(Name, String),
}

struct CancelJob {
    tenant: TenantId,
    target: CancelTarget,
    actor: String,
    lanes: LaneCache,
}

const BY_KEY: Sql = Sql::both(&["select job from unique_keys where tenant = $1 and queue = $2 and key = $3
     and (until is null or until > $4)"]);
const ENDED: Sql = Sql::both(&["select state from ended where id = $1 and tenant = $2"]);

impl Operation for CancelJob {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (Canceled, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Canceled, Effects), StoreError> {
        let mut effects = Effects::default();
        let id = match &self.target {
            CancelTarget::Id(id) | CancelTarget::Waiting(id) | CancelTarget::Compensate(id) => *id,
            CancelTarget::Key(queue, key) => {
                let (tenant, now) = (Param::Int(self.tenant.0), Param::Time(tx.now()));
                let params = [tenant, Param::Text(queue.as_str()), Param::Text(key), now];
                match tx.query_opt(&BY_KEY, &params).await? {
                    Some(row) => row.job("job")?,
                    None => return Ok((Canceled::NotFound, effects)),
                }
            }
        };
        // The lock of a run comes before the locks of the jobs that wait in it.
        lock_run_of(tx, id).await?;
        let live = transition::load(tx, &[id]).await?.remove(&id).filter(|job| job.tenant == self.tenant);
        let Some(before) = live else {
            let row = tx.query_opt(&ENDED, &[Param::from(id), Param::Int(self.tenant.0)]).await?;
            let state = row.map(|row| row.text("state")).transpose()?.and_then(|state| JobState::parse(&state));
            let canceled = match state {
                Some(JobState::Canceled) => Canceled::Canceled(id),
                Some(state) => Canceled::AlreadyEnded(state),
                None => Canceled::NotFound,
            };
            return Ok((canceled, effects));
        };
        if before.state.is_claimed() && matches!(self.target, CancelTarget::Waiting(_)) {
            return Ok((Canceled::Claimed, effects));
        }
        if matches!(self.target, CancelTarget::Compensate(_)) {
            match record_cancel(tx, self.tenant, id, before.epoch.0, &self.actor).await? {
                CancelEntry::NoJournal => {}
                CancelEntry::AlreadyRecorded => return Ok((Canceled::Compensating(id, before.state), effects)),
                CancelEntry::Recorded => {
                    let state = self.resume(tx, before, &mut effects).await?;
                    return Ok((Canceled::Compensating(id, state), effects));
                }
            }
        }
        let lane = self.lanes.one(tx, before.lane).await?;
        let job = before.job(&lane.kind, &Default::default())?;
        let after =
            job.apply(Event::Cancel, tx.now()).map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        let revoke = before.state.is_claimed();
        // A job with a subject is on the timeline of the subject.
        let is_recorded = before.subject.is_none() && !matches!(self.target, CancelTarget::Waiting(_));
        let actor = Some(self.actor.clone());
        let transition = Transition { actor, revoke, ..Transition::new(before, after, "canceled", None, None) };
        let mut counters = CounterDeltas::default();
        transition::write(tx, &self.lanes, vec![transition], &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        if is_recorded {
            let detail = json!({"job": id.uuid()}).to_string();
            let entry = Entry { job: Some(id), ..Entry::by(self.tenant, &self.actor, "job_canceled", detail) };
            timeline::write(tx, &[entry]).await?;
        }
        Ok((Canceled::Canceled(id), effects))
    }
}

impl CancelJob {
    /// Lets the job run again: wakes it, or takes it from its worker. A queued or scheduled job runs anyway.
    async fn resume(&self, tx: &mut Tx<'_>, before: LiveJob, effects: &mut Effects) -> Result<JobState, StoreError> {
        let mut counters = CounterDeltas::default();
        let state = match before.state {
            JobState::Waiting => {
                transition::wake(tx, &self.lanes, &[before.id], &mut counters, effects).await?;
                JobState::Queued
            }
            state if state.is_claimed() => {
                let lane = self.lanes.one(tx, before.lane).await?;
                let after = before.job(&lane.kind, &Default::default())?.apply(Event::Interrupt, tx.now());
                let after = after.map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
                let actor = Some(self.actor.clone());
                let transition =
                    Transition { actor, revoke: true, ..Transition::new(before, after, "released", None, None) };
                transition::write(tx, &self.lanes, vec![transition], &mut counters, effects).await?;
                JobState::Queued
            }
            state => state,
        };
        transition::close(tx, &self.lanes, counters, effects).await?;
        Ok(state)
    }
}

//! Long-polls: look, wait for a hint or the next poll, look again.
//!
//! The poll is the truth; a hint only makes it sooner. On PostgreSQL another node's hint may be lost (a pooler, a broken
//! connection) or was never given (`windlass.enqueue`): there `tasks/wake_waiting.rs` looks ten times a second for all who
//! wait. On SQLite every writer is this process.

mod claim;

use std::time::{Duration, Instant};

use domain::{Affinity, DeliveryId, JobId, TenantId, WorkerId};
use store::deliveries::DeliveryState;
use store::deliveries::list::WholeDelivery;
use store::events::waited::Waited;
use store::hints::Topic;
use store::jobs::get::StoredJob;
use store::triggers::runs::{RunOutcome, TriggerRun};
use store::workers::heartbeat::Heartbeat;
use store::{Store, StoreError};

pub use claim::{Claim, claim};

const POLL: Duration = Duration::from_secs(1);
/// Later than anybody waits.
const FAR: Duration = Duration::from_secs(30 * 366 * 24 * 3_600);

/// Renews the lease at once; with a `wait`, answers as soon as there is a cancel or a drain.
pub async fn heartbeat(
    store: &Store,
    tenant: TenantId,
    worker: WorkerId,
    affinity: Affinity,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Heartbeat, StoreError> {
    let listener = store.hints().listen([Topic::Worker(worker)]);
    let first = store.heartbeat(tenant, worker, affinity).await?;
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    let mut last = first;
    loop {
        match &last {
            Heartbeat::Alive { cancel, drain: false, .. } if cancel.is_empty() => {}
            _ => return Ok(last),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(last);
        }
        tokio::select! {
            () = listener.hint() => {}
            () = tokio::time::sleep((jittered(POLL) * 2).min(left)) => {}
            () = &mut stop => return Ok(last),
        }
        last = store.revocations(tenant, worker).await?;
    }
}

/// The job, once it has ended or the time is up.
pub async fn job(
    store: &Store,
    tenant: TenantId,
    job: JobId,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Option<StoredJob>, StoreError> {
    let listener = store.hints().listen([Topic::Ended(job)]);
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    loop {
        let found = store.job(tenant, job).await?;
        let left = until.saturating_duration_since(Instant::now());
        match &found {
            Some(job) if !job.state.is_terminal() && !left.is_zero() => {}
            _ => return Ok(found),
        }
        tokio::select! {
            () = listener.hint() => {}
            () = tokio::time::sleep(jittered(POLL).min(left)) => {}
            () = &mut stop => return Ok(found),
        }
    }
}

/// The moment so long from now, however long that is.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + FAR)
}

/// So that many who wait do not ask all at once.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + 0.4 * store::clock::dice())
}

/// What became of a run that somebody waits for.
#[derive(Clone, Debug)]
pub struct SyncRun {
    pub waited: Waited,
    /// Nothing while it has not been started.
    pub run: Option<TriggerRun>,
    pub job: Option<StoredJob>,
    pub delivery: Option<WholeDelivery>,
}

impl SyncRun {
    fn has_ended(&self) -> bool {
        let Some(run) = &self.run else { return false };
        match run.outcome {
            RunOutcome::Job(_) => self.job.as_ref().is_none_or(|job| job.state.is_terminal()),
            RunOutcome::Delivery(_) => self
                .delivery
                .as_ref()
                .is_none_or(|whole| matches!(whole.delivery.state, DeliveryState::Delivered | DeliveryState::Failed)),
            RunOutcome::Done | RunOutcome::Failed | RunOutcome::Skipped => true,
        }
    }
}

/// Waits until these runs have ended, or the time is up.
pub async fn runs(
    store: &Store,
    tenant: TenantId,
    waited: Vec<Waited>,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Vec<SyncRun>, StoreError> {
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    let mut pause = RUNS_POLL;
    loop {
        let mut runs = Vec::with_capacity(waited.len());
        for waited in &waited {
            runs.push(look(store, tenant, *waited).await?);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || runs.iter().all(SyncRun::has_ended) {
            return Ok(runs);
        }
        tokio::select! {
            () = tokio::time::sleep(pause.min(left)) => {}
            () = &mut stop => return Ok(runs),
        }
        // What takes long is looked at less often: the answer is late by a fraction of what it took.
        pause = (pause * 5 / 4).min(RUNS_POLL_MAX);
    }
}

const RUNS_POLL: Duration = Duration::from_millis(20);
const RUNS_POLL_MAX: Duration = Duration::from_millis(500);

async fn look(store: &Store, tenant: TenantId, waited: Waited) -> Result<SyncRun, StoreError> {
    let found = store.runs_of_event(tenant, waited.event).await?;
    let run = found.into_iter().rfind(|run| run.trigger == waited.trigger);
    let (mut job, mut delivery) = (None, None);
    match run.as_ref().map(|run| run.outcome) {
        Some(RunOutcome::Job(id)) => job = store.job(tenant, id).await?,
        Some(RunOutcome::Delivery(id)) => delivery = store.delivery(tenant, DeliveryId::new(id)).await?,
        _ => {}
    }
    Ok(SyncRun { waited, run, job, delivery })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_end_is_one() {
        let year = Duration::from_secs(366 * 24 * 3_600);
        assert!(after(Duration::MAX) > Instant::now() + year);
        assert!(after(Duration::ZERO) <= Instant::now());
    }
}

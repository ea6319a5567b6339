//! Long polls: query, wait for a notification or the next poll, query again.
//!
//! The poll is authoritative; a notification only makes it sooner. On PostgreSQL the notification of another node may
//! be lost (a pooler, a broken connection) or never sent (`windlass.enqueue` in a user's transaction). There
//! `poll_ready_queues.rs` polls ten times a second on behalf of all waiters. On SQLite all writers are in this process.

mod claim;

use std::time::{Duration, Instant};

use domain::{Affinity, DeliveryId, JobId, TenantId, WorkerId};
use store::db::notifier::Topic;
use store::queue::get::StoredJob;
use store::queue::workers::heartbeat::Heartbeat;
use store::triggers::deliveries::DeliveryState;
use store::triggers::deliveries::list::WholeDelivery;
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::runs::{RunOutcome, TriggerRun};
use store::{Store, StoreError};

pub use claim::{ClaimRequest, claim};

const POLL: Duration = Duration::from_secs(1);
/// Stands for an unlimited wait.
const UNLIMITED: Duration = Duration::from_secs(30 * 366 * 24 * 3_600);

/// Renews the lease at once. With a `wait`, returns as soon as a job is canceled or the worker is drained.
pub async fn heartbeat(
    store: &Store,
    tenant: TenantId,
    worker: WorkerId,
    affinity: Affinity,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Heartbeat, StoreError> {
    let subscription = store.notifier().subscribe([Topic::Worker(worker)]);
    let first = store.heartbeat(tenant, worker, affinity).await?;
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    let mut last = first;
    loop {
        match &last {
            Heartbeat::Alive { cancel, drain: false, .. } if cancel.is_empty() => {}
            _ => return Ok(last),
        }
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Ok(last);
        }
        tokio::select! {
            () = subscription.notified() => {}
            () = tokio::time::sleep((jittered(POLL) * 2).min(remaining)) => {}
            () = &mut stop => return Ok(last),
        }
        last = store.revocations(tenant, worker).await?;
    }
}

/// Returns the job once it has ended or the wait is over. `None` if there is no such job.
pub async fn job(
    store: &Store,
    tenant: TenantId,
    job: JobId,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Option<StoredJob>, StoreError> {
    let subscription = store.notifier().subscribe([Topic::Ended(job)]);
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    loop {
        let found = store.job(tenant, job).await?;
        let remaining = until.saturating_duration_since(Instant::now());
        match &found {
            Some(job) if !job.state.is_terminal() && !remaining.is_zero() => {}
            _ => return Ok(found),
        }
        tokio::select! {
            () = subscription.notified() => {}
            () = tokio::time::sleep(jittered(POLL).min(remaining)) => {}
            () = &mut stop => return Ok(found),
        }
    }
}

/// The time after `wait`, without overflow.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + UNLIMITED)
}

/// Spreads the polls of many waiters.
fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + 0.4 * store::db::clock::random_unit())
}

/// The state of a trigger run that a client waits for.
#[derive(Clone, Debug)]
pub struct SyncRun {
    pub waited: AwaitedRun,
    /// `None` until the run starts.
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

/// Waits until all runs have ended or the wait is over.
pub async fn runs(
    store: &Store,
    tenant: TenantId,
    waited: Vec<AwaitedRun>,
    wait: Duration,
    stop: impl Future<Output = ()>,
) -> Result<Vec<SyncRun>, StoreError> {
    let until = after(wait);
    let mut stop = std::pin::pin!(stop);
    let mut pause = RUNS_POLL;
    loop {
        let mut runs = Vec::with_capacity(waited.len());
        for waited in &waited {
            runs.push(read_run(store, tenant, *waited).await?);
        }
        let remaining = until.saturating_duration_since(Instant::now());
        if remaining.is_zero() || runs.iter().all(SyncRun::has_ended) {
            return Ok(runs);
        }
        tokio::select! {
            () = tokio::time::sleep(pause.min(remaining)) => {}
            () = &mut stop => return Ok(runs),
        }
        // Long runs are polled less often, so that the delay stays a fraction of the run's duration.
        pause = (pause * 5 / 4).min(RUNS_POLL_MAX);
    }
}

const RUNS_POLL: Duration = Duration::from_millis(20);
const RUNS_POLL_MAX: Duration = Duration::from_millis(500);

async fn read_run(store: &Store, tenant: TenantId, waited: AwaitedRun) -> Result<SyncRun, StoreError> {
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
    fn a_maximum_wait_does_not_overflow_the_clock() {
        let year = Duration::from_secs(366 * 24 * 3_600);
        assert!(after(Duration::MAX) > Instant::now() + year);
        assert!(after(Duration::ZERO) <= Instant::now());
    }
}

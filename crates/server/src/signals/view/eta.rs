//! ETA of a job, estimated from the durations of its kind and of the jobs ahead of it.

use std::collections::HashMap;
use std::sync::Arc;

use domain::signals::eta::{BusySlot, Durations, QueueForecast, remaining};
use domain::signals::signal::Eta;
use domain::{JobState, TenantId, Time};
use store::queue::get::StoredJob;
use store::queue::why::queued_job;
use store::signals::duration_statistics::{DurationStatistics, StatisticsKey};
use store::signals::queue_snapshot::QueueSnapshot;
use store::{Store, StoreError};

type Estimate = (Option<Eta>, Option<Arc<DurationStatistics>>);

fn own_key(job: &StoredJob) -> StatisticsKey {
    (job.lane.kind.clone(), job.lane.affinity.clone())
}

/// Seed of the simulation, derived from the job so that every reader gets the same estimate.
fn seed(job: &StoredJob) -> u64 {
    job.id.uuid().as_u64_pair().1
}

/// Estimates a queued job. None if no worker serves it, or if a job ahead of it has no history.
pub(super) async fn waiting(
    store: &Store,
    tenant: TenantId,
    job: &StoredJob,
    snapshot: &QueueSnapshot,
) -> Result<Estimate, StoreError> {
    let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
    let workers = snapshot.serving(kind, affinity).count();
    let loaded = snapshot.loaded(kind, affinity);
    let position = snapshot.order.position(&queued_job(job), &loaded, snapshot.now);
    let key_of: HashMap<i64, StatisticsKey> =
        snapshot.lanes.iter().map(|(id, lane)| (*id, (lane.kind.clone(), lane.affinity.clone()))).collect();
    let lanes = position.ahead_by_lane.keys().copied().chain(snapshot.running.iter().map(|running| running.lane));
    let mut keys: Vec<StatisticsKey> = lanes.filter_map(|lane| key_of.get(&lane).cloned()).collect();
    keys.push(own_key(job));
    let statistics = store.duration_statistics(tenant, keys).await?;
    let own = statistics.get(&own_key(job)).cloned();
    let durations = |lane: i64| key_of.get(&lane).and_then(|key| statistics.get(key)).and_then(|f| f.run.as_ref());
    let Some(run) = own.as_ref().and_then(|statistic| statistic.run.as_ref()).filter(|_| workers > 0) else {
        return Ok((None, own));
    };
    let ahead: Option<Vec<(&Durations, u64)>> =
        position.ahead_by_lane.iter().map(|(lane, count)| Some((durations(*lane)?, *count))).collect();
    let busy: Option<Vec<BusySlot<'_>>> = snapshot
        .running
        .iter()
        .map(|running| {
            let elapsed_s = snapshot.now.ms_since(running.started_at).max(0) as f64 / 1_000.0;
            Some(BusySlot { durations: durations(running.lane)?, elapsed_s })
        })
        .collect();
    let (Some(ahead), Some(busy)) = (ahead, busy) else { return Ok((None, own)) };
    let limit = snapshot.settings.concurrency.map_or(usize::MAX, |limit| limit as usize);
    let needs_loading = affinity.as_ref().is_some_and(|affinity| !loaded.contains(&affinity.as_str()));
    let load = own.as_ref().and_then(|statistic| statistic.load.as_ref()).filter(|_| needs_loading);
    let slots = workers.max(busy.len()).min(limit);
    let forecast = QueueForecast { slots, busy, ahead, own: run, load, not_before_s: 0.0 };
    Ok((Some(forecast.eta(seed(job))), own))
}

/// Estimates a running job, or one scheduled for later.
pub(super) async fn alone(store: &Store, tenant: TenantId, job: &StoredJob, now: Time) -> Result<Estimate, StoreError> {
    let own = store.duration_statistics(tenant, vec![own_key(job)]).await?.remove(&own_key(job));
    let run = own.as_ref().and_then(|statistic| statistic.run.as_ref());
    let eta = match (run, job.state, job.started_at) {
        (Some(run), JobState::Scheduled, _) => {
            let not_before_s = job.run_at.ms_since(now).max(0) as f64 / 1_000.0;
            let forecast = QueueForecast { slots: 1, busy: vec![], ahead: vec![], own: run, load: None, not_before_s };
            Some(forecast.eta(seed(job)))
        }
        // Durations are measured without loading time.
        (_, JobState::Loading, _) => None,
        (Some(run), _, Some(started_at)) => remaining(run, now.ms_since(started_at).max(0) as f64 / 1_000.0),
        _ => None,
    };
    Ok((eta, own))
}

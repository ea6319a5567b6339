//! When a job will be done, from what is known of its kind and of those ahead (S9).

use std::collections::HashMap;
use std::sync::Arc;

use domain::eta::{Busy, Durations, Outlook, remaining};
use domain::signal::Eta;
use domain::{JobState, TenantId, Time};
use store::jobs::get::StoredJob;
use store::jobs::why::waiting as place_of;
use store::signals::figures::{Figure, FigureKey};
use store::signals::surroundings::Surroundings;
use store::{Store, StoreError};

type Answer = (Option<Eta>, Option<Arc<Figure>>);

fn own_key(job: &StoredJob) -> FigureKey {
    (job.lane.kind.clone(), job.lane.affinity.clone())
}

/// Two readers of one signal see one answer.
fn seed(job: &StoredJob) -> u64 {
    job.id.uuid().as_u64_pair().1
}

/// Of a job in line. Nothing when nobody serves it, or when something ahead of it has no history.
pub(super) async fn waiting(
    store: &Store,
    tenant: TenantId,
    job: &StoredJob,
    around: &Surroundings,
) -> Result<Answer, StoreError> {
    let (kind, affinity) = (&job.lane.kind, &job.lane.affinity);
    let workers = around.serving(kind, affinity).count();
    let loaded = around.loaded(kind, affinity);
    let place = around.line.place(&place_of(job), &loaded, around.now);
    let key_of: HashMap<i64, FigureKey> =
        around.lanes.iter().map(|(id, lane)| (*id, (lane.kind.clone(), lane.affinity.clone()))).collect();
    let lanes = place.ahead_by_lane.keys().copied().chain(around.running.iter().map(|running| running.lane));
    let mut keys: Vec<FigureKey> = lanes.filter_map(|lane| key_of.get(&lane).cloned()).collect();
    keys.push(own_key(job));
    let figures = store.figures(tenant, keys).await?;
    let own = figures.get(&own_key(job)).cloned();
    let durations = |lane: i64| key_of.get(&lane).and_then(|key| figures.get(key)).and_then(|f| f.run.as_ref());
    let Some(run) = own.as_ref().and_then(|figure| figure.run.as_ref()).filter(|_| workers > 0) else {
        return Ok((None, own));
    };
    let ahead: Option<Vec<(&Durations, u64)>> =
        place.ahead_by_lane.iter().map(|(lane, count)| Some((durations(*lane)?, *count))).collect();
    let busy: Option<Vec<Busy<'_>>> = around
        .running
        .iter()
        .map(|running| {
            let elapsed_s = around.now.ms_since(running.started_at).max(0) as f64 / 1_000.0;
            Some(Busy { durations: durations(running.lane)?, elapsed_s })
        })
        .collect();
    let (Some(ahead), Some(busy)) = (ahead, busy) else { return Ok((None, own)) };
    let limit = around.settings.concurrency.map_or(usize::MAX, |limit| limit as usize);
    let needs_loading = affinity.as_ref().is_some_and(|affinity| !loaded.contains(&affinity.as_str()));
    let load = own.as_ref().and_then(|figure| figure.load.as_ref()).filter(|_| needs_loading);
    let places = workers.max(busy.len()).min(limit);
    let outlook = Outlook { places, busy, ahead, own: run, load, not_before_s: 0.0 };
    Ok((Some(outlook.eta(seed(job))), own))
}

/// Of a job that runs, or whose time has not come.
pub(super) async fn alone(store: &Store, tenant: TenantId, job: &StoredJob, now: Time) -> Result<Answer, StoreError> {
    let own = store.figures(tenant, vec![own_key(job)]).await?.remove(&own_key(job));
    let run = own.as_ref().and_then(|figure| figure.run.as_ref());
    let eta = match (run, job.state, job.started_at) {
        (Some(run), JobState::Scheduled, _) => {
            let not_before_s = job.run_at.ms_since(now).max(0) as f64 / 1_000.0;
            let outlook = Outlook { places: 1, busy: vec![], ahead: vec![], own: run, load: None, not_before_s };
            Some(outlook.eta(seed(job)))
        }
        // Durations are learnt from the work alone: what a load takes is no part of them.
        (_, JobState::Loading, _) => None,
        (Some(run), _, Some(started_at)) => remaining(run, now.ms_since(started_at).max(0) as f64 / 1_000.0),
        _ => None,
    };
    Ok((eta, own))
}

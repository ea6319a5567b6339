//! Estimates when a job would end that is not enqueued yet. Called by `POST /jobs/estimate`.

use domain::JobId;
use domain::signals::signal::{Eta, about_s};
use store::queue::enqueue::NewJob;
use store::{Store, StoreError};
use uuid::Uuid;
use wire::EstimateView;

use crate::access::auth::Principal;
use crate::signals::view::eta::{self, Estimate, EstimatedJob};
use crate::signals::view::{basis, range};

pub(crate) async fn render(store: &Store, principal: &Principal, job: &NewJob) -> Result<EstimateView, StoreError> {
    let tenant = principal.tenant;
    let (snapshot, _) = store.queue_snapshot(tenant, &job.queue).await?;
    let now = store.clock().now().max(snapshot.now);
    // The job would be the youngest.
    let estimated = EstimatedJob::new(job, JobId::new(Uuid::max()), snapshot.now, &snapshot);
    let workers = snapshot.serving(&job.kind, &job.affinity).count() as u64;
    let loaded = snapshot.loaded(&job.kind, &job.affinity);
    let ahead = snapshot.order.position(&estimated.queued(), &loaded, snapshot.now).ahead;
    let is_blocked = snapshot.paused.is_some() || snapshot.member_backoff.contains_key(&job.affinity);
    let estimate = match is_blocked {
        true => Estimate::default(),
        false => eta::not_enqueued(store, tenant, &estimated, &snapshot).await?,
    };
    let eta = estimate.answer.and_then(|answer| answer.shown());
    let summary = match (eta, &snapshot.paused) {
        (Some(Eta { p50_s, p90_s }), _) => {
            format!("Ends in {} with 50 %, in {} with 90 % probability.", about_s(p50_s), about_s(p90_s))
        }
        (None, Some(reason)) => format!("No estimate: the queue is paused: {reason}."),
        (None, None) if is_blocked => "No estimate: the model could not be loaded and is in backoff.".into(),
        (None, None) if workers == 0 => "No estimate: no live worker serves such jobs.".into(),
        (None, None) => "No estimate: too few jobs of the kinds in the queue have ended.".into(),
    };
    Ok(EstimateView {
        eta_seconds: eta.map(range),
        eta_basis: eta.map(|eta| basis(&estimate, eta, false, now)),
        ahead,
        workers,
        summary,
    })
}

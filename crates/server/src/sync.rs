//! Whoever causes an event waits for what `sync` triggers make of it (T2).

use std::time::Duration;

use domain::limits::CALL_TIMEOUT_S_DEFAULT;
use domain::{JobError, TenantId};
use engine::waiting::{self, SyncRun};
use store::deliveries::DeliveryState;
use store::events::waited::Waited;
use store::triggers::runs::RunOutcome;
use wire::SyncRunView;

use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

/// Without a `sync` trigger nothing is waited for.
///
/// The event is written by now: where its runs cannot be looked at they are pending, and the answer stays what it was.
pub(crate) async fn runs(state: &AppState, tenant: TenantId, waited: Vec<Waited>) -> Vec<SyncRunView> {
    if waited.is_empty() {
        return Vec::new();
    }
    let runs = looked_at(state, tenant, waited.clone()).await;
    runs.unwrap_or_else(|_| waited.into_iter().map(pending).collect())
}

async fn looked_at(state: &AppState, tenant: TenantId, waited: Vec<Waited>) -> Result<Vec<SyncRunView>, ApiError> {
    let wait = Duration::from_secs(CALL_TIMEOUT_S_DEFAULT as u64);
    let runs = waiting::runs(&state.store, tenant, waited, wait, state.stopping.cancelled()).await?;
    runs.into_iter().map(told).collect()
}

fn pending(waited: Waited) -> SyncRunView {
    SyncRunView {
        trigger_id: waited.trigger.uuid(),
        event_id: waited.event.uuid(),
        state: "pending".into(),
        job_id: None,
        delivery_id: None,
        result: None,
        error: None,
    }
}

fn told(sync: SyncRun) -> Result<SyncRunView, ApiError> {
    let SyncRun { waited, run, job, delivery } = sync;
    let mut told = pending(waited);
    let Some(run) = run else { return Ok(told) };
    match run.outcome {
        RunOutcome::Done => {
            told.state = "succeeded".into();
            told.result = run.ran.and_then(|ran| ran.result).map(view::raw).transpose()?;
        }
        RunOutcome::Failed => {
            told.state = "failed".into();
            told.error = run.error.map(view::error);
        }
        RunOutcome::Skipped => told.state = "skipped".into(),
        RunOutcome::Job(id) => {
            told.job_id = Some(id.uuid());
            if let Some(job) = job.filter(|job| job.state.is_terminal()) {
                told.state = job.state.to_string();
                told.result = job.result.map(view::raw).transpose()?;
                told.error = job.error.map(view::error);
            }
        }
        RunOutcome::Delivery(id) => {
            told.delivery_id = Some(id);
            match delivery.map(|whole| whole.delivery) {
                Some(delivery) if delivery.state == DeliveryState::Delivered => told.state = "succeeded".into(),
                Some(delivery) if delivery.state == DeliveryState::Failed => {
                    told.state = "failed".into();
                    let message = delivery.error.unwrap_or_default();
                    let error = JobError { code: "delivery_failed".into(), message, retryable: false };
                    told.error = Some(view::error(error));
                }
                _ => {}
            }
        }
    }
    Ok(told)
}

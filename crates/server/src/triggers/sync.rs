//! Waits for the runs of `sync` triggers on behalf of the request that caused the event.

use std::time::Duration;

use domain::limits::CALL_TIMEOUT_DEFAULT_S;
use domain::queue::call::CallFailure;
use domain::{JobError, JobState, TenantId};
use engine::queue::long_poll;
use engine::queue::long_poll::SyncRun;
use store::triggers::deliveries::DeliveryState;
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::runs::RunOutcome;
use wire::SyncRunView;

use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

/// Returns the runs of `sync` triggers, waiting for them. Returns at once without such triggers.
///
/// The event is already stored: if the runs cannot be read, they are reported as pending and the request succeeds.
pub(crate) async fn runs(state: &AppState, tenant: TenantId, waited: Vec<AwaitedRun>) -> Vec<SyncRunView> {
    if waited.is_empty() {
        return Vec::new();
    }
    let runs = wait_for_runs(state, tenant, waited.clone()).await;
    runs.unwrap_or_else(|_| waited.into_iter().map(pending).collect())
}

async fn wait_for_runs(
    state: &AppState,
    tenant: TenantId,
    waited: Vec<AwaitedRun>,
) -> Result<Vec<SyncRunView>, ApiError> {
    let wait = Duration::from_secs(CALL_TIMEOUT_DEFAULT_S as u64);
    let runs = long_poll::runs(&state.store, tenant, waited, wait, state.stopping.cancelled()).await?;
    runs.into_iter().map(run_view).collect()
}

/// Returns the runs of a hook's `sync` trigger, or the error of the first run that did not succeed.
pub(crate) async fn hook_runs(
    state: &AppState,
    tenant: TenantId,
    waited: Vec<AwaitedRun>,
) -> Result<Vec<SyncRunView>, ApiError> {
    if waited.is_empty() {
        return Ok(Vec::new());
    }
    let wait = Duration::from_secs(CALL_TIMEOUT_DEFAULT_S as u64);
    let runs = long_poll::runs(&state.store, tenant, waited, wait, state.stopping.cancelled()).await;
    let runs = runs.map_err(|error| ApiError::from(error).after_a_change())?;
    for job in runs.iter().filter_map(|sync| sync.job.as_ref()).filter(|job| job.state.is_terminal()) {
        // The caller is still here, so the result is not abandoned.
        if let Err(error) = state.store.end_call(job.id).await {
            tracing::warn!(job = %job.id, %error, "cannot end the call of a hook");
        }
    }
    if let Some(failure) = runs.iter().find_map(|sync| failure_of(sync, state.stopping.is_cancelled())) {
        return Err(failure);
    }
    runs.into_iter().map(run_view).collect()
}

/// Returns the error for the caller of a run that did not succeed.
fn failure_of(sync: &SyncRun, is_stopping: bool) -> Option<ApiError> {
    let job = sync.job.as_ref();
    let failed = |error: &JobError| {
        let detail = if error.message.is_empty() { &error.code } else { &error.message };
        let (job, shown) = (job.map(|job| job.id), Some(view::error(error.clone())));
        Some(ApiError::call_failed(job, CallFailure::of(error), detail, shown))
    };
    let unfinished = || {
        let (failure, detail) = match is_stopping {
            true => (CallFailure::Unavailable, "the server is stopping"),
            false => (CallFailure::TimedOut, "the run did not finish in time"),
        };
        Some(ApiError::call_failed(job.map(|job| job.id), failure, detail, None))
    };
    let Some(run) = &sync.run else { return unfinished() };
    match run.outcome {
        RunOutcome::Done | RunOutcome::Skipped => None,
        RunOutcome::Failed => run.error.as_ref().and_then(failed),
        RunOutcome::Job(_) => match job {
            Some(job) if job.state == JobState::Succeeded => None,
            Some(job) if job.state == JobState::Failed => job.error.as_ref().and_then(failed),
            Some(job) if job.state.is_terminal() => {
                Some(ApiError::call_failed(job.id, CallFailure::Unavailable, "the job was canceled", None))
            }
            _ => unfinished(),
        },
        RunOutcome::Delivery(_) => match sync.delivery.as_ref().map(|whole| &whole.delivery) {
            Some(delivery) if delivery.state == DeliveryState::Delivered => None,
            Some(delivery) if delivery.state == DeliveryState::Failed => {
                let message = delivery.error.clone().unwrap_or_default();
                failed(&JobError { code: "delivery_failed".into(), message, retryable: true })
            }
            _ => unfinished(),
        },
    }
}

fn pending(waited: AwaitedRun) -> SyncRunView {
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

fn run_view(sync: SyncRun) -> Result<SyncRunView, ApiError> {
    let SyncRun { waited, run, job, delivery } = sync;
    let mut run_view = pending(waited);
    let Some(run) = run else { return Ok(run_view) };
    match run.outcome {
        RunOutcome::Done => {
            run_view.state = "succeeded".into();
            run_view.result = run.ran.and_then(|ran| ran.result).map(view::raw).transpose()?;
        }
        RunOutcome::Failed => {
            run_view.state = "failed".into();
            run_view.error = run.error.map(view::error);
        }
        RunOutcome::Skipped => run_view.state = "skipped".into(),
        RunOutcome::Job(id) => {
            run_view.job_id = Some(id.uuid());
            if let Some(job) = job.filter(|job| job.state.is_terminal()) {
                run_view.state = job.state.to_string();
                run_view.result = job.result.map(view::raw).transpose()?;
                run_view.error = job.error.map(view::error);
            }
        }
        RunOutcome::Delivery(id) => {
            run_view.delivery_id = Some(id);
            match delivery.map(|whole| whole.delivery) {
                Some(delivery) if delivery.state == DeliveryState::Delivered => run_view.state = "succeeded".into(),
                Some(delivery) if delivery.state == DeliveryState::Failed => {
                    run_view.state = "failed".into();
                    let message = delivery.error.unwrap_or_default();
                    let error = JobError { code: "delivery_failed".into(), message, retryable: false };
                    run_view.error = Some(view::error(error));
                }
                _ => {}
            }
        }
    }
    Ok(run_view)
}

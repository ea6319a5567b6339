//! Signals: what is happening to one job (S1). Derived from the job; a worker refines it.

use axum::Json;
use axum::extract::State;
use domain::{JobState, Right};
use serde_json::json;
use serde_json::value::to_raw_value;
use store::jobs::get::StoredJob;
use store::jobs::signal::{Signaled, StoredSignal};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{EtaRange, NextAction, SignalUpdate, SignalView};

use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::{JsonBody, PathJob};
use crate::state::AppState;
use crate::validate::signal::change;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get, put))
}

/// What is happening to a job.
#[utoipa::path(get, path = "/jobs/{id}/signal", tag = "signals", params(("id" = Uuid, Path)),
    responses((status = 200, body = SignalView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
) -> Result<Json<SignalView>, ApiError> {
    let job = state.visible_job(&principal, id).await?;
    let stored = state.store.stored_signal(principal.tenant, id).await?.unwrap_or_default();
    let stored = StoredSignal {
        payload: stored.payload.filter(|_| principal.reads(Right::ReadPayloads, &job)),
        last_known_outcome: stored.last_known_outcome.filter(|_| principal.reads(Right::ReadResults, &job)),
        diagnostics: stored.diagnostics.filter(|_| principal.reads(Right::ReadLogs, &job)),
        ..stored
    };
    Ok(Json(signal(job, stored)?))
}

/// A worker says how its job goes. A stale epoch is refused.
#[utoipa::path(put, path = "/jobs/{id}/signal", tag = "signals", params(("id" = Uuid, Path)),
    request_body = SignalUpdate, responses((status = 200, body = SignalView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    JsonBody(update): JsonBody<SignalUpdate>,
) -> Result<Json<SignalView>, ApiError> {
    state.check_reached(&principal, id).await?;
    match state.store.signal(principal.tenant, id, change(update)?).await? {
        // Whoever holds the claim sees all of what it says.
        Signaled::Applied => {
            let job = state.store.job(principal.tenant, id).await?.ok_or_else(|| ApiError::not_found("job"))?;
            let stored = state.store.stored_signal(principal.tenant, id).await?.unwrap_or_default();
            Ok(Json(signal(job, stored)?))
        }
        Signaled::Refused(refusal) => Err(ApiError::refused(refusal)),
        Signaled::NotFound => Err(ApiError::not_found("job")),
    }
}

fn signal(job: StoredJob, stored: StoredSignal) -> Result<SignalView, ApiError> {
    let kind = match job.state {
        JobState::Scheduled | JobState::Queued => "queued",
        JobState::Loading | JobState::Working if job.phase.is_some() => "phase",
        JobState::Loading | JobState::Working => "started",
        JobState::Succeeded => "succeeded",
        JobState::Failed => "failed",
        JobState::Canceled => "canceled",
    };
    let running = job.state.is_claimed();
    let summary = stored.summary.filter(|_| running).unwrap_or_else(|| summary(&job));
    let diagnostics = match stored.diagnostics {
        Some(diagnostics) => view::raw(diagnostics)?,
        None => to_raw_value(&json!({ "worker": job.worker.map(|worker| worker.uuid()), "attempt": job.attempt }))
            .expect("plain data has a JSON form"),
    };
    let next_actions: Option<Vec<NextAction>> =
        stored.next_actions.and_then(|actions| serde_json::from_str(&actions).ok());
    let updated_at = stored.updated_at.map_or(job.updated_at, |at| at.max(job.updated_at));
    Ok(SignalView {
        job_id: job.id.uuid(),
        kind: kind.into(),
        phase: job.phase.unwrap_or_else(|| "unknown".into()),
        summary,
        eta_seconds: stored.eta_s.filter(|_| running).map(|eta_s| EtaRange { p50: eta_s, p90: eta_s }),
        last_known_outcome: stored.last_known_outcome.map(view::raw).transpose()?,
        next_actions: next_actions.unwrap_or_default(),
        diagnostics,
        predicted: None,
        payload: stored.payload.map(view::raw).transpose()?,
        progress: job.progress,
        run: job.run,
        version: job.version,
        created_at: view::time(job.created_at),
        updated_at: view::time(updated_at),
    })
}

/// One sentence, for when the worker has said nothing.
fn summary(job: &StoredJob) -> String {
    let error = job.error.as_ref().map(|error| error.code.as_str());
    match (job.state, error) {
        (JobState::Scheduled, Some(code)) => {
            format!("Attempt {} failed with {code}; it will be tried again.", job.attempt)
        }
        (JobState::Scheduled, None) => format!("Scheduled for {}.", view::time(job.run_at)),
        (JobState::Queued, _) => format!("Waiting in {}.", job.lane.queue),
        (JobState::Loading, _) => match job.affinity() {
            Some(affinity) => format!("A worker is loading {affinity}."),
            None => "A worker is loading what it needs.".into(),
        },
        (JobState::Working, _) => format!("A worker is on attempt {} of {}.", job.attempt, job.max_attempts),
        (JobState::Succeeded, _) => format!("Succeeded on attempt {}.", job.attempt),
        (JobState::Failed, Some(code)) => format!("Failed with {code} on attempt {}.", job.attempt),
        (JobState::Failed, None) => format!("Failed on attempt {}.", job.attempt),
        (JobState::Canceled, _) => "Canceled.".into(),
    }
}

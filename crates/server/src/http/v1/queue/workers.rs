//! Workers: register, heartbeat, claim, settle, drain and deregister.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::queue::long_poll;
use store::queue::claim::Claimed;
use store::queue::settle::{SettleStatus, Settled};
use store::queue::workers::heartbeat::Heartbeat;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{
    ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeStatus, OutcomeView, Page, SettleRequest,
    SettleView, WorkerRegistered, WorkerRequest, WorkerView,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathWorker};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::queue::outcome::outcomes;
use crate::validate::queue::worker::{affinity, max, new_worker, wait};
use crate::view;

/// Heartbeats per lease: two can be lost without losing the lease.
const HEARTBEATS_PER_LEASE: f64 = 3.0;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(register, list))
        .routes(routes!(remove))
        .routes(routes!(heartbeat))
        .routes(routes!(claim))
        .routes(routes!(settle))
        .routes(routes!(drain))
}

/// Register a worker.
///
/// Returns the worker's id, its lease and the heartbeat interval. Not idempotent: every request registers a new worker.
#[utoipa::path(post, path = "/api/v1/workers", tag = "workers", request_body = WorkerRequest,
    responses((status = 201, body = WorkerRegistered)))]
async fn register(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<WorkerRequest>,
) -> Result<(StatusCode, Json<WorkerRegistered>), ApiError> {
    let worker = new_worker(request)?;
    worker.queues.iter().try_for_each(|queue| principal.check_queue(queue))?;
    let lease_s = worker.lease_ms / 1_000;
    let id = state.store.register_worker(principal.tenant, worker).await?.uuid();
    let heartbeat_s = lease_s as f64 / HEARTBEATS_PER_LEASE;
    Ok((StatusCode::CREATED, Json(WorkerRegistered { id, lease_s, heartbeat_s })))
}

/// List live workers, newest first.
#[utoipa::path(get, path = "/api/v1/workers", tag = "workers", params(PageQuery),
    responses((status = 200, body = Page<WorkerView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<WorkerView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::worker(query.cursor.as_deref())?;
    let workers = state.store.list_workers(principal.tenant, after, limit + 1).await?;
    Ok(Json(page(workers, limit, |last| cursor::after_worker(last.worker.id)).map(view::worker)))
}

/// Renew the lease of a worker.
///
/// Returns the jobs to cancel and whether the worker is draining. With `wait_s`, responds as soon as there is a
/// cancellation or a drain. Returns 410 if the lease has expired; the worker must then register again.
#[utoipa::path(post, path = "/api/v1/workers/{id}/heartbeat", tag = "workers", params(("id" = Uuid, Path)),
    request_body = Option<HeartbeatRequest>, responses((status = 200, body = HeartbeatView)))]
async fn heartbeat(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
    OptionalJson(request): OptionalJson<HeartbeatRequest>,
) -> Result<Json<HeartbeatView>, ApiError> {
    let (affinity, wait) = (affinity(request.affinity.as_deref())?, wait(request.wait_s)?);
    state.check_worker(&principal, id).await?;
    let stop = state.ended(&principal);
    match long_poll::heartbeat(&state.store, principal.tenant, id, affinity, wait, stop).await? {
        Heartbeat::Alive { lease_until, cancel, drain } => Ok(Json(HeartbeatView {
            lease_until: view::time(lease_until),
            cancel: cancel.into_iter().map(|job| job.uuid()).collect(),
            drain,
        })),
        Heartbeat::LeaseExpired => Err(ApiError::worker_gone()),
        Heartbeat::NotFound => Err(ApiError::not_found("worker")),
    }
}

/// Claim jobs for a worker.
///
/// With `wait_s`, waits until a job is available. Each claimed job carries a fencing token (`epoch`). Returns 410 if
/// the worker's lease has expired.
#[utoipa::path(post, path = "/api/v1/workers/{id}/claim", tag = "workers", params(("id" = Uuid, Path)),
    request_body = ClaimRequest, responses((status = 200, body = ClaimView)))]
async fn claim(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
    JsonBody(request): JsonBody<ClaimRequest>,
) -> Result<Json<ClaimView>, ApiError> {
    let (max, wait) = (max(request.max)?, wait(request.wait_s)?);
    let affinity = affinity(request.affinity.as_deref())?;
    state.check_worker(&principal, id).await?;
    let stop = state.ended(&principal);
    let (store, serves) = (state.store.clone(), principal.serves().cloned());
    let claim = long_poll::ClaimRequest { store, tenant: principal.tenant, worker: id, serves, max, affinity };
    match long_poll::claim(claim, wait, stop).await? {
        Claimed::Jobs { jobs, .. } => {
            metrics::counter!("windlass_jobs_claimed_total").increment(jobs.len() as u64);
            let mut jobs: Vec<wire::ClaimedJob> = jobs.into_iter().map(view::claimed).collect::<Result<_, _>>()?;
            jobs.iter_mut().for_each(|job| state.spans.claimed(job));
            Ok(Json(ClaimView { jobs }))
        }
        Claimed::LeaseExpired => Err(ApiError::worker_gone()),
        Claimed::NotFound => Err(ApiError::not_found("worker")),
    }
}

/// Report the outcomes of claimed jobs.
///
/// Each outcome is applied independently and has its own status in the response: `applied`, `claim_lost`,
/// `already_ended` or `not_found`. An outcome with a stale `epoch` is not applied.
#[utoipa::path(post, path = "/api/v1/workers/{id}/settle", tag = "workers", params(("id" = Uuid, Path)),
    request_body = SettleRequest, responses((status = 200, body = SettleView)))]
async fn settle(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
    JsonBody(request): JsonBody<SettleRequest>,
) -> Result<Json<SettleView>, ApiError> {
    let outcomes = outcomes(request, state.store.clock().now())?;
    state.check_worker(&principal, id).await?;
    let jobs: Vec<Uuid> = outcomes.iter().map(|outcome| outcome.job.uuid()).collect();
    let traced: Vec<(Uuid, i64, &'static str)> = match state.spans.is_empty() {
        true => Vec::new(),
        false => outcomes.iter().map(|outcome| (outcome.job.uuid(), outcome.epoch.0, outcome.end.as_str())).collect(),
    };
    let settled = match principal.serves() {
        None => state.store.settle(principal.tenant, id, outcomes).await?,
        Some(serves) => state.store.settle_serving(principal.tenant, id, serves, outcomes).await?,
    };
    let statuses = match settled {
        Settled::Results(statuses) => statuses,
        Settled::FactsWithoutSubject(number) => {
            let detail = "requires a job with a subject; settle this job without facts";
            return Err(ApiError::invalid_field(format!("outcomes[{number}].facts"), detail));
        }
        Settled::NoSuchKey(number, key) => {
            let detail = format_args!("names {key}, which the journal of the job does not have; record it first");
            return Err(ApiError::invalid_field(format!("outcomes[{number}].wake"), detail));
        }
        Settled::NoSuchWorker => return Err(ApiError::not_found("worker")),
    };
    traced.into_iter().for_each(|(job, epoch, outcome)| state.spans.settled(job, epoch, outcome));
    let results =
        jobs.into_iter().zip(statuses).map(|(job_id, status)| OutcomeView { job_id, status: outcome_status(status) });
    Ok(Json(SettleView { results: results.collect() }))
}

pub(crate) fn outcome_status(status: SettleStatus) -> OutcomeStatus {
    let (outcome_status, label) = match status {
        SettleStatus::Applied => (OutcomeStatus::Applied, "applied"),
        SettleStatus::ClaimLost => (OutcomeStatus::ClaimLost, "claim_lost"),
        SettleStatus::AlreadyEnded => (OutcomeStatus::AlreadyEnded, "already_ended"),
        SettleStatus::NotFound => (OutcomeStatus::NotFound, "not_found"),
    };
    metrics::counter!("windlass_outcomes_total", "status" => label).increment(1);
    outcome_status
}

/// Drain a worker: it finishes its jobs, claims no more and then stops.
///
/// Idempotent.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = Uuid, Path)),
    responses((status = 204)))]
async fn drain(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
) -> Result<StatusCode, ApiError> {
    state.check_worker(&principal, id).await?;
    no_content(state.store.drain_worker(principal.tenant, id).await?)
}

/// Deregister a worker.
///
/// Its claimed jobs return to their queues without using up an attempt.
#[utoipa::path(delete, path = "/api/v1/workers/{id}", tag = "workers", params(("id" = Uuid, Path)), responses((status = 204)))]
async fn remove(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
) -> Result<StatusCode, ApiError> {
    state.check_worker(&principal, id).await?;
    no_content(state.store.remove_worker(principal.tenant, id).await?)
}

fn no_content(exists: bool) -> Result<StatusCode, ApiError> {
    if exists { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::not_found("worker")) }
}

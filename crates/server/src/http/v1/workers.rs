//! Workers: registration, heartbeat, claim, settle, drain and good-bye (X3, Q6, Q7, Q11).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use engine::waiting;
use store::jobs::claim::Claimed;
use store::jobs::settle::{Settled, Status};
use store::workers::heartbeat::Heartbeat;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{
    ClaimRequest, ClaimView, HeartbeatRequest, HeartbeatView, OutcomeStatus, OutcomeView, Page, SettleRequest,
    SettleView, WorkerRegistered, WorkerRequest, WorkerView,
};

use crate::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathWorker};
use crate::page::page;
use crate::state::AppState;
use crate::validate::outcome::outcomes;
use crate::validate::query::{PageQuery, limit};
use crate::validate::worker::{affinity, max, new_worker, wait};
use crate::view;

/// Heartbeats in a lease: two may be lost.
const HEARTBEATS_PER_LEASE: f64 = 3.0;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(register, list))
        .routes(routes!(remove))
        .routes(routes!(heartbeat))
        .routes(routes!(claim))
        .routes(routes!(settle))
        .routes(routes!(drain))
}

/// A worker comes in.
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

/// Lists living workers, newest first.
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

/// Renews the lease; with `wait_s`, answers as soon as there is a cancel or a drain.
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
    match waiting::heartbeat(&state.store, principal.tenant, id, affinity, wait, stop).await? {
        Heartbeat::Alive { lease_until, cancel, drain } => Ok(Json(HeartbeatView {
            lease_until: view::time(lease_until),
            cancel: cancel.into_iter().map(|job| job.uuid()).collect(),
            drain,
        })),
        Heartbeat::Gone => Err(ApiError::worker_gone()),
        Heartbeat::NotFound => Err(ApiError::not_found("worker")),
    }
}

/// Takes jobs; with `wait_s`, waits for some.
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
    let claim = waiting::Claim { store, tenant: principal.tenant, worker: id, serves, max, affinity };
    match waiting::claim(claim, wait, stop).await? {
        Claimed::Jobs { jobs, .. } => {
            metrics::counter!("windlass_jobs_claimed_total").increment(jobs.len() as u64);
            Ok(Json(ClaimView { jobs: jobs.into_iter().map(view::claimed).collect::<Result<_, _>>()? }))
        }
        Claimed::Gone => Err(ApiError::worker_gone()),
        Claimed::NotFound => Err(ApiError::not_found("worker")),
    }
}

/// Ends attempts. Each outcome stands for itself.
#[utoipa::path(post, path = "/api/v1/workers/{id}/settle", tag = "workers", params(("id" = Uuid, Path)),
    request_body = SettleRequest, responses((status = 200, body = SettleView)))]
async fn settle(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
    JsonBody(request): JsonBody<SettleRequest>,
) -> Result<Json<SettleView>, ApiError> {
    let outcomes = outcomes(request)?;
    state.check_worker(&principal, id).await?;
    let jobs: Vec<Uuid> = outcomes.iter().map(|outcome| outcome.job.uuid()).collect();
    let settled = match principal.serves() {
        None => state.store.settle(principal.tenant, id, outcomes).await?,
        Some(serves) => state.store.settle_serving(principal.tenant, id, serves, outcomes).await?,
    };
    let statuses = match settled {
        Settled::Results(statuses) => statuses,
        Settled::StrayFacts(number) => {
            let detail = "have nowhere to go: the job has no subject; finish it without them";
            return Err(ApiError::invalid_field(format!("outcomes[{number}].facts"), detail));
        }
        Settled::NoSuchWorker => return Err(ApiError::not_found("worker")),
    };
    let results = jobs.into_iter().zip(statuses).map(|(job_id, status)| OutcomeView { job_id, status: told(status) });
    Ok(Json(SettleView { results: results.collect() }))
}

fn told(status: Status) -> OutcomeStatus {
    let (told, label) = match status {
        Status::Applied => (OutcomeStatus::Applied, "applied"),
        Status::ClaimLost => (OutcomeStatus::ClaimLost, "claim_lost"),
        Status::AlreadyEnded => (OutcomeStatus::AlreadyEnded, "already_ended"),
        Status::NotFound => (OutcomeStatus::NotFound, "not_found"),
    };
    metrics::counter!("windlass_outcomes_total", "status" => label).increment(1);
    told
}

/// Asks a worker to take no more work and to stop when it is done.
#[utoipa::path(post, path = "/api/v1/workers/{id}/drain", tag = "workers", params(("id" = Uuid, Path)),
    responses((status = 204)))]
async fn drain(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
) -> Result<StatusCode, ApiError> {
    state.check_worker(&principal, id).await?;
    found(state.store.drain_worker(principal.tenant, id).await?)
}

/// A worker leaves; what it holds goes back without burning an attempt.
#[utoipa::path(delete, path = "/api/v1/workers/{id}", tag = "workers", params(("id" = Uuid, Path)), responses((status = 204)))]
async fn remove(
    State(state): State<AppState>,
    principal: Principal,
    PathWorker(id): PathWorker,
) -> Result<StatusCode, ApiError> {
    state.check_worker(&principal, id).await?;
    found(state.store.remove_worker(principal.tenant, id).await?)
}

fn found(found: bool) -> Result<StatusCode, ApiError> {
    if found { Ok(StatusCode::NO_CONTENT) } else { Err(ApiError::not_found("worker")) }
}

//! Jobs: enqueue, get, list, cancel, retry, history and why.

use std::sync::LazyLock;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use domain::{JobId, Right, TraceContext};
use engine::queue::long_poll;
use metrics::Counter;
use sha2::{Digest, Sha256};
use store::StoreError;
use store::access::tenants::quota::{Admission, AdmissionRequest};
use store::queue::cancel::Canceled;
use store::queue::enqueue::{Accepted, EnqueueReply, Idempotency, NewJob};
use store::queue::retry::Retried;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    BatchAccepted, BatchRequest, CancelByKey, CancelRequest, CancelView, EstimateView, HistoryItem, JobAccepted,
    JobRequest, JobView, Page, RetryRequest, WhyView,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, JsonBytes, OptionalJson, Params, PathJob, header};
use crate::http::v1::queue::artifacts::artifact_view;
use crate::signals;
use crate::state::AppState;
use crate::triggers::depth;
use crate::validate::FieldPath;
use crate::validate::query::{JobQuery, WaitQuery, flag, limit, wait};
use crate::validate::queue::job::{JobBuilder, queue_and_key};
use crate::view;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_KEY_BYTES: usize = 255;
static ENQUEUED: LazyLock<Counter> = LazyLock::new(|| metrics::counter!("windlass_jobs_enqueued_total"));

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(enqueue, list))
        .routes(routes!(enqueue_batch))
        .routes(routes!(cancel_by_key))
        .routes(routes!(estimate))
        .routes(routes!(get))
        .routes(routes!(cancel))
        .routes(routes!(retry))
        .routes(routes!(history))
        .routes(routes!(why))
}

/// Enqueue a job.
///
/// The job is durable when the response arrives. Idempotent with an `Idempotency-Key` or a `unique_key`. Returns 422
/// for an invalid request and 429 if a quota is exhausted.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = JobRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key and body within 24 hours returns the same job.")),
    responses((status = 202, body = JobAccepted), (status = 200, body = JobAccepted, description = "The job already exists")))]
async fn enqueue(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBytes { value, bytes }: JsonBytes<JobRequest>,
) -> Result<(StatusCode, Json<JobAccepted>), ApiError> {
    let idempotency = idempotency(&principal, &headers, &bytes)?;
    drop(bytes);
    let job = traced_builder(&state, &principal, &headers)?.single(value)?;
    principal.check_new_job(&job)?;
    let mut jobs = enqueue_all(&state, &principal, vec![job], idempotency).await?;
    let job = jobs.pop().expect("one job has one answer");
    Ok((status(job.existing), Json(view::accepted(job))))
}

/// Enqueue many jobs atomically: all or none.
///
/// Idempotent with an `Idempotency-Key`. Returns 422 if any job is invalid and 429 if a quota is exhausted.
#[utoipa::path(post, path = "/api/v1/jobs/batch", tag = "jobs", request_body = BatchRequest,
    params(("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key and body within 24 hours returns the same jobs.")),
    responses((status = 202, body = BatchAccepted), (status = 200, body = BatchAccepted, description = "All jobs already exist")))]
async fn enqueue_batch(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBytes { value, bytes }: JsonBytes<BatchRequest>,
) -> Result<(StatusCode, Json<BatchAccepted>), ApiError> {
    let idempotency = idempotency(&principal, &headers, &bytes)?;
    drop(bytes);
    let jobs = traced_builder(&state, &principal, &headers)?.batch(value)?;
    jobs.iter().try_for_each(|job| principal.check_new_job(job))?;
    let jobs = enqueue_all(&state, &principal, jobs, idempotency).await?;
    let all_existing = jobs.iter().all(|job| job.existing);
    let ids = jobs.into_iter().map(|job| job.id.uuid()).collect();
    Ok((status(all_existing), Json(BatchAccepted { ids })))
}

/// Estimate when a job would end.
///
/// The body is that of `POST /api/v1/jobs`. Nothing is enqueued. The estimate is `null` if no worker serves the job, the
/// queue is paused or there is too little evidence; `summary` says which.
#[utoipa::path(post, path = "/api/v1/jobs/estimate", tag = "jobs", request_body = JobRequest,
    responses((status = 200, body = EstimateView)))]
async fn estimate(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<JobRequest>,
) -> Result<Json<EstimateView>, ApiError> {
    let job = builder(&state, &principal, depth::of(&headers)?).single(request)?;
    principal.check_new_job(&job)?;
    Ok(Json(signals::estimate::render(&state.store, &principal, &job).await?))
}

pub(crate) fn builder(state: &AppState, principal: &Principal, depth: i32) -> JobBuilder {
    let (payload_bytes, now) = (state.options.payload_bytes, state.store.clock().now());
    JobBuilder { principal: principal.name.clone(), payload_bytes, now, depth, traceparent: None }
}

/// A builder of jobs that belong to the trace of the request. An invalid header counts as missing, as W3C Trace Context
/// requires.
pub(crate) fn traced_builder(
    state: &AppState,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<JobBuilder, ApiError> {
    let traceparent = headers.get(TRACEPARENT).and_then(|value| TraceContext::parse(value.to_str().ok()?));
    Ok(JobBuilder { traceparent, ..builder(state, principal, depth::of(headers)?) })
}

fn status(existing: bool) -> StatusCode {
    if existing { StatusCode::OK } else { StatusCode::ACCEPTED }
}

async fn enqueue_all(
    state: &AppState,
    principal: &Principal,
    jobs: Vec<NewJob>,
    idempotency: Option<Idempotency>,
) -> Result<Vec<Accepted>, ApiError> {
    let quota_error = check_quota(state, principal, &jobs).await.err();
    let reply = match (quota_error, idempotency) {
        (None, idempotency) => state.store.enqueue(principal.tenant, jobs, idempotency).await?,
        // A repeated request adds nothing, so the quota does not apply: return the earlier response.
        (Some(quota_error), Some(key)) => {
            state.store.enqueued_before(principal.tenant, key).await?.ok_or(quota_error)?
        }
        (Some(quota_error), None) => return Err(quota_error),
    };
    match reply {
        EnqueueReply::Accepted(jobs) => {
            let created = jobs.iter().filter(|job| !job.existing).count();
            ENQUEUED.increment(created as u64);
            Ok(jobs)
        }
        EnqueueReply::KeyReused => Err(ApiError::idempotency_key_reused()),
    }
}

/// Returns 429 if the jobs would exceed a quota of the tenant.
pub(crate) async fn check_quota(state: &AppState, principal: &Principal, jobs: &[NewJob]) -> Result<(), ApiError> {
    let payload_bytes = jobs.iter().map(|job| job.payload.len()).sum();
    match state.store.admit(principal.tenant, AdmissionRequest { jobs: jobs.len(), payload_bytes }).await? {
        Admission::Admitted => Ok(()),
        Admission::Over { quota, limit, retry_s } => Err(ApiError::over_quota(quota, limit, Some(retry_s))),
    }
}

/// Returns the identity of the request for retries: its key and the hash of its body.
pub(crate) fn idempotency(
    principal: &Principal,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<Idempotency>, ApiError> {
    let Some(key) = header(headers, &IDEMPOTENCY_KEY)? else { return Ok(None) };
    if key.is_empty() || key.len() > IDEMPOTENCY_KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
        let detail = format_args!("must have 1 to {IDEMPOTENCY_KEY_BYTES} visible ASCII characters");
        return Err(ApiError::invalid_header("Idempotency-Key", detail));
    }
    // Idempotency keys are scoped to the token.
    let key = principal.token().map_or_else(|| key.to_owned(), |token| format!("{} {key}", token.id));
    Ok(Some(Idempotency { key, body_hash: Sha256::digest(body).into() }))
}

/// List jobs, newest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobQuery), responses((status = 200, body = Page<JobView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<JobQuery>,
) -> Result<Json<Page<JobView>>, ApiError> {
    let before = cursor::job(query.cursor.as_deref())?;
    let limit = limit(query.limit.as_deref())?;
    let mut filter = principal.narrow(query.filter()?);
    if flag("mine", &query.mine)? {
        filter.principal = Some(principal.name.to_string());
    }
    let page = state.store.list_jobs(principal.tenant, filter, before, limit).await?;
    Ok(Json(Page {
        items: page.jobs.into_iter().map(|job| view::job(job, &principal)).collect::<Result<_, _>>()?,
        next_cursor: page.next.map(cursor::after_job),
        partial: page.partial,
    }))
}

/// Get a job.
///
/// With `wait`, responds when the job has ended or the time is over. A worker that names its claim reads the results of the
/// jobs that the claimed job needs or has started, at once.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs",
    params(("id" = Uuid, Path), WaitQuery,
        ("X-Windlass-Claim" = Option<String>, Header, description = "A claim of the caller as `WORKER/JOB`, with the ids of both.")),
    responses((status = 200, body = JobView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
    Params(query): Params<WaitQuery>,
) -> Result<Json<JobView>, ApiError> {
    let wait = wait(query.wait.as_deref())?;
    if !principal.has(Right::ReadResults)
        && let Some(tenant) = state.readable_by_claim(&principal, &headers, id).await?
    {
        let job = state.store.job(tenant, id).await?.ok_or_else(|| ApiError::not_found("job"))?;
        return Ok(Json(view::job_with_result(job)?));
    }
    if !wait.is_zero() {
        state.check_visible(&principal, id).await?;
    }
    let job = long_poll::job(&state.store, principal.tenant, id, wait, state.ended(&principal)).await?;
    let job = job.filter(|job| principal.sees(job)).ok_or_else(|| ApiError::not_found("job"))?;
    let artifacts = state.store.list_artifacts(principal.tenant, id).await?.unwrap_or_default();
    let artifacts = Some(artifacts.into_iter().map(artifact_view).collect());
    Ok(Json(JobView { artifacts, ..view::job(job, &principal)? }))
}

/// Cancel a job.
///
/// Idempotent. The job ends at once; the worker of a running job learns of it with its next heartbeat. With
/// `{"compensate": true}` a job with a journal runs once more instead, so that its handler can undo its steps. Returns 409
/// if the job has already succeeded or failed.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", params(("id" = Uuid, Path)),
    request_body = Option<CancelRequest>, responses((status = 200, body = CancelView)))]
async fn cancel(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    OptionalJson(CancelRequest { compensate }): OptionalJson<CancelRequest>,
) -> Result<Json<CancelView>, ApiError> {
    state.check_reached(&principal, id).await?;
    let by = principal.name.to_string();
    canceled(match compensate {
        true => state.store.cancel_with_undo(principal.tenant, id, by).await?,
        false => state.store.cancel(principal.tenant, id, by).await?,
    })
}

/// Cancel the job with a unique key.
///
/// Idempotent. Returns 404 if no job has the key, and 409 if the job has already succeeded or failed.
#[utoipa::path(post, path = "/api/v1/jobs/cancel", tag = "jobs", request_body = CancelByKey,
    responses((status = 200, body = CancelView)))]
async fn cancel_by_key(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<CancelByKey>,
) -> Result<Json<CancelView>, ApiError> {
    let (queue, key) = queue_and_key(&request)?;
    principal.check_queue(&queue)?;
    canceled(state.store.cancel_by_key(principal.tenant, queue, key, principal.name.to_string()).await?)
}

fn canceled(canceled: Canceled) -> Result<Json<CancelView>, ApiError> {
    match canceled {
        Canceled::Canceled(id) => Ok(Json(CancelView { id: id.uuid(), state: "canceled".into() })),
        Canceled::Compensating(id, state) => Ok(Json(CancelView { id: id.uuid(), state: state.to_string() })),
        Canceled::AlreadyEnded(state) => Err(ApiError::already_ended(state)),
        Canceled::Claimed => Err(StoreError::unexpected("cancel skipped a running job").into()),
        Canceled::NotFound => Err(ApiError::not_found("job")),
    }
}

/// Retry an ended job as a new job linked to it.
///
/// Idempotent. A second request with a different payload returns 409, as does a job that has not ended.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/retry", tag = "jobs", params(("id" = Uuid, Path)),
    request_body = Option<RetryRequest>,
    responses((status = 202, body = JobAccepted), (status = 200, body = JobAccepted, description = "The job was already retried"),
        (status = 409, description = "The job has not ended, or was retried with a different payload")))]
async fn retry(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    headers: HeaderMap,
    OptionalJson(request): OptionalJson<RetryRequest>,
) -> Result<(StatusCode, Json<JobAccepted>), ApiError> {
    let by = depth::caller(&principal, &headers)?;
    state.check_reached(&principal, id).await?;
    let payload = match request.payload {
        Some(payload) => Some(builder(&state, &principal, by.depth).payload(FieldPath::Body, Some(payload))?),
        None => None,
    };
    match state.store.retry_job(principal.tenant, id, payload, by).await? {
        Retried::Created(job) => {
            metrics::counter!("windlass_jobs_enqueued_total").increment(1);
            Ok((StatusCode::ACCEPTED, Json(view::accepted(job))))
        }
        Retried::AlreadyRetried(again) => Ok((StatusCode::OK, Json(retried_view(&state, &principal, again).await?))),
        Retried::OtherPayload(again) => Err(ApiError::already_retried("job", format_args!("job {again}"))),
        Retried::NotEnded(now) => Err(ApiError::not_ended(now)),
        Retried::NotFound => Err(ApiError::not_found("job")),
    }
}

async fn retried_view(state: &AppState, principal: &Principal, again: JobId) -> Result<JobAccepted, ApiError> {
    let job = state.store.job(principal.tenant, again).await?;
    job.as_ref().map(view::accepted_before).ok_or_else(|| ApiError::not_found("job"))
}

/// List the history of a job, oldest first.
///
/// The history outlives the job: it is kept for `--history-retention-days` (default: 90).
#[utoipa::path(get, path = "/api/v1/jobs/{id}/history", tag = "jobs", params(("id" = Uuid, Path)),
    responses((status = 200, body = Page<HistoryItem>)))]
pub(crate) async fn history(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
) -> Result<Json<Page<HistoryItem>>, ApiError> {
    state.check_visible(&principal, id).await?;
    let items = state.store.history(principal.tenant, id).await?.ok_or_else(|| ApiError::not_found("job"))?;
    let reads_messages = view::reads_messages(&principal);
    let items = items.into_iter().map(|item| view::history_item(item, reads_messages)).collect();
    Ok(Json(Page { items, next_cursor: None, partial: false }))
}

/// Explain why a job is not running.
///
/// Returns a single reason, with its position and ETA if known.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/why", tag = "jobs", params(("id" = Uuid, Path)),
    responses((status = 200, body = WhyView)))]
pub(crate) async fn why(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
) -> Result<Json<WhyView>, ApiError> {
    state.check_visible(&principal, id).await?;
    let why = state.store.why(principal.tenant, id).await?.ok_or_else(|| ApiError::not_found("job"))?;
    Ok(Json(WhyView {
        reason: why.reason.as_str().into(),
        detail: why.public_detail.filter(|_| !view::reads_messages(&principal)).unwrap_or(why.detail),
        until: why.until.map(view::time),
        position: why.position,
        eta_seconds: why.eta_s,
    }))
}

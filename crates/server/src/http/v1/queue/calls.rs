//! Synchronous calls: one request enqueues a job and returns its result. Also lists results that no caller received.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use domain::limits::CALL_GRACE_MS;
use domain::queue::call::CallFailure;
use domain::queue::why::Reason;
use domain::{JobId, JobState};
use engine::Engine;
use engine::queue::long_poll;
use store::StoreError;
use store::queue::calls::list::AbandonedExecution;
use store::queue::cancel::Canceled;
use store::queue::enqueue::NewJob;
use store::queue::get::StoredJob;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{AbandonedView, CallView, JobRequest, Page};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params};
use crate::http::v1::queue::jobs::{IDEMPOTENCY_KEY, check_quota, traced_builder};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(call)).routes(routes!(abandoned))
}

/// Run a job once and return its result.
///
/// An error names the job and carries its error. Its status tells how the call failed: 422 the handler refused the
/// input, 502 the handler failed or its worker was lost, 503 no worker was available, 504 timeout, 507 out of
/// resources, 500 the handler crashed. Not idempotent: `Idempotency-Key` is refused.
#[utoipa::path(post, path = "/api/v1/calls", tag = "calls", request_body = JobRequest, responses((status = 200, body = CallView)))]
async fn call(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<JobRequest>,
) -> Result<Json<CallView>, ApiError> {
    if headers.contains_key(&IDEMPOTENCY_KEY) {
        let detail = "is not supported by calls, which run once per request; enqueue the job and wait for it instead";
        return Err(ApiError::invalid_header("Idempotency-Key", detail));
    }
    let (job, wait_s) = traced_builder(&state, &principal, &headers)?.call(request)?;
    call_view(Call::start(&state, &principal, job, wait_s).await?.result().await?)
}

/// A job with a caller that waits for its result.
pub(crate) struct Call {
    pub(crate) job: JobId,
    state: AppState,
    principal: Principal,
    wait: Duration,
    guard: CallGuard,
}

impl Call {
    pub(crate) async fn start(
        state: &AppState,
        principal: &Principal,
        job: NewJob,
        wait_s: i64,
    ) -> Result<Self, ApiError> {
        principal.check_new_job(&job)?;
        check_quota(state, principal, std::slice::from_ref(&job)).await?;
        // A caller that times out ends its call itself. The grace period leaves time for that.
        let created = state.store.make_call(principal.tenant, job, wait_s * 1_000 + CALL_GRACE_MS).await?;
        metrics::counter!("windlass_calls_total").increment(1);
        Ok(Self {
            job: created.id,
            state: state.clone(),
            principal: principal.clone(),
            wait: Duration::from_secs(wait_s as u64),
            guard: CallGuard { engine: state.engine.clone(), job: Some(created.id) },
        })
    }

    /// Waits until the job has ended, in any state.
    pub(crate) async fn result(self) -> Result<StoredJob, ApiError> {
        let job = self.job;
        self.wait_until_ended().await.map_err(|failure| failure.after_a_change().of_call(job))
    }

    async fn wait_until_ended(self) -> Result<StoredJob, ApiError> {
        let Self { job: id, state, principal, wait, guard } = self;
        let stop = state.stopping.cancelled();
        let job = long_poll::job(&state.store, principal.tenant, id, wait, stop).await?;
        let job = job.ok_or_else(|| ApiError::not_found("job"))?;
        if job.state.is_terminal() {
            guard.finish(&state).await;
            return Ok(job);
        }
        let stopping = state.stopping.is_cancelled();
        let why = state.store.why(principal.tenant, id).await?;
        // A caller that gets "unavailable" may turn elsewhere, so a job that still waits must not run as well.
        let reason = if stopping { "the server of its caller stopped" } else { "its caller timed out" };
        match state.store.cancel_waiting(principal.tenant, id, reason.into()).await? {
            Canceled::Canceled(_) => {}
            // Its result will be stored as abandoned.
            Canceled::Claimed => {
                return Err(ApiError::call_failed(
                    id,
                    CallFailure::TimedOut,
                    "the handler did not finish in time",
                    None,
                ));
            }
            Canceled::Compensating(..) | Canceled::AlreadyEnded(_) | Canceled::NotFound => {
                let job = state.store.job(principal.tenant, id).await?;
                guard.finish(&state).await;
                return job.ok_or_else(|| ApiError::not_found("job"));
            }
        }
        guard.finish(&state).await;
        if stopping {
            return Err(ApiError::call_failed(id, CallFailure::Unavailable, "the server is stopping", None));
        }
        let is_unavailable = |reason: Reason| matches!(reason, Reason::NoWorker | Reason::QueuePaused);
        Err(match why {
            Some(why) if is_unavailable(why.reason) => {
                ApiError::call_failed(id, CallFailure::Unavailable, &why.detail, None)
            }
            _ => ApiError::call_failed(id, CallFailure::TimedOut, "the job was not started in time", None),
        })
    }
}

fn call_view(job: StoredJob) -> Result<Json<CallView>, ApiError> {
    match (job.state, job.error) {
        (JobState::Succeeded, _) => {
            Ok(Json(CallView { job_id: job.id.uuid(), result: job.result.map(view::raw).transpose()? }))
        }
        (_, Some(error)) if job.state == JobState::Failed => {
            let failure = CallFailure::of(&error);
            let detail = if error.message.is_empty() { error.code.clone() } else { error.message.clone() };
            Err(ApiError::call_failed(job.id, failure, &detail, Some(view::error(error))))
        }
        _ => Err(ApiError::call_failed(job.id, CallFailure::Unavailable, "the job was canceled", None)),
    }
}

/// The waiting caller. If the connection breaks, this is dropped with the request, and the result is stored as
/// abandoned.
struct CallGuard {
    engine: Arc<Engine>,
    job: Option<JobId>,
}

impl CallGuard {
    async fn finish(mut self, state: &AppState) {
        let Some(job) = self.job.take() else { return };
        if let Err(error) = state.store.end_call(job).await {
            // The call expires by itself; its result is then stored as abandoned although the caller received it.
            tracing::warn!(%job, %error, "cannot end a call");
        }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if let Some(job) = self.job {
            self.engine.abandon_call(job);
        }
    }
}

/// List results of calls that no caller received, newest first.
///
/// Results are stored for seven days.
#[utoipa::path(get, path = "/api/v1/abandoned", tag = "calls", params(PageQuery),
    responses((status = 200, body = Page<AbandonedView>)))]
async fn abandoned(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<AbandonedView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::abandoned(query.cursor.as_deref())?;
    let found = state.store.list_abandoned(principal.tenant, before, limit + 1).await?;
    Ok(Json(page(found, limit, |last| cursor::after_abandoned(last.job)).try_map(execution)?))
}

fn execution(execution: AbandonedExecution) -> Result<AbandonedView, StoreError> {
    Ok(AbandonedView {
        job_id: execution.job.uuid(),
        queue: execution.queue,
        kind: execution.kind,
        state: execution.state,
        result: execution.result.map(view::raw).transpose()?,
        error: execution.error.map(view::error),
        principal: execution.principal,
        called_at: view::time(execution.called_at),
        ended_at: execution.ended_at.map(view::time),
        abandoned_at: view::time(execution.abandoned_at),
    })
}

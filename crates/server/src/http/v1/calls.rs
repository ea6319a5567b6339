//! Synchronous calls: a job and its answer in one request, and the answers nobody waited for (Q5).

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use domain::call::CallFailure;
use domain::limits::CALL_GRACE_MS;
use domain::why::Reason;
use domain::{JobId, JobState};
use engine::{Engine, waiting};
use store::StoreError;
use store::calls::list::AbandonedExecution;
use store::jobs::cancel::Canceled;
use store::jobs::enqueue::NewJob;
use store::jobs::get::StoredJob;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{AbandonedView, CallView, JobRequest, Page};

use crate::auth::Principal;
use crate::cursor;
use crate::depth;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params};
use crate::http::v1::jobs::{IDEMPOTENCY_KEY, check_quota};
use crate::page::page;
use crate::state::AppState;
use crate::validate::job::Maker;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(call)).routes(routes!(abandoned))
}

/// Runs a job once and answers with its result.
///
/// A failure is told by its code: 422 the handler refused, 502 it failed or its worker was lost, 503 nobody was there,
/// 504 it took too long, 507 it ran out of resources, 500 the handler broke. The problem names the job and carries its error.
#[utoipa::path(post, path = "/api/v1/calls", tag = "calls", request_body = JobRequest, responses((status = 200, body = CallView)))]
async fn call(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    JsonBody(request): JsonBody<JobRequest>,
) -> Result<Json<CallView>, ApiError> {
    if headers.contains_key(&IDEMPOTENCY_KEY) {
        let detail =
            "cannot be given with a call, which runs once for each request; enqueue the job and wait for it instead";
        return Err(ApiError::invalid_header("Idempotency-Key", detail));
    }
    let payload_bytes = state.options.payload_bytes;
    let (now, depth) = (state.store.clock().now(), depth::of(&headers)?);
    let maker = Maker { principal: principal.name.clone(), payload_bytes, now, depth };
    let (job, wait_s) = maker.call(request)?;
    answer(Call::make(&state, &principal, job, wait_s).await?.answered().await?)
}

/// A job that somebody waits for.
pub(crate) struct Call {
    pub(crate) job: JobId,
    state: AppState,
    principal: Principal,
    wait: Duration,
    caller: Caller,
}

impl Call {
    pub(crate) async fn make(
        state: &AppState,
        principal: &Principal,
        job: NewJob,
        wait_s: i64,
    ) -> Result<Self, ApiError> {
        principal.check_queue(&job.queue)?;
        check_quota(state, principal, std::slice::from_ref(&job)).await?;
        // A caller that is still there when its time is up takes its note back itself; the grace is for that.
        let made = state.store.make_call(principal.tenant, job, wait_s * 1_000 + CALL_GRACE_MS).await?;
        metrics::counter!("windlass_calls_total").increment(1);
        Ok(Self {
            job: made.id,
            state: state.clone(),
            principal: principal.clone(),
            wait: Duration::from_secs(wait_s as u64),
            caller: Caller { engine: state.engine.clone(), job: Some(made.id) },
        })
    }

    /// The job once it has ended, however it did.
    pub(crate) async fn answered(self) -> Result<StoredJob, ApiError> {
        let job = self.job;
        self.ended().await.map_err(|failure| failure.after_a_change().of_call(job))
    }

    async fn ended(self) -> Result<StoredJob, ApiError> {
        let Self { job: id, state, principal, wait, caller } = self;
        let stop = state.stopping.cancelled();
        let job = waiting::job(&state.store, principal.tenant, id, wait, stop).await?;
        let job = job.ok_or_else(|| ApiError::not_found("job"))?;
        if job.state.is_terminal() {
            caller.has_its_answer(&state).await;
            return Ok(job);
        }
        let stopping = state.stopping.is_cancelled();
        let why = state.store.why(principal.tenant, id).await?;
        // Whoever hears that nobody was there asks elsewhere: what still waits must not be done as well.
        let reason = if stopping { "its caller's server stopped" } else { "its caller's time was up" };
        match state.store.cancel_waiting(principal.tenant, id, reason.into()).await? {
            Canceled::Canceled(_) => {}
            // What it answers is kept.
            Canceled::AtWork => {
                return Err(ApiError::call_failed(id, CallFailure::TimedOut, "the handler is not done yet", None));
            }
            Canceled::AlreadyEnded(_) | Canceled::NotFound => {
                let job = state.store.job(principal.tenant, id).await?;
                caller.has_its_answer(&state).await;
                return job.ok_or_else(|| ApiError::not_found("job"));
            }
        }
        caller.has_its_answer(&state).await;
        if stopping {
            return Err(ApiError::call_failed(id, CallFailure::Unavailable, "the server is stopping", None));
        }
        let nobody = |reason: Reason| matches!(reason, Reason::NoWorker | Reason::QueuePaused);
        Err(match why {
            Some(why) if nobody(why.reason) => ApiError::call_failed(id, CallFailure::Unavailable, &why.detail, None),
            _ => ApiError::call_failed(id, CallFailure::TimedOut, "its turn did not come in time", None),
        })
    }
}

fn answer(job: StoredJob) -> Result<Json<CallView>, ApiError> {
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

/// Whoever waits. If the connection breaks, this is dropped with the request: the answer is then kept.
struct Caller {
    engine: Arc<Engine>,
    job: Option<JobId>,
}

impl Caller {
    async fn has_its_answer(mut self, state: &AppState) {
        let Some(job) = self.job.take() else { return };
        if let Err(error) = state.store.end_call(job).await {
            // The note runs out by itself; the answer is then kept although it was heard.
            tracing::warn!(%job, %error, "a call's note could not be taken back");
        }
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(job) = self.job {
            self.engine.abandon_call(job);
        }
    }
}

/// Lists answers to calls whose caller was gone, newest first. They are kept for seven days.
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

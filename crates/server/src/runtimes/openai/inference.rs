//! Chat completions, completions and embeddings: each is a synchronous call on the pool that serves the model, streamed
//! on request.

use std::pin::Pin;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::limits::CALL_TIMEOUT_MAX_S;
use domain::queue::call::CallFailure;
use domain::{Epoch, JobId, JobState};
use engine::RelaySubscription;
use futures_util::stream;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::queue::get::StoredJob;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::JobRequest;

use super::OpenAiError;
use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::JsonBytes;
use crate::http::v1::queue::calls::Call;
use crate::state::AppState;
use crate::triggers::depth;
use crate::validate::queue::job::JobBuilder;

/// Response header with the id of the job.
const JOB: HeaderName = HeaderName::from_static("x-windlass-job");

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(chat)).routes(routes!(completions)).routes(routes!(embeddings))
}

/// The members read here. The others are passed to the model.
#[derive(Deserialize)]
struct InferenceRequest {
    model: String,
    #[serde(default)]
    stream: Option<bool>,
}

/// Create a chat completion.
///
/// Streamed with `stream: true`.
#[utoipa::path(post, path = "/openai/v1/chat/completions", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn chat(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<InferenceRequest>,
) -> Result<Response, OpenAiError> {
    infer(&state, &principal, depth::of(&headers)?, "openai.chat.completions", body).await
}

/// Create a completion.
///
/// Streamed with `stream: true`.
#[utoipa::path(post, path = "/openai/v1/completions", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn completions(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<InferenceRequest>,
) -> Result<Response, OpenAiError> {
    infer(&state, &principal, depth::of(&headers)?, "openai.completions", body).await
}

/// Create embeddings.
///
/// Runs as a job of the pool's queue; the request waits for its result.
#[utoipa::path(post, path = "/openai/v1/embeddings", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn embeddings(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<InferenceRequest>,
) -> Result<Response, OpenAiError> {
    infer(&state, &principal, depth::of(&headers)?, "openai.embeddings", body).await
}

async fn infer(
    state: &AppState,
    principal: &Principal,
    depth: i32,
    kind: &str,
    JsonBytes { value: request_value, bytes }: JsonBytes<InferenceRequest>,
) -> Result<Response, OpenAiError> {
    let models = engine::runtimes::openai::models(&state.store, principal.tenant).await?;
    let model = models.get(&request_value.model).filter(|model| principal.reaches(&model.queue));
    let Some(model) = model else { return Err(OpenAiError::no_model(&request_value.model)) };
    let payload = String::from_utf8(bytes.into()).ok().and_then(|text| RawValue::from_string(text).ok());
    let now = state.store.clock().now();
    // The run is named and subscribed before the job exists, so that the stream misses nothing.
    let run = format!("call-{}", store::db::clock::new_uuid(now).simple());
    let request = JobRequest {
        queue: model.queue.to_string(),
        kind: kind.into(),
        payload,
        affinity: Some(request_value.model.clone()),
        run: Some(run.clone()),
        timeout_s: Some(CALL_TIMEOUT_MAX_S),
        ..JobRequest::default()
    };
    let payload_bytes = state.options.payload_bytes;
    let builder = JobBuilder { principal: principal.name.clone(), payload_bytes, now, depth, traceparent: None };
    let (job, wait_s) = builder.call(request)?;
    let subscription = (request_value.stream == Some(true)).then(|| state.engine.relay().subscribe(&run));
    let call = Call::start(state, principal, job, wait_s).await?;
    let id = call.job;
    match subscription {
        Some(subscription) => stream_response(id, StreamedCall::new(subscription, call.result())).await,
        None => {
            let body = result(call.result().await?)?;
            Ok(([(CONTENT_TYPE, "application/json")], [(JOB, id.to_string())], body).into_response())
        }
    }
}

/// Returns the model's response, or the error of its job.
fn result(job: StoredJob) -> Result<String, OpenAiError> {
    if job.state == JobState::Succeeded {
        return Ok(job.result.unwrap_or_else(|| "null".into()));
    }
    let Some(fault) = job.error else {
        return Err(OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, "canceled", "the job was canceled", None));
    };
    if let Some((status, body)) = engine::runtimes::openai::refusal(&fault)
        && let Ok(status) = StatusCode::from_u16(status)
    {
        return Err(OpenAiError::from_model(status, body.get()));
    }
    let status = match CallFailure::of(&fault) {
        CallFailure::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        CallFailure::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    Err(OpenAiError::new(status, &fault.code, &fault.message, None))
}

/// A streamed response. If the client disconnects, this is dropped together with the call, and the result is stored as
/// abandoned.
struct StreamedCall {
    subscription: RelaySubscription,
    outcome: Pin<Box<dyn Future<Output = Result<StoredJob, ApiError>> + Send>>,
    /// Bytes sent so far.
    sent_bytes: usize,
    /// The claim that produced them.
    epoch: Option<Epoch>,
}

/// The next part of the stream.
enum Chunk {
    More(Bytes),
    Last(Bytes),
}

/// Waits for the first chunk: until it arrives, a failure can still be reported by the HTTP status.
async fn stream_response(job: JobId, mut streaming: StreamedCall) -> Result<Response, OpenAiError> {
    let first = streaming.next().await?;
    let chunks = stream::unfold(Some((Some(first), streaming)), |at| async move {
        let (first, mut streaming) = at?;
        let chunk = match first {
            Some(chunk) => chunk,
            None => streaming.next().await.unwrap_or_else(|refused| Chunk::Last(refused.event().into())),
        };
        let (chunk, then) = match chunk {
            Chunk::More(chunk) => (chunk, Some((None, streaming))),
            Chunk::Last(chunk) => (chunk, None),
        };
        Some((Ok::<Bytes, std::convert::Infallible>(chunk), then))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, [(JOB, job.to_string())], Body::from_stream(chunks)).into_response())
}

impl StreamedCall {
    fn new(
        subscription: RelaySubscription,
        outcome: impl Future<Output = Result<StoredJob, ApiError>> + Send + 'static,
    ) -> Self {
        Self { subscription, outcome: Box::pin(outcome), sent_bytes: 0, epoch: None }
    }

    async fn next(&mut self) -> Result<Chunk, OpenAiError> {
        let job = tokio::select! {
            biased;
            Some((epoch, chunk)) = self.subscription.next() => {
                self.check_attempt(epoch)?;
                self.sent_bytes += chunk.len();
                return Ok(Chunk::More(chunk));
            }
            job = &mut self.outcome => job?,
        };
        let epoch = job.epoch;
        let result = result(job)?;
        if self.sent_bytes > 0 {
            self.check_attempt(epoch)?;
        }
        let whole = serde_json::from_str::<String>(&result);
        let whole = whole.unwrap_or_else(|_| format!("data: {result}\n\ndata: [DONE]\n\n"));
        // The remainder of the result, or all of it if the job ran on another node.
        let rest = whole.as_bytes().get(self.sent_bytes..).unwrap_or_default();
        Ok(Chunk::Last(Bytes::copy_from_slice(rest)))
    }

    /// Fails if another attempt took over. It starts again from the beginning, but the client already has a part of the
    /// first attempt's response.
    fn check_attempt(&mut self, epoch: Epoch) -> Result<(), OpenAiError> {
        if *self.epoch.get_or_insert(epoch) == epoch {
            return Ok(());
        }
        let message = "the response was interrupted and another attempt started; get the job for the complete result";
        Err(OpenAiError::new(StatusCode::BAD_GATEWAY, "answer_broken_off", message, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R8.
    #[test]
    fn a_streamed_call_breaks_off_when_another_attempt_starts() {
        let subscription = engine::Relay::default().subscribe("call-1");
        let mut streaming = StreamedCall::new(subscription, std::future::pending());
        assert!(streaming.check_attempt(Epoch(1)).is_ok());
        assert!(streaming.check_attempt(Epoch(1)).is_ok());
        let broken = streaming.check_attempt(Epoch(2)).expect_err("another attempt started");
        assert!(broken.event().contains("answer_broken_off"), "{}", broken.event());
    }
}

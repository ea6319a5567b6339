//! Chats, completions and embeddings: each is a synchronous call on the pool that has the model, streamed where asked (Q5).

use std::pin::Pin;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use domain::call::CallFailure;
use domain::limits::CALL_TIMEOUT_S_MAX;
use domain::{Epoch, JobId, JobState};
use engine::Hearing;
use futures_util::stream;
use serde::Deserialize;
use serde_json::value::RawValue;
use store::jobs::get::StoredJob;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::JobRequest;

use super::Refused;
use crate::auth::Principal;
use crate::depth;
use crate::error::ApiError;
use crate::extract::JsonBytes;
use crate::http::v1::calls::Call;
use crate::state::AppState;
use crate::validate::job::Maker;

/// The job behind an answer.
const JOB: HeaderName = HeaderName::from_static("x-windlass-job");

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(chat)).routes(routes!(completions)).routes(routes!(embeddings))
}

/// What is looked at here; the rest is the model's business.
#[derive(Deserialize)]
struct Asked {
    model: String,
    #[serde(default)]
    stream: Option<bool>,
}

/// Chats with a model, streamed with `stream: true`.
#[utoipa::path(post, path = "/openai/v1/chat/completions", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn chat(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<Asked>,
) -> Result<Response, Refused> {
    ask(&state, &principal, depth::of(&headers)?, "openai.chat.completions", body).await
}

/// Completes a text, streamed with `stream: true`.
#[utoipa::path(post, path = "/openai/v1/completions", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn completions(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<Asked>,
) -> Result<Response, Refused> {
    ask(&state, &principal, depth::of(&headers)?, "openai.completions", body).await
}

/// Embeds texts.
#[utoipa::path(post, path = "/openai/v1/embeddings", tag = "openai", request_body = Object,
    responses((status = 200, body = Object)))]
async fn embeddings(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    body: JsonBytes<Asked>,
) -> Result<Response, Refused> {
    ask(&state, &principal, depth::of(&headers)?, "openai.embeddings", body).await
}

async fn ask(
    state: &AppState,
    principal: &Principal,
    depth: i32,
    kind: &str,
    JsonBytes { value: asked, bytes }: JsonBytes<Asked>,
) -> Result<Response, Refused> {
    let models = engine::openai::models(&state.store, principal.tenant).await?;
    let model = models.get(&asked.model).filter(|model| principal.reaches(&model.queue));
    let Some(model) = model else { return Err(Refused::no_model(&asked.model)) };
    let payload = String::from_utf8(bytes.into()).ok().and_then(|text| RawValue::from_string(text).ok());
    let now = state.store.clock().now();
    // Named before it is made, so that not a word of a stream is missed.
    let run = format!("call-{}", store::clock::new_uuid(now).simple());
    let request = JobRequest {
        queue: model.queue.to_string(),
        kind: kind.into(),
        payload,
        affinity: Some(asked.model.clone()),
        run: Some(run.clone()),
        timeout_s: Some(CALL_TIMEOUT_S_MAX),
        ..JobRequest::default()
    };
    let payload_bytes = state.options.payload_bytes;
    let maker = Maker { principal: principal.name.clone(), payload_bytes, now, depth };
    let (job, wait_s) = maker.call(request)?;
    let hearing = (asked.stream == Some(true)).then(|| state.engine.relay().listen(&run));
    let call = Call::make(state, principal, job, wait_s).await?;
    let id = call.job;
    match hearing {
        Some(hearing) => streamed(id, Streaming::new(hearing, call.answered())).await,
        None => {
            let body = result(call.answered().await?)?;
            Ok(([(CONTENT_TYPE, "application/json")], [(JOB, id.to_string())], body).into_response())
        }
    }
}

/// What the model said, or why it said nothing.
fn result(job: StoredJob) -> Result<String, Refused> {
    if job.state == JobState::Succeeded {
        return Ok(job.result.unwrap_or_else(|| "null".into()));
    }
    let Some(fault) = job.error else {
        return Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, "canceled", "the job was canceled", None));
    };
    if let Some((status, body)) = engine::openai::refusal(&fault)
        && let Ok(status) = StatusCode::from_u16(status)
    {
        return Err(Refused::said(status, body.get()));
    }
    let status = match CallFailure::of(&fault) {
        CallFailure::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        CallFailure::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    Err(Refused::new(status, &fault.code, &fault.message, None))
}

/// An answer that is told while it is given. If the caller goes, this is dropped with the call: the answer is then kept.
struct Streaming {
    hearing: Hearing,
    answered: Pin<Box<dyn Future<Output = Result<StoredJob, ApiError>> + Send>>,
    /// How many bytes were heard on their way.
    heard: usize,
    /// Under which claim of the job.
    epoch: Option<Epoch>,
}

/// What comes next.
enum Piece {
    More(Bytes),
    Last(Bytes),
}

/// The first piece is waited for: until then a failure can still be told by its status.
async fn streamed(job: JobId, mut streaming: Streaming) -> Result<Response, Refused> {
    let first = streaming.next().await?;
    let pieces = stream::unfold(Some((Some(first), streaming)), |at| async move {
        let (first, mut streaming) = at?;
        let piece = match first {
            Some(piece) => piece,
            None => streaming.next().await.unwrap_or_else(|refused| Piece::Last(refused.event().into())),
        };
        let (piece, then) = match piece {
            Piece::More(piece) => (piece, Some((None, streaming))),
            Piece::Last(piece) => (piece, None),
        };
        Some((Ok::<Bytes, std::convert::Infallible>(piece), then))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
    Ok((headers, [(JOB, job.to_string())], Body::from_stream(pieces)).into_response())
}

impl Streaming {
    fn new(hearing: Hearing, answered: impl Future<Output = Result<StoredJob, ApiError>> + Send + 'static) -> Self {
        Self { hearing, answered: Box::pin(answered), heard: 0, epoch: None }
    }

    async fn next(&mut self) -> Result<Piece, Refused> {
        let job = tokio::select! {
            biased;
            Some((epoch, piece)) = self.hearing.next() => {
                self.goes_on(epoch)?;
                self.heard += piece.len();
                return Ok(Piece::More(piece));
            }
            job = &mut self.answered => job?,
        };
        let epoch = job.epoch;
        let result = result(job)?;
        if self.heard > 0 {
            self.goes_on(epoch)?;
        }
        let whole = serde_json::from_str::<String>(&result);
        let whole = whole.unwrap_or_else(|_| format!("data: {result}\n\ndata: [DONE]\n\n"));
        // What was said just before the end, and all of it where it was said on another node.
        let rest = whole.as_bytes().get(self.heard..).unwrap_or_default();
        Ok(Piece::Last(Bytes::copy_from_slice(rest)))
    }

    /// A job that was given back half said is said anew by whoever takes it: what was heard already cannot be taken back.
    fn goes_on(&mut self, epoch: Epoch) -> Result<(), Refused> {
        if *self.epoch.get_or_insert(epoch) == epoch {
            return Ok(());
        }
        let message = "the answer broke off and was begun anew; ask for the job to have the whole of it";
        Err(Refused::new(StatusCode::BAD_GATEWAY, "answer_broken_off", message, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r8_a_stream_is_one_answer_and_never_a_half_and_a_whole() {
        let hearing = engine::Relay::default().listen("call-1");
        let mut streaming = Streaming::new(hearing, std::future::pending());
        assert!(streaming.goes_on(Epoch(1)).is_ok());
        assert!(streaming.goes_on(Epoch(1)).is_ok());
        let broken = streaming.goes_on(Epoch(2)).expect_err("another answer began");
        assert!(broken.event().contains("answer_broken_off"), "{}", broken.event());
    }
}

//! Errors as RFC 9457 problem documents. This module alone maps failures to HTTP statuses; handlers return an
//! `ApiError`.

use std::fmt::Display;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::queue::call::CallFailure;
use domain::workflows::journal::JournalError;
use domain::{JobId, Refusal};
use store::StoreError;
use wire::{Problem, code};

pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// An error response.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<String>,
    /// The job of a failed call and its error.
    call: Option<Box<(Option<JobId>, Option<wire::JobError>)>>,
    /// Value of the `Retry-After` header.
    retry_s: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, detail: impl Display) -> Self {
        Self { status, code, detail: detail.to_string(), field: None, call: None, retry_s: None }
    }

    pub(crate) fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()).filter(|field| !field.is_empty()), ..self }
    }

    pub(crate) fn invalid_json(detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_JSON, detail)
    }

    pub(crate) fn duplicate_field(field: impl Into<String>, detail: impl Display) -> Self {
        Self::invalid_json(detail).at(field)
    }

    /// The body is JSON, but the value of `field` is invalid. `detail` says what to change.
    pub(crate) fn invalid_field(field: impl Into<String>, detail: impl Display) -> Self {
        let field = field.into();
        let detail = if field.is_empty() { detail.to_string() } else { format!("{field} {detail}") };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_FIELD, detail).at(field)
    }

    pub(crate) fn invalid_query(parameter: &str, detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_QUERY, detail).at(parameter)
    }

    pub(crate) fn invalid_cursor() -> Self {
        let detail = "the cursor does not belong to this listing; send `next_cursor` unchanged, or omit it";
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_CURSOR, detail).at("cursor")
    }

    pub(crate) fn invalid_header(header: &str, detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_HEADER, format!("{header} {detail}")).at(header)
    }

    pub(crate) fn unsupported_media_type(got: Option<&str>) -> Self {
        let detail = match got {
            Some(got) => format!("send the body as application/json, not as {got}"),
            None => "the Content-Type header is missing; send Content-Type: application/json".to_owned(),
        };
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(crate) fn unsupported_encoding() -> Self {
        let detail = "Content-Encoding is not supported; send the body uncompressed";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(crate) fn body_too_large(most: u64) -> Self {
        let detail = format!("the body is too large; the limit is {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code::BODY_TOO_LARGE, detail)
    }

    pub(crate) fn body_broken_off() -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::BODY_BROKEN_OFF, "the body ended early or stalled; send it again")
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, code::NOT_FOUND, format!("there is no such {what}"))
    }

    pub(crate) fn refused(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::ClaimLost => code::CLAIM_LOST,
            Refusal::AlreadyEnded => code::ALREADY_ENDED,
            Refusal::Illegal { .. } => code::ILLEGAL_TRANSITION,
        };
        Self::new(StatusCode::CONFLICT, code, refusal)
    }

    pub(crate) fn already_ended(state: domain::JobState) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            code::ALREADY_ENDED,
            format!("the job has already {state} and cannot be canceled"),
        )
    }

    /// A signal event or an answer for a job that has ended.
    pub(crate) fn ended(state: domain::JobState) -> Self {
        Self::new(StatusCode::CONFLICT, code::ALREADY_ENDED, format!("the job has already {state}"))
    }

    pub(crate) fn queue_has_jobs(queue: &domain::Name) -> Self {
        let detail = format!("the queue {queue} has jobs; cancel those that have not ended and prune the others first");
        Self::new(StatusCode::CONFLICT, code::CONFLICT, detail)
    }

    pub(crate) fn already_answered() -> Self {
        let detail = "the approval has another answer, or its time is over";
        Self::new(StatusCode::CONFLICT, code::ALREADY_RESOLVED, detail)
    }

    pub(crate) fn not_ended(state: domain::JobState) -> Self {
        let detail = format!("the job is {state}; only a job that has ended can be retried");
        Self::new(StatusCode::CONFLICT, code::NOT_ENDED, detail)
    }

    pub(crate) fn precondition_failed(version: Option<i64>) -> Self {
        let detail = match version {
            Some(version) => format!("the key is at version {version}; read it again and retry with its current ETag"),
            None => "there is no such key".to_owned(),
        };
        Self::new(StatusCode::PRECONDITION_FAILED, code::PRECONDITION_FAILED, detail)
    }

    pub(crate) fn subject_busy(detail: impl Display) -> Self {
        Self::new(StatusCode::CONFLICT, code::SUBJECT_BUSY, detail)
    }

    pub(crate) fn no_credential() -> Self {
        let detail = "send the credential of this subject's agent: Authorization: Bearer …";
        Self::new(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, detail)
    }

    pub(crate) fn worker_gone() -> Self {
        let detail = "the worker's lease has expired and its claims were released; register again";
        Self::new(StatusCode::GONE, code::WORKER_GONE, detail)
    }

    pub(crate) fn idempotency_key_reused() -> Self {
        let detail = "the Idempotency-Key was already used with a different body; use a new key for a new request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::IDEMPOTENCY_KEY_REUSED, detail).at("Idempotency-Key")
    }

    pub(crate) fn epoch_required() -> Self {
        let detail =
            "the job is claimed, so the upload must name the claim: send the epoch of the claim in X-Windlass-Epoch";
        Self::new(StatusCode::CONFLICT, code::EPOCH_REQUIRED, detail).at("X-Windlass-Epoch")
    }

    pub(crate) fn artifact_exists() -> Self {
        let detail =
            "the job already has a different artifact with this name; artifacts are immutable, choose another name";
        Self::new(StatusCode::CONFLICT, code::ARTIFACT_EXISTS, detail)
    }

    pub(crate) fn digest_mismatch() -> Self {
        let detail = "the content does not match Repr-Digest; nothing was stored, send it again";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::DIGEST_MISMATCH, detail).at("Repr-Digest")
    }

    pub(crate) fn signature_exists(other: uuid::Uuid) -> Self {
        let detail = format!("signature {other} already has this pattern; update that one");
        Self::new(StatusCode::CONFLICT, code::SIGNATURE_EXISTS, detail).at("pattern")
    }

    pub(crate) fn too_many_connections() -> Self {
        let detail = "this node has no connection left for the address of the caller; close idle connections, or use another node";
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail);
        Self { retry_s: Some(1), ..error }
    }

    pub(crate) fn too_many_streams() -> Self {
        let detail = "the stream limit of this node is reached; poll the signal or use another node";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
    }

    pub(crate) fn too_many_streams_of_token() -> Self {
        let detail = format_args!(
            "the token has {} open streams on this node, which is the limit; close one first",
            domain::limits::STREAMS_PER_TOKEN
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, code::LIMIT_REACHED, detail)
    }

    /// An operation on a runtime was refused; `code` becomes the problem's own code.
    pub(crate) fn operation_refused(code: domain::runtimes::OperationCode, detail: impl Display) -> Self {
        use domain::runtimes::OperationCode as Code;
        let (status, code, field) = match code {
            Code::ImageRefNotSemver => (StatusCode::UNPROCESSABLE_ENTITY, code::IMAGE_REF_NOT_SEMVER, Some("image")),
            Code::SemverPatchOnly => (StatusCode::UNPROCESSABLE_ENTITY, code::SEMVER_PATCH_ONLY, Some("image")),
            Code::InvalidRequest => (StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_REQUEST, Some("image")),
            Code::DockerUnavailable => (StatusCode::SERVICE_UNAVAILABLE, code::DOCKER_UNAVAILABLE, None),
            Code::ServiceUnavailable => (StatusCode::SERVICE_UNAVAILABLE, code::SERVICE_UNAVAILABLE, None),
            Code::NotFound => (StatusCode::NOT_FOUND, code::NOT_FOUND, None),
            _ => (StatusCode::CONFLICT, code::CONFLICT, None),
        };
        let refused = Self::new(status, code, detail);
        match field {
            Some(field) => refused.at(field),
            None => refused,
        }
    }

    pub(crate) fn limit_reached(detail: impl Display) -> Self {
        Self::new(StatusCode::CONFLICT, code::LIMIT_REACHED, detail)
    }

    /// A journal refused an operation. `field` names it.
    pub(crate) fn journal_refused(field: String, error: &JournalError) -> Self {
        let (status, code) = match error {
            JournalError::TooManyEntries | JournalError::TooManyBytes { .. } => {
                (StatusCode::CONFLICT, code::JOURNAL_FULL)
            }
            JournalError::Drift { .. } | JournalError::OtherOperation { .. } => {
                (StatusCode::CONFLICT, code::WORKFLOW_DRIFT)
            }
            JournalError::AnswerTooLarge { .. } => (StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_FIELD),
        };
        Self::new(status, code, format_args!("{field}: {error}")).at(field)
    }

    pub(crate) fn already_resolved(resolution: domain::Resolution) -> Self {
        let detail = format!("the dead letter is already resolved as {resolution}");
        Self::new(StatusCode::CONFLICT, code::ALREADY_RESOLVED, detail)
    }

    pub(crate) fn already_retried(what: &str, again: impl Display) -> Self {
        let detail =
            format!("the {what} was already retried as {again} with a different payload; retry that one instead");
        Self::new(StatusCode::CONFLICT, code::ALREADY_RETRIED, detail)
    }

    pub(crate) fn run_is_over(state: domain::RunState) -> Self {
        let detail = match state {
            domain::RunState::Running => "the run is being canceled".to_owned(),
            ended => format!("the run has ended as {}", ended.as_str()),
        };
        Self::new(StatusCode::CONFLICT, code::ALREADY_ENDED, detail)
    }

    pub(crate) fn cannot_start(node: usize, cause: &str) -> Self {
        let detail = format!("the node cannot start: {cause}");
        Self::new(StatusCode::CONFLICT, code::ALREADY_ENDED, detail).at(format!("nodes[{node}].needs"))
    }

    pub(crate) fn run_not_ended() -> Self {
        let detail = "the run has not ended; cancel it first, or wait for its end";
        Self::new(StatusCode::CONFLICT, code::NOT_ENDED, detail)
    }

    pub(crate) fn run_retried(again: &str) -> Self {
        let detail = format!("the run was already retried as {again}; retry that one instead");
        Self::new(StatusCode::CONFLICT, code::ALREADY_RETRIED, detail)
    }

    pub(crate) fn nothing_to_retry() -> Self {
        let detail = "every node of the run succeeded, or its jobs were deleted; start a new run instead";
        Self::new(StatusCode::CONFLICT, code::ALREADY_ENDED, detail)
    }

    pub(crate) fn not_replayable() -> Self {
        let detail = "the dead letter cannot be replayed: its payload is not stored or its trigger was deleted";
        Self::new(StatusCode::CONFLICT, code::NOT_REPLAYABLE, detail)
    }

    pub(crate) fn name_taken() -> Self {
        Self::new(StatusCode::CONFLICT, code::NAME_TAKEN, "another trigger already has this name; choose another")
            .at("name")
    }

    pub(crate) fn bad_signature(detail: impl Display) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code::BAD_SIGNATURE, detail)
    }

    pub(crate) fn replay_refused() -> Self {
        let detail = "a different message with this webhook-id was already accepted";
        Self::new(StatusCode::CONFLICT, code::REPLAY_REFUSED, detail).at("webhook-id")
    }

    pub(crate) fn not_a_cloudevent() -> Self {
        let detail = "send a CloudEvent: its attributes as ce- headers, or the body as application/cloudevents+json or \
                      application/cloudevents-batch+json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(crate) fn host_not_allowed(detail: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, code::HOST_NOT_ALLOWED, detail)
    }

    pub(crate) fn token_required() -> Self {
        let detail = "a token is required: send Authorization: Bearer windlass_…";
        Self::new(StatusCode::UNAUTHORIZED, code::TOKEN_REQUIRED, detail)
    }

    pub(crate) fn invalid_token() -> Self {
        let detail = "the token is unknown, has expired or was revoked";
        Self::new(StatusCode::UNAUTHORIZED, code::INVALID_TOKEN, detail)
    }

    pub(crate) fn forbidden(detail: impl Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, code::FORBIDDEN, detail)
    }

    /// A synchronous call that gave no result.
    pub(crate) fn call_failed(
        job: impl Into<Option<JobId>>,
        failure: CallFailure,
        detail: &str,
        error: Option<wire::JobError>,
    ) -> Self {
        let (status, code) = match failure {
            CallFailure::Refused => (StatusCode::UNPROCESSABLE_ENTITY, code::CALL_REFUSED),
            CallFailure::Failed => (StatusCode::BAD_GATEWAY, code::CALL_FAILED),
            CallFailure::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, code::CALL_UNAVAILABLE),
            CallFailure::TimedOut => (StatusCode::GATEWAY_TIMEOUT, code::CALL_TIMED_OUT),
            CallFailure::OutOfResources => (StatusCode::INSUFFICIENT_STORAGE, code::CALL_OUT_OF_RESOURCES),
            CallFailure::Broken => (StatusCode::INTERNAL_SERVER_ERROR, code::CALL_BROKEN),
        };
        Self { call: Some(Box::new((job.into(), error))), ..Self::new(status, code, detail) }
    }

    /// Replaces "nothing was changed" by "the outcome is unknown" if the request may have changed something. Other
    /// errors stay as they are.
    pub(crate) fn after_a_change(self) -> Self {
        if self.code != code::UNAVAILABLE {
            return self;
        }
        let detail = "the database became unavailable after the request was executed; the outcome is unknown: check it \
                      before you retry, and retry with the same Idempotency-Key if you sent one";
        Self { code: code::OUTCOME_UNKNOWN, detail: detail.into(), ..self }
    }

    /// Adds the job that a call created.
    pub(crate) fn of_call(self, job: JobId) -> Self {
        let call = self.call.unwrap_or_else(|| Box::new((Some(job), None)));
        Self { call: Some(call), ..self }
    }

    /// `retry_s` is None if waiting does not free the quota.
    pub(crate) fn over_quota(quota: &str, limit: f64, retry_s: Option<u64>) -> Self {
        let again = retry_s.map(|retry_s| format!("; retry in {retry_s} s")).unwrap_or_default();
        let detail = format_args!("the tenant's quota {quota} of {limit} is exhausted{again}");
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, code::OVER_QUOTA, detail).at(quota);
        Self { retry_s, ..refusal }
    }

    pub(crate) fn panicked() -> Self {
        Self::internal()
    }

    fn internal() -> Self {
        let detail = "internal error; the server log has the details";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL, detail)
    }

    /// An error of axum itself, raised before any handler ran.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => {
                Self::new(status, code::NO_SUCH_ROUTE, "no such route; /openapi.json lists them all")
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                let detail = "the route does not support this method; the Allow header lists those it supports";
                Self::new(status, code::METHOD_NOT_ALLOWED, detail)
            }
            status if status.is_server_error() => Self { status, ..Self::internal() },
            status => Self::new(status, code::INVALID_QUERY, "the request is malformed"),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// Value of `Retry-After` in seconds. One second for every 503 without its own value.
    pub(crate) fn retry_s(&self) -> Option<u64> {
        self.retry_s.or((self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(1))
    }

    pub(crate) fn problem(&self) -> Problem {
        Problem {
            kind: Problem::kind_of(self.code),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            code: self.code.into(),
            field: self.field.clone(),
            job_id: self.call.as_ref().and_then(|call| call.0).map(JobId::uuid),
            error: self.call.as_ref().and_then(|call| call.1.clone()),
        }
    }

    pub(crate) fn body(&self) -> Body {
        serde_json::to_vec(&self.problem()).expect("plain data has a JSON form").into()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { reason, .. } => {
                tracing::warn!(reason, "the database is unavailable");
                let detail = "the database is unavailable; nothing was changed, retry";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::ArtifactsUnavailable { reason, .. } => {
                tracing::warn!(reason, "artifact storage is unavailable");
                let detail = "artifact storage is unavailable; nothing was changed, retry";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::InDoubt { reason } => {
                tracing::warn!(reason, "connection lost during COMMIT; the outcome is unknown");
                let detail = "connection lost during COMMIT; the outcome is unknown: retry with the same Idempotency-Key if you \
                              sent one, or check before you retry";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::OUTCOME_UNKNOWN, detail)
            }
            StoreError::Unusable(reason) => {
                tracing::error!(reason, "the server is misconfigured");
                let detail = "the server's configuration does not allow this; the server log says why";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::BlobMissing(location) => {
                tracing::error!(location, "a blob is missing from this node's artifact storage");
                let detail = "the content is missing from this node's artifact storage; several nodes must share one folder or one \
                              bucket: --artifacts PATH or s3://BUCKET/PREFIX";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::BLOB_MISSING, detail)
            }
            error => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, source, "a request failed unexpectedly");
                Self::internal()
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(self.body());
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"windlass\""));
        }
        if let Some(retry_s) = self.retry_s() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_s));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement X12.
    #[test]
    fn an_unavailable_database_is_503_with_retry_after() {
        let response = ApiError::from(StoreError::unavailable("the disk is full")).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM);
    }

    /// Requirement X12.
    #[test]
    fn an_outage_after_a_write_has_an_unknown_outcome() {
        let away = ApiError::from(StoreError::unavailable("the server is gone")).after_a_change();
        assert_eq!((away.status, away.code), (StatusCode::SERVICE_UNAVAILABLE, code::OUTCOME_UNKNOWN));
        assert!(!away.detail.contains("nothing was changed"), "{}", away.detail);
        assert_eq!(ApiError::not_found("job").after_a_change().code, code::NOT_FOUND);
    }
}

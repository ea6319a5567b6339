//! Everything that can go wrong, as RFC 9457 problem documents (X10, X12). The only place that knows HTTP statuses of
//! failures; handlers say what happened.

use std::fmt::Display;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::call::CallFailure;
use domain::{JobId, Refusal};
use store::StoreError;
use wire::{Problem, code};

pub(crate) const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// A refusal or a failure on its way to the caller.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    detail: String,
    field: Option<String>,
    /// Of a call that failed: its job, and how that failed.
    call: Option<Box<(JobId, Option<wire::JobError>)>>,
    /// When to come back, where that helps.
    retry_s: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, detail: impl Display) -> Self {
        Self { status, code, detail: detail.to_string(), field: None, call: None, retry_s: None }
    }

    fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()).filter(|field| !field.is_empty()), ..self }
    }

    pub(crate) fn invalid_json(detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_JSON, detail)
    }

    pub(crate) fn duplicate_field(field: impl Into<String>, detail: impl Display) -> Self {
        Self::invalid_json(detail).at(field)
    }

    /// The body is JSON, but a value in it cannot be taken. `detail` says what to change.
    pub(crate) fn invalid_field(field: impl Into<String>, detail: impl Display) -> Self {
        let field = field.into();
        let detail = if field.is_empty() { detail.to_string() } else { format!("{field} {detail}") };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::INVALID_FIELD, detail).at(field)
    }

    pub(crate) fn invalid_query(parameter: &str, detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_QUERY, detail).at(parameter)
    }

    pub(crate) fn invalid_cursor() -> Self {
        let detail = "the cursor is not one of this listing; give back `next_cursor` as it came, or leave it out";
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_CURSOR, detail).at("cursor")
    }

    pub(crate) fn invalid_header(header: &str, detail: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::INVALID_HEADER, format!("{header} {detail}")).at(header)
    }

    pub(crate) fn unsupported_media_type(got: Option<&str>) -> Self {
        let detail = match got {
            Some(got) => format!("send the body as application/json, not as {got}"),
            None => "say Content-Type: application/json".to_owned(),
        };
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(crate) fn unsupported_encoding() -> Self {
        let detail = "send the body as it is, without a Content-Encoding";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(crate) fn body_too_large(most: u64) -> Self {
        let detail = format!("the body may have at most {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code::BODY_TOO_LARGE, detail)
    }

    pub(crate) fn body_broken_off() -> Self {
        Self::new(StatusCode::BAD_REQUEST, code::BODY_BROKEN_OFF, "the body broke off before its end")
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
        Self::new(StatusCode::CONFLICT, code::ALREADY_ENDED, format!("the job has {state} and cannot be canceled"))
    }

    pub(crate) fn not_ended(state: domain::JobState) -> Self {
        let detail = format!("the job is {state}; only a job that has ended can be retried");
        Self::new(StatusCode::CONFLICT, code::NOT_ENDED, detail)
    }

    pub(crate) fn precondition_failed(version: Option<i64>) -> Self {
        let detail = match version {
            Some(version) => format!("the key has version {version}; read it again and decide anew"),
            None => "there is no such key".to_owned(),
        };
        Self::new(StatusCode::PRECONDITION_FAILED, code::PRECONDITION_FAILED, detail)
    }

    pub(crate) fn subject_busy(detail: impl Display) -> Self {
        Self::new(StatusCode::CONFLICT, code::SUBJECT_BUSY, detail)
    }

    pub(crate) fn no_credential() -> Self {
        let detail = "this route takes the credential of the subject's own agent as bearer token";
        Self::new(StatusCode::UNAUTHORIZED, code::UNAUTHORIZED, detail)
    }

    pub(crate) fn worker_gone() -> Self {
        let detail = "the worker's lease has passed and its jobs went to others; register again";
        Self::new(StatusCode::GONE, code::WORKER_GONE, detail)
    }

    pub(crate) fn idempotency_key_reused() -> Self {
        let detail = "the Idempotency-Key was used with another body; take a fresh key for another request";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::IDEMPOTENCY_KEY_REUSED, detail).at("Idempotency-Key")
    }

    pub(crate) fn artifact_exists() -> Self {
        let detail = "the job has another artifact of this name; an artifact never changes, choose another name";
        Self::new(StatusCode::CONFLICT, code::ARTIFACT_EXISTS, detail)
    }

    pub(crate) fn digest_mismatch() -> Self {
        let detail = "the content does not match Repr-Digest; nothing was stored, send it again";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, code::DIGEST_MISMATCH, detail).at("Repr-Digest")
    }

    pub(crate) fn signature_exists(other: uuid::Uuid) -> Self {
        let detail = format!("signature {other} has this pattern; change that one");
        Self::new(StatusCode::CONFLICT, code::SIGNATURE_EXISTS, detail).at("pattern")
    }

    pub(crate) fn too_many_streams() -> Self {
        let detail = "as many streams are open on this node as it takes; ask for the signal instead, or another node";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
    }

    /// What an operation on a runtime could not be begun for, by its own code.
    pub(crate) fn operation_refused(code: domain::runtime::OperationCode, detail: impl Display) -> Self {
        use domain::runtime::OperationCode as Code;
        let (status, code, field) = match code {
            Code::ImageRefNotSemver => (StatusCode::UNPROCESSABLE_ENTITY, "image_ref_not_semver", Some("image")),
            Code::SemverPatchOnly => (StatusCode::UNPROCESSABLE_ENTITY, "semver_patch_only", Some("image")),
            Code::InvalidRequest => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_request", Some("image")),
            Code::DockerUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "docker_unavailable", None),
            Code::ServiceUnavailable => (StatusCode::SERVICE_UNAVAILABLE, code::SERVICE_UNAVAILABLE, None),
            Code::NotFound => (StatusCode::NOT_FOUND, code::NOT_FOUND, None),
            _ => (StatusCode::CONFLICT, "conflict", None),
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

    pub(crate) fn already_resolved(resolution: domain::Resolution) -> Self {
        let detail = format!("the dead letter is resolved as {resolution}");
        Self::new(StatusCode::CONFLICT, code::ALREADY_RESOLVED, detail)
    }

    pub(crate) fn already_retried(what: &str, again: impl Display) -> Self {
        let detail =
            format!("the {what} was already retried as {again}, not with this payload; retry that one instead");
        Self::new(StatusCode::CONFLICT, code::ALREADY_RETRIED, detail)
    }

    pub(crate) fn not_replayable() -> Self {
        let detail = "nothing is kept of this dead letter that could be played again, or its trigger is gone";
        Self::new(StatusCode::CONFLICT, code::NOT_REPLAYABLE, detail)
    }

    pub(crate) fn name_taken() -> Self {
        Self::new(StatusCode::CONFLICT, code::NAME_TAKEN, "another trigger has this name; choose another").at("name")
    }

    pub(crate) fn bad_signature(detail: impl Display) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, code::BAD_SIGNATURE, detail)
    }

    pub(crate) fn replay_refused() -> Self {
        let detail = "another message with this webhook-id was taken before";
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
        let detail = "say who you are: Authorization: Bearer windlass_…";
        Self::new(StatusCode::UNAUTHORIZED, code::TOKEN_REQUIRED, detail)
    }

    pub(crate) fn invalid_token() -> Self {
        let detail = "the token is unknown, has expired or was revoked";
        Self::new(StatusCode::UNAUTHORIZED, code::INVALID_TOKEN, detail)
    }

    pub(crate) fn forbidden(detail: impl Display) -> Self {
        Self::new(StatusCode::FORBIDDEN, code::FORBIDDEN, detail)
    }

    /// What a caller hears of a job that gave no result (Q5).
    pub(crate) fn call_failed(job: JobId, failure: CallFailure, detail: &str, error: Option<wire::JobError>) -> Self {
        let (status, code) = match failure {
            CallFailure::Refused => (StatusCode::UNPROCESSABLE_ENTITY, code::CALL_REFUSED),
            CallFailure::Failed => (StatusCode::BAD_GATEWAY, code::CALL_FAILED),
            CallFailure::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, code::CALL_UNAVAILABLE),
            CallFailure::TimedOut => (StatusCode::GATEWAY_TIMEOUT, code::CALL_TIMED_OUT),
            CallFailure::OutOfResources => (StatusCode::INSUFFICIENT_STORAGE, code::CALL_OUT_OF_RESOURCES),
            CallFailure::Broken => (StatusCode::INTERNAL_SERVER_ERROR, code::CALL_BROKEN),
        };
        Self { call: Some(Box::new((job, error))), ..Self::new(status, code, detail) }
    }

    /// The same, told when something may have been changed: a caller must not take it for nothing.
    pub(crate) fn after_a_change(self) -> Self {
        if self.code != code::UNAVAILABLE {
            return self;
        }
        let detail = "the database went away before the answer was put together: it was done, or may have been; look \
                      before you ask again, and ask with the same Idempotency-Key where there was one";
        Self { code: code::OUTCOME_UNKNOWN, detail: detail.into(), ..self }
    }

    /// The same, with the job that a call made.
    pub(crate) fn of_call(self, job: JobId) -> Self {
        let call = self.call.unwrap_or_else(|| Box::new((job, None)));
        Self { call: Some(call), ..self }
    }

    /// Without `retry_s` time alone makes no room.
    pub(crate) fn over_quota(quota: &str, limit: f64, retry_s: Option<u64>) -> Self {
        let again = retry_s.map(|retry_s| format!("; try again in {retry_s} s")).unwrap_or_default();
        let detail = format_args!("the tenant's quota {quota} of {limit} is used up{again}");
        let refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, code::OVER_QUOTA, detail).at(quota);
        Self { retry_s, ..refusal }
    }

    pub(crate) fn panicked() -> Self {
        Self::internal()
    }

    fn internal() -> Self {
        let detail = "the request failed in a way that it should not; the server's log says more";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, code::INTERNAL, detail)
    }

    /// What the framework refused before any handler saw it.
    pub(crate) fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => {
                Self::new(status, code::NO_SUCH_ROUTE, "no such route; /openapi.json lists them all")
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                let detail = "the route does not take this method; the Allow header says which it takes";
                Self::new(status, code::METHOD_NOT_ALLOWED, detail)
            }
            status if status.is_server_error() => Self { status, ..Self::internal() },
            status => Self::new(status, code::INVALID_QUERY, "the request cannot be understood"),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// When to come back: at once almost, where something is only away.
    pub(crate) fn retry_s(&self) -> Option<u64> {
        self.retry_s.or((self.status == StatusCode::SERVICE_UNAVAILABLE).then_some(1))
    }

    pub(crate) fn problem(&self) -> Problem {
        Problem {
            kind: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            code: self.code.into(),
            field: self.field.clone(),
            job_id: self.call.as_ref().map(|call| call.0.uuid()),
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
                let detail = "the database is unavailable; nothing was changed, try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::ArtifactsUnavailable { reason, .. } => {
                tracing::warn!(reason, "the place for artifacts is unavailable");
                let detail = "the place for large artifacts is unavailable; nothing was changed, try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::InDoubt { reason } => {
                tracing::warn!(reason, "the database went away during a commit");
                let detail = "the database went away during the commit: it may have been done or not; ask again, and \
                              with the same Idempotency-Key where there was one";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::OUTCOME_UNKNOWN, detail)
            }
            StoreError::Unusable(reason) => {
                tracing::error!(reason, "a person must act");
                let detail = "the server cannot do this as it is set up now; its log says why";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code::UNAVAILABLE, detail)
            }
            StoreError::BlobMissing(location) => {
                tracing::error!(location, "a blob is not where this node keeps them");
                let detail = "what was stored is not where this node keeps large artifacts; where there are several nodes, \
                              all of them need one shared folder or one bucket: --artifacts PATH or s3://BUCKET/PREFIX";
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

    #[test]
    fn x12_an_unavailable_database_is_503_with_a_hint_when_to_come_back() {
        let response = ApiError::from(StoreError::unavailable("the disk is full")).into_response();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM);
    }

    #[test]
    fn x12_what_fails_after_a_change_does_not_say_that_nothing_was_changed() {
        let away = ApiError::from(StoreError::unavailable("the server is gone")).after_a_change();
        assert_eq!((away.status, away.code), (StatusCode::SERVICE_UNAVAILABLE, code::OUTCOME_UNKNOWN));
        assert!(!away.detail.contains("nothing was changed"), "{}", away.detail);
        assert_eq!(ApiError::not_found("job").after_a_change().code, code::NOT_FOUND);
    }
}

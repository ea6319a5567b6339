//! Errors in OpenAI's format: `{"error": {message, type, param, code}}`.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::error::{ApiError, PROBLEM};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An error response.
pub(super) struct OpenAiError {
    status: StatusCode,
    body: String,
    /// Value of the `Retry-After` header.
    retry_s: Option<u64>,
}

impl OpenAiError {
    pub(super) fn new(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Self {
        let body = json!({"error": error(status, code, message, param)}).to_string();
        Self { status, body, retry_s: None }
    }

    pub(super) fn invalid(code: &str, message: &str, param: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message, Some(param))
    }

    pub(super) fn not_found(message: &str, param: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message, Some(param))
    }

    pub(super) fn no_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist: no pool serves it.");
        Self::new(StatusCode::NOT_FOUND, "model_not_found", &message, Some("model"))
    }

    /// An error response of the model itself, passed on unchanged.
    pub(super) fn from_model(status: StatusCode, body: &str) -> Self {
        Self { status, body: body.to_owned(), retry_s: None }
    }

    /// The error as an event within a stream, where the status can no longer change.
    pub(super) fn event(&self) -> String {
        format!("data: {}\n\n", self.body.replace(['\r', '\n'], " "))
    }
}

fn error(status: StatusCode, code: &str, message: &str, param: Option<&str>) -> Value {
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    json!({"message": message, "type": kind, "param": param, "code": code})
}

fn error_body(status: StatusCode, problem: &wire::Problem) -> String {
    json!({"error": error(status, &problem.code, &problem.detail, problem.field.as_deref())}).to_string()
}

impl From<ApiError> for OpenAiError {
    fn from(refusal: ApiError) -> Self {
        let (status, retry_s) = (refusal.status(), refusal.retry_s());
        Self { status, body: error_body(status, &refusal.problem()), retry_s }
    }
}

impl From<store::StoreError> for OpenAiError {
    fn from(error: store::StoreError) -> Self {
        ApiError::from(error).into()
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(CONTENT_TYPE, JSON)], self.body).into_response();
        if let Some(retry_s) = self.retry_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_s));
        }
        response
    }
}

/// Converts errors of the middleware or of axum to OpenAI's format. Keeps their headers, such as `Retry-After`.
pub(crate) async fn into_openai_error(response: Response) -> Response {
    let status = response.status();
    let (mut parts, body) = response.into_parts();
    let content_type = parts.headers.get(CONTENT_TYPE);
    let is_openai_error = content_type.is_some_and(|kind| *kind == JSON);
    if is_openai_error || !(status.is_client_error() || status.is_server_error()) {
        return Response::from_parts(parts, body);
    }
    let is_problem = content_type.is_some_and(|kind| *kind == PROBLEM);
    let problem = match body.collect().await {
        Ok(body) if is_problem => serde_json::from_slice(&body.to_bytes()).ok(),
        _ => None,
    };
    let problem = problem.unwrap_or_else(|| ApiError::of_status(status).problem());
    parts.headers.insert(CONTENT_TYPE, JSON);
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(error_body(status, &problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement Q12.
    #[test]
    fn a_request_over_quota_gets_retry_after() {
        let refused = OpenAiError::from(ApiError::over_quota("enqueue_per_s", 1.0, Some(7)));
        assert_eq!(refused.into_response().headers()[RETRY_AFTER], "7");
    }
}

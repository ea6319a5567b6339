//! Refusals in that API's shape: `{"error": {message, type, param, code}}`.

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::error::{ApiError, PROBLEM};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A refusal on its way to the caller.
pub(super) struct Refused {
    status: StatusCode,
    body: String,
    /// When to come back, where that helps.
    retry_s: Option<u64>,
}

impl Refused {
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
        let message = format!("The model `{model}` does not exist: no pool has it.");
        Self::new(StatusCode::NOT_FOUND, "model_not_found", &message, Some("model"))
    }

    /// As the model said it.
    pub(super) fn said(status: StatusCode, body: &str) -> Self {
        Self { status, body: body.to_owned(), retry_s: None }
    }

    /// The same within a stream, where it is too late for a status.
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

fn of_problem(status: StatusCode, problem: &wire::Problem) -> String {
    json!({"error": error(status, &problem.code, &problem.detail, problem.field.as_deref())}).to_string()
}

impl From<ApiError> for Refused {
    fn from(refusal: ApiError) -> Self {
        let (status, retry_s) = (refusal.status(), refusal.retry_s());
        Self { status, body: of_problem(status, &refusal.problem()), retry_s }
    }
}

impl From<store::StoreError> for Refused {
    fn from(error: store::StoreError) -> Self {
        ApiError::from(error).into()
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, [(CONTENT_TYPE, JSON)], self.body).into_response();
        if let Some(retry_s) = self.retry_s {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_s));
        }
        response
    }
}

/// What was refused before it got here, or by the framework, in the same shape; its headers, `Retry-After` among them, stay.
pub(crate) async fn in_that_apis_words(response: Response) -> Response {
    let status = response.status();
    let (mut parts, body) = response.into_parts();
    let content_type = parts.headers.get(CONTENT_TYPE);
    let told = content_type.is_some_and(|kind| *kind == JSON);
    if told || !(status.is_client_error() || status.is_server_error()) {
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
    Response::from_parts(parts, Body::from(of_problem(status, &problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q12_who_is_over_quota_hears_when_to_come_back() {
        let refused = Refused::from(ApiError::over_quota("enqueue_per_s", 1.0, Some(7)));
        assert_eq!(refused.into_response().headers()[RETRY_AFTER], "7");
    }
}

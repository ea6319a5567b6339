//! The OpenAPI document, generated from the routes. Served at `/openapi.json` and exported to client generators.

use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApi, OpenApiBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{PartialSchema, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::Problem;

use crate::access::rights;
use crate::dashboard;
use crate::http::{health, metrics, sign_in, v1};
use crate::runtimes::openai;
use crate::state::AppState;

/// Returns every route, with its entry in the document.
pub(crate) fn routes() -> OpenApiRouter<AppState> {
    let mut router = routes_without_rights();
    rights::declare(router.get_openapi_mut());
    router
}

/// Returns every route before the rights table added its security requirements.
pub(crate) fn routes_without_rights() -> OpenApiRouter<AppState> {
    let info = InfoBuilder::new()
        .title("Windlass")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("A self-hosted durable job engine. Errors are problem documents with a stable `code`."))
        .build();
    let mut router = OpenApiRouter::with_openapi(OpenApiBuilder::new().info(info).build())
        .merge(v1::routes())
        .merge(openai::routes())
        .merge(health::routes())
        .merge(metrics::routes())
        .merge(dashboard::routes())
        .merge(sign_in::routes())
        .routes(routes!(openapi));
    complete(router.get_openapi_mut());
    router
}

/// Returns the document, for client generators.
pub fn document() -> OpenApi {
    routes().into_openapi()
}

/// Get the OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", tag = "health", responses((status = 200, body = Object)))]
async fn openapi() -> Response {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| document().to_json().expect("plain data has a JSON form").into_bytes().into());
    ([(CONTENT_TYPE, "application/json")], TEXT.clone()).into_response()
}

/// Completes every operation: a problem document as the default response, a unique operation id such as `queues_list`,
/// and a description of every response.
fn complete(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    let token = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("windlass_…").build();
    components.add_security_scheme(rights::BEARER, SecurityScheme::Http(token));
    let problem = Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(problem)).build();
    let problem = ResponseBuilder::new()
        .description("Problem document (RFC 9457)")
        .content("application/problem+json", content)
        .build();
    for item in document.paths.paths.values_mut() {
        let PathItem { get, put, post, delete, .. } = item;
        for operation in [get, put, post, delete].into_iter().flatten() {
            let responses = &mut operation.responses.responses;
            for (status, response) in responses.iter_mut() {
                let status = StatusCode::from_bytes(status.as_bytes()).ok();
                let reason = status.and_then(|status| status.canonical_reason());
                if let (RefOr::T(response), Some(reason)) = (response, reason)
                    && response.description.is_empty()
                {
                    response.description = reason.into();
                }
            }
            responses.insert("default".into(), RefOr::T(problem.clone()));
            let noun = operation.tags.iter().flatten().next().map_or("", String::as_str);
            operation.operation_id = operation.operation_id.as_ref().map(|verb| format!("{noun}_{verb}"));
        }
    }
}

//! The OpenAPI document, generated from the routes. Served at `/openapi.json` and exported to client generators.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::path::{Operation, PathItem};
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
///
/// Generated from the routes of this version.
#[utoipa::path(get, path = "/openapi.json", tag = "health", responses((status = 200, body = Object)))]
async fn openapi() -> Response {
    static TEXT: LazyLock<Bytes> =
        LazyLock::new(|| document().to_json().expect("plain data has a JSON form").into_bytes().into());
    ([(CONTENT_TYPE, "application/json")], TEXT.clone()).into_response()
}

/// Example bodies by method and path. A test sends each of them to its route.
const EXAMPLES: &str = include_str!("examples.json");

/// Completes every operation: a problem document as the default response, a unique operation id such as `queues_list`,
/// an example of the body, and a description of the operation, of every parameter and of every response.
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
    let mut examples: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(EXAMPLES).expect("the file of examples is JSON");
    for (path, item) in &mut document.paths.paths {
        let PathItem { get, put, post, delete, .. } = item;
        for (method, operation) in [("get", get), ("put", put), ("post", post), ("delete", delete)] {
            let Some(operation) = operation else { continue };
            if let Some(example) = examples.remove(&format!("{method} {path}")) {
                add_example(path, operation, &example);
            }
            describe_parameters(path, operation);
            if operation.description.is_none() {
                operation.description = default_description(path, operation).map(Into::into);
            }
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
    assert!(examples.is_empty(), "examples of routes that do not exist: {examples:?}");
}

fn add_example(path: &str, operation: &mut Operation, example: &serde_json::Value) {
    let Some(RefOr::T(body)) = &mut operation.request_body else { return };
    for (media_type, content) in &mut body.content {
        let RefOr::T(content) = content else { continue };
        content.example = Some(match &**media_type {
            "application/cloudevents-batch+json" => serde_json::json!([example]),
            // The attributes of the event are headers.
            "application/json" if path == "/api/v1/events" => example["data"].clone(),
            _ => example.clone(),
        });
    }
}

/// Describes the parameters of the path. Those of the query are described where they are declared.
fn describe_parameters(path: &str, operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        if parameter.description.is_some() {
            continue;
        }
        let (before, _) = path.split_once(&format!("{{{}}}", parameter.name)).unwrap_or((path, ""));
        let segment = before.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let description = match (segment, &*parameter.name) {
            ("subjects", "id") => "The subject's id, as chosen by its creator.".into(),
            ("hooks", "id") => "The id of a trigger with the source `http`.".into(),
            ("artifacts", "name") => "The artifact's name.".into(),
            ("static", "name") => "The file's name.".into(),
            (_, "*path") => "The path of the page.".into(),
            (_, "key") => "The key within the collection.".into(),
            (_, "process") => "The process's name, or `*` for every process.".into(),
            ("kv", "collection") | ("topics", "topic") => format!("The {}'s name.", parameter.name),
            (nouns, "id" | "name" | "batch" | "file" | "model") => {
                let noun = match nouns {
                    "processes" => "process",
                    "deliveries" => "delivery",
                    "batches" => "batch",
                    "failures" => "failure group",
                    "dead-letters" => "dead letter",
                    nouns => nouns.trim_end_matches('s'),
                };
                format!("The {noun}'s {}.", if parameter.name == "name" { "name" } else { "id" })
            }
            _ => continue,
        };
        parameter.description = Some(description);
    }
}

/// Describes listings and pages, whose summaries say the rest.
fn default_description(path: &str, operation: &Operation) -> Option<&'static str> {
    let has_parameter = |name: &str| {
        let mut parameters = operation.parameters.iter().flatten();
        parameters.any(|parameter| matches!(parameter, RefOr::T(parameter) if parameter.name == name))
    };
    if !path.starts_with("/api/") && !path.starts_with("/openai/") {
        Some("Returns an HTML page of the dashboard.")
    } else if has_parameter("cursor") {
        Some("Returns one page. `next_cursor` leads to the next one.")
    } else if has_parameter("after") {
        Some("Returns one page. The last id, sent as `after`, leads to the next one.")
    } else {
        Some("Returns all items in one page.").filter(|_| operation.operation_id.as_deref() == Some("list"))
    }
}

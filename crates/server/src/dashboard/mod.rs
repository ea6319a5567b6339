//! The dashboard: HTML pages that call the same handlers as the JSON API, with the same rights.
//!
//! One file per page collects its data; the `pages` crate renders it. Pages only read. Changes go through a JSON route
//! called by the page's script, so that there is a single entry point, one rights check and one history.

pub(crate) mod access;
mod assets;
mod docs;
pub(crate) mod fleet;
mod frame;
mod overview;
pub(crate) mod queue;
pub(crate) mod runtimes;
pub(crate) mod signals;
mod system;
pub(crate) mod triggers;
pub(crate) mod workflows;

use axum::extract::{FromRequestParts, Query, Request};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use pages::error::{ErrorLink, ErrorPage};
use pages::frame::root_of;
use pages::{DashboardPage, Template};
use serde::de::DeserializeOwned;
use utoipa_axum::router::OpenApiRouter;
use wire::Problem;

pub(crate) use frame::{error_link, visible_pages};

use crate::error::{ApiError, PROBLEM};
use crate::extract::Params;
use crate::state::AppState;

/// Allows scripts and styles of this origin only, and nothing inline, whatever a payload contains.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'",
);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(assets::routes())
        .merge(docs::routes())
        .merge(overview::routes())
        .merge(crate::dashboard::queue::jobs::routes())
        .merge(crate::dashboard::queue::job::routes())
        .merge(crate::dashboard::queue::queues::routes())
        .merge(crate::dashboard::queue::queue::routes())
        .merge(crate::dashboard::queue::kind::routes())
        .merge(crate::dashboard::queue::worker::routes())
        .merge(crate::dashboard::runtimes::pools::routes())
        .merge(crate::dashboard::queue::workers::routes())
        .merge(crate::dashboard::workflows::runs::routes())
        .merge(crate::dashboard::workflows::run::routes())
        .merge(crate::dashboard::fleet::subjects::routes())
        .merge(crate::dashboard::signals::failures::routes())
        .merge(crate::dashboard::triggers::dead_letters::routes())
        .merge(crate::dashboard::triggers::declarations::routes())
        .merge(crate::dashboard::triggers::deliveries::routes())
        .merge(crate::dashboard::runtimes::declarations::routes())
        .merge(crate::dashboard::signals::overview::routes())
        .merge(crate::dashboard::access::history::routes())
        .merge(crate::dashboard::access::tokens::routes())
        .merge(system::routes())
}

/// Renders a page as a response.
pub(crate) fn render(page: &impl Template) -> Response {
    let html = page.render().expect("writing to a string cannot fail");
    (headers(), html).into_response()
}

fn headers() -> [(HeaderName, HeaderValue); 6] {
    [
        (CONTENT_TYPE, HTML),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // `access::cross_site` needs the origin of requests sent by our own pages.
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (OPENER, HeaderValue::from_static("same-origin")),
    ]
}

/// True if a browser requests a page.
pub(crate) fn wants_page(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    *method == Method::GET
        && !uri.path().starts_with("/api/")
        && accepts.is_some_and(|accept| accept.contains("text/html"))
}

/// Returns the relative path to the root if a browser requested a page; errors are then shown as HTML.
pub(crate) fn page_root(request: &Request) -> Option<String> {
    wants_page(request.method(), request.uri(), request.headers()).then(|| root_of(request.uri().path()))
}

pub(crate) async fn error_page(root: String, response: Response) -> Response {
    if response.headers().get(CONTENT_TYPE) != Some(&PROBLEM) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let error_link = parts.extensions.remove().unwrap_or(ErrorLink::Page(DashboardPage::Overview));
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    let html = ErrorPage { root, problem, onward: error_link }.render().expect("writing to a string cannot fail");
    parts.headers.remove(CONTENT_LENGTH);
    for (name, value) in headers() {
        parts.headers.insert(name, value);
    }
    Response::from_parts(parts, html.into())
}

/// Query parameters of a page. Empty parameters are ignored, because a form submits its empty fields too.
struct PageParams<T>(T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for PageParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let is_filled = |pair: &&str| pair.split_once('=').is_some_and(|(_, value)| !value.is_empty());
        let filled: Vec<&str> = parts.uri.query().unwrap_or_default().split('&').filter(is_filled).collect();
        let uri: Uri = format!("/?{}", filled.join("&"))
            .parse()
            .map_err(|_| ApiError::invalid_query("", "the query string is malformed"))?;
        if let Ok(Query(query)) = Query::<T>::try_from_uri(&uri) {
            return Ok(Self(query));
        }
        // Produces the same error as every other route.
        Params::<T>::from_request_parts(parts, state).await.map(|Params(query)| Self(query))
    }
}

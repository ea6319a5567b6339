//! The dashboard: pages over the same operations that the JSON routes call, with the same rights.
//!
//! One file per page gathers what it shows; how that looks is the `pages` crate's. Pages only read. What changes something
//! is a call of a JSON route by the page's script, so that there is one way in, one check and one history.

mod assets;
mod dead_letters;
mod deliveries;
mod failures;
mod frame;
mod history;
mod job;
mod jobs;
mod overview;
mod pools;
mod queues;
mod runtimes;
mod signals;
mod subjects;
mod system;
mod tokens;
mod triggers;
mod workers;

use axum::extract::{FromRequestParts, Query, Request};
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use pages::error::{ErrorPage, Onward};
use pages::frame::root_of;
use pages::{Place, Template};
use serde::de::DeserializeOwned;
use utoipa_axum::router::OpenApiRouter;
use wire::Problem;

pub(crate) use frame::{onward, places};

use crate::error::{ApiError, PROBLEM};
use crate::extract::Params;
use crate::state::AppState;

/// Scripts and styles come from files of ours alone, and nothing inline runs, whatever a payload says.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
     base-uri 'none'; frame-ancestors 'none'",
);
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(assets::routes())
        .merge(overview::routes())
        .merge(jobs::routes())
        .merge(job::routes())
        .merge(queues::routes())
        .merge(pools::routes())
        .merge(workers::routes())
        .merge(subjects::routes())
        .merge(failures::routes())
        .merge(dead_letters::routes())
        .merge(triggers::routes())
        .merge(deliveries::routes())
        .merge(runtimes::routes())
        .merge(signals::routes())
        .merge(history::routes())
        .merge(tokens::routes())
        .merge(system::routes())
}

/// A page on its way to a browser.
pub(crate) fn shown(page: &impl Template) -> Response {
    let html = page.render().expect("a string takes everything");
    (headers(), html).into_response()
}

fn headers() -> [(HeaderName, HeaderValue); 6] {
    [
        (CONTENT_TYPE, HTML),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        // The browser must say that what a page of ours sends comes from here.
        (REFERRER_POLICY, HeaderValue::from_static("same-origin")),
        (OPENER, HeaderValue::from_static("same-origin")),
    ]
}

/// Whether a person asks for a page, by way of a browser.
pub(crate) fn asks_for_a_page(method: &Method, uri: &Uri, headers: &HeaderMap) -> bool {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    *method == Method::GET
        && !uri.path().starts_with("/api/")
        && accepts.is_some_and(|accept| accept.contains("text/html"))
}

/// The way to the root, for a person who asked for a page: what went wrong is then shown as one.
pub(crate) fn reader(request: &Request) -> Option<String> {
    asks_for_a_page(request.method(), request.uri(), request.headers()).then(|| root_of(request.uri().path()))
}

pub(crate) async fn refusal(root: String, response: Response) -> Response {
    if response.headers().get(CONTENT_TYPE) != Some(&PROBLEM) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let onward = parts.extensions.remove().unwrap_or(Onward::Page(Place::Overview));
    let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    let html = ErrorPage { root, problem, onward }.render().expect("a string takes everything");
    parts.headers.remove(CONTENT_LENGTH);
    for (name, value) in headers() {
        parts.headers.insert(name, value);
    }
    Response::from_parts(parts, html.into())
}

/// Query parameters of a page: a form sends its empty fields too, and they ask for nothing.
struct PageParams<T>(T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for PageParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let is_filled = |pair: &&str| pair.split_once('=').is_some_and(|(_, value)| !value.is_empty());
        let filled: Vec<&str> = parts.uri.query().unwrap_or_default().split('&').filter(is_filled).collect();
        let uri: Uri =
            format!("/?{}", filled.join("&")).parse().map_err(|_| ApiError::invalid_query("", "unreadable"))?;
        if let Ok(Query(query)) = Query::<T>::try_from_uri(&uri) {
            return Ok(Self(query));
        }
        // What cannot be taken is refused in the words of every other route.
        Params::<T>::from_request_parts(parts, state).await.map(|Params(query)| Self(query))
    }
}

//! `/docs`: the documentation, embedded in the binary. Public, like the styles and scripts: it contains no user data.

use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use domain::limits::{DOCS_QUERY_BYTES, DOCS_RESULTS};
use pages::docs;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{PageParams, render};
use crate::error::ApiError;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(index)).routes(routes!(search)).routes(routes!(page))
}

/// Show the index of the documentation.
///
/// The documentation of this version, without network access.
#[utoipa::path(get, path = "/docs", tag = "pages", operation_id = "docs",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn index() -> Result<Response, ApiError> {
    answer("")
}

/// Show a page or a picture of the documentation.
///
/// Relative links of the pages work as in the source tree.
#[utoipa::path(get, path = "/docs/{*path}", tag = "pages", operation_id = "docs_page", params(("*path" = String, Path)),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(uri: Uri) -> Result<Response, ApiError> {
    // Relative links need the address as the browser sees it, so an encoded slash is not decoded.
    answer(uri.path().strip_prefix("/docs/").filter(|name| !name.is_empty()).ok_or_else(no_such_page)?)
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchParams {
    /// Text to find in titles and text, ignoring case; at most 200 bytes.
    #[serde(default)]
    #[param(max_length = 200)]
    q: String,
}

/// Search the documentation.
///
/// Returns at most 20 sections that contain every word.
#[utoipa::path(get, path = "/docs/search", tag = "pages", operation_id = "docs_search", params(SearchParams),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn search(PageParams(params): PageParams<SearchParams>) -> Result<Response, ApiError> {
    if params.q.len() > DOCS_QUERY_BYTES {
        let detail = format!("q must have at most {DOCS_QUERY_BYTES} bytes; it has {}", params.q.len());
        return Err(ApiError::invalid_query("q", detail));
    }
    Ok(render(&docs::search(&params.q, DOCS_RESULTS)))
}

fn answer(name: &str) -> Result<Response, ApiError> {
    if let Some((content_type, bytes)) = docs::picture(name) {
        let headers = [
            (CONTENT_TYPE, HeaderValue::from_static(content_type)),
            (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
            (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        ];
        return Ok((headers, bytes).into_response());
    }
    docs::page(name).map(|page| render(&page)).ok_or_else(no_such_page)
}

fn no_such_page() -> ApiError {
    ApiError::not_found("page of the documentation")
}

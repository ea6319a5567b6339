//! Serves the styles and scripts of the pages.

use axum::extract::Path;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use pages::assets::{VERSION, find};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::error::ApiError;
use crate::state::AppState;

const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");
const REVALIDATE: HeaderValue = HeaderValue::from_static("no-cache");

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(get))
}

/// Get a style or a script of the dashboard.
///
/// An address with a version is immutable and cached for a year.
#[utoipa::path(get, path = "/static/{name}", tag = "pages", operation_id = "file", params(("name" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = Vec<u8>), (status = 304)))]
async fn get(Path(name): Path<String>, uri: Uri, headers: HeaderMap) -> Result<Response, ApiError> {
    let asset = find(&name).ok_or_else(|| ApiError::not_found("file"))?;
    let etag = HeaderValue::from_str(&format!("\"{}\"", *VERSION)).expect("hex is ASCII");
    // An address with the version of this content is immutable; another one must be revalidated.
    let is_named = uri.query().and_then(|query| query.strip_prefix("v=")) == Some(VERSION.as_str());
    let cache_control = if is_named { IMMUTABLE } else { REVALIDATE };
    if headers.get(IF_NONE_MATCH) == Some(&etag) {
        return Ok((StatusCode::NOT_MODIFIED, [(ETAG, etag), (CACHE_CONTROL, cache_control)]).into_response());
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.content_type)),
        (CACHE_CONTROL, cache_control),
        (ETAG, etag),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, asset.bytes).into_response())
}

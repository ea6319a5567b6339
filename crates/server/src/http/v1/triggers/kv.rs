//! Key-value collections.

use axum::Json;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::kv::change::KvReply;
use store::triggers::kv::{Condition, KvEntry};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{KvView, Page};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{AnyJson, Params, PathCollection, PathEntry, header};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth;
use crate::triggers::sync;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete))
}

/// List the entries of a collection by key.
#[utoipa::path(get, path = "/api/v1/kv/{collection}", tag = "kv", params(("collection" = String, Path), PageQuery),
    responses((status = 200, body = Page<KvView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    PathCollection(collection): PathCollection,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<KvView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::key(query.cursor.as_deref())?;
    let entries = state.store.list_kv(principal.tenant, collection.as_str(), after, limit + 1).await?;
    Ok(Json(page(entries, limit, |last| cursor::after_key(&last.key)).try_map(view)?))
}

/// Get a value.
///
/// The `ETag` header is the version; send it as `If-Match` to change the value only if it is still the same.
#[utoipa::path(get, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path)),
    responses((status = 200, body = KvView, headers(("ETag" = String, description = "Version of the value")))))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
) -> Result<Response, ApiError> {
    let entry = state.store.kv(principal.tenant, collection.as_str(), key.as_str()).await?;
    let entry = entry.ok_or_else(|| ApiError::not_found("key"))?;
    let tag = tag(&entry);
    Ok((tag, Json(view(entry)?)).into_response())
}

/// Set a value to any JSON.
///
/// Fires the triggers on the collection. Returns 412 if a condition does not hold, and 413 if the body is too large.
#[utoipa::path(put, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Set the value only if it has this ETag, or any with *."),
        ("If-None-Match" = Option<String>, Header, description = "Set the value only if the key does not exist: *.")),
    request_body = serde_json::Value,
    responses((status = 200, body = KvView, headers(("ETag" = String, description = "Version of the value"))),
        (status = 412, description = "A condition does not hold; nothing was changed")))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
    AnyJson(value): AnyJson,
) -> Result<Response, ApiError> {
    let (depth, condition) = (depth::of(&headers)?, condition(&headers)?);
    let key = (collection.as_str(), key.as_str());
    let (entry, waited) = applied(state.store.set_kv(principal.tenant, key, value, condition, depth).await?)?;
    let tag = tag(&entry);
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok((tag, Json(KvView { runs, ..view(entry)? })).into_response())
}

/// Delete a value and return it.
///
/// Fires the triggers on the collection. Returns 412 if a condition does not hold.
#[utoipa::path(delete, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path),
        ("If-Match" = Option<String>, Header, description = "Delete the value only if it has this ETag, or any with *.")),
    responses((status = 200, body = KvView),
        (status = 412, description = "A condition does not hold; nothing was changed")))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
) -> Result<Json<KvView>, ApiError> {
    let (depth, condition) = (depth::of(&headers)?, condition(&headers)?);
    let key = (collection.as_str(), key.as_str());
    let (entry, waited) = applied(state.store.delete_kv(principal.tenant, key, condition, depth).await?)?;
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok(Json(KvView { runs, ..view(entry)? }))
}

fn applied(reply: KvReply) -> Result<(KvEntry, Vec<AwaitedRun>), ApiError> {
    match reply {
        KvReply::Done(entry, waited) => Ok((entry, waited)),
        KvReply::NotFound => Err(ApiError::not_found("key")),
        KvReply::VersionMismatch(version) => Err(ApiError::precondition_failed(version)),
    }
}

fn tag(entry: &KvEntry) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{}\"", entry.version))]
}

/// Returns the condition of the request's conditional headers.
fn condition(headers: &HeaderMap) -> Result<Condition, ApiError> {
    match (header(headers, &IF_MATCH)?, header(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Present),
        (Some(tags), None) => tags.split(',').map(version).collect::<Result<_, _>>().map(Condition::Version),
        (None, Some("*")) => Ok(Condition::Absent),
        (None, Some(_)) => Err(ApiError::invalid_header("If-None-Match", "must be *")),
        (Some(_), Some(_)) => {
            Err(ApiError::invalid_header("If-None-Match", "cannot be combined with If-Match; send one of them"))
        }
    }
}

fn version(tag: &str) -> Result<i64, ApiError> {
    let number = tag.trim().strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| ApiError::invalid_header("If-Match", "must be an ETag of the key: its version in quotes"))
}

fn view(entry: KvEntry) -> Result<KvView, ApiError> {
    Ok(KvView {
        collection: entry.collection,
        key: entry.key,
        value: view::raw(entry.value)?,
        version: entry.version,
        created_at: view::time(entry.created_at),
        updated_at: view::time(entry.updated_at),
        runs: Vec::new(),
    })
}

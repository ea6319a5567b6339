//! Key-value collections (T1).

use axum::Json;
use axum::extract::State;
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use store::events::waited::Waited;
use store::kv::change::KvReply;
use store::kv::{Condition, Entry};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{KvView, Page};

use crate::auth::Principal;
use crate::cursor;
use crate::depth;
use crate::error::ApiError;
use crate::extract::{AnyJson, Params, PathCollection, PathEntry, header};
use crate::page::page;
use crate::state::AppState;
use crate::sync;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete))
}

/// Lists a collection by key.
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

/// One value.
#[utoipa::path(get, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path)),
    responses((status = 200, body = KvView, headers(("ETag" = String, description = "its version")))))]
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

/// Sets a value: any JSON. Triggers that listen to the collection hear of it.
#[utoipa::path(put, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path),
        ("If-Match" = Option<String>, Header, description = "only while it has this version: an ETag, or * for any"),
        ("If-None-Match" = Option<String>, Header, description = "only while there is none: *")),
    request_body = serde_json::Value,
    responses((status = 200, body = KvView, headers(("ETag" = String, description = "its version"))),
        (status = 412, description = "it is not as the headers say; nothing was changed")))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
    AnyJson(value): AnyJson,
) -> Result<Response, ApiError> {
    let (depth, condition) = (depth::of(&headers)?, condition(&headers)?);
    let key = (collection.as_str(), key.as_str());
    let (entry, waited) = done(state.store.set_kv(principal.tenant, key, value, condition, depth).await?)?;
    let tag = tag(&entry);
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok((tag, Json(KvView { runs, ..view(entry)? })).into_response())
}

/// Deletes a value and gives what was there.
#[utoipa::path(delete, path = "/api/v1/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path),
        ("If-Match" = Option<String>, Header, description = "only while it has this version: an ETag, or * for any")),
    responses((status = 200, body = KvView),
        (status = 412, description = "it is not as the headers say; nothing was changed")))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
) -> Result<Json<KvView>, ApiError> {
    let (depth, condition) = (depth::of(&headers)?, condition(&headers)?);
    let key = (collection.as_str(), key.as_str());
    let (entry, waited) = done(state.store.delete_kv(principal.tenant, key, condition, depth).await?)?;
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok(Json(KvView { runs, ..view(entry)? }))
}

fn done(reply: KvReply) -> Result<(Entry, Vec<Waited>), ApiError> {
    match reply {
        KvReply::Done(entry, waited) => Ok((entry, waited)),
        KvReply::NotFound => Err(ApiError::not_found("key")),
        KvReply::Otherwise(version) => Err(ApiError::precondition_failed(version)),
    }
}

fn tag(entry: &Entry) -> [(HeaderName, String); 1] {
    [(ETAG, format!("\"{}\"", entry.version))]
}

/// What the request says that must be so of the key.
fn condition(headers: &HeaderMap) -> Result<Condition, ApiError> {
    match (header(headers, &IF_MATCH)?, header(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(Condition::Always),
        (Some("*"), None) => Ok(Condition::Present),
        (Some(tags), None) => tags.split(',').map(version).collect::<Result<_, _>>().map(Condition::Version),
        (None, Some("*")) => Ok(Condition::Absent),
        (None, Some(_)) => Err(ApiError::invalid_header("If-None-Match", "takes * alone")),
        (Some(_), Some(_)) => Err(ApiError::invalid_header("If-None-Match", "cannot go with If-Match")),
    }
}

fn version(tag: &str) -> Result<i64, ApiError> {
    let number = tag.trim().strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let number = number.and_then(|number| number.parse().ok());
    number.ok_or_else(|| ApiError::invalid_header("If-Match", "must be the key's ETag: its version in quotes"))
}

fn view(entry: Entry) -> Result<KvView, ApiError> {
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

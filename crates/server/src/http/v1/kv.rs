//! Key-value collections (T1).

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use store::kv::Entry;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{KvView, Page};

use crate::auth::Principal;
use crate::cursor;
use crate::depth;
use crate::error::ApiError;
use crate::extract::{AnyJson, Params, PathEntry, PathName};
use crate::state::AppState;
use crate::sync;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete))
}

/// Lists a collection by key.
#[utoipa::path(get, path = "/kv/{collection}", tag = "kv", params(("collection" = String, Path), PageQuery),
    responses((status = 200, body = Page<KvView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    PathName(collection): PathName,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<KvView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::key(query.cursor.as_deref())?;
    let mut entries = state.store.list_kv(principal.tenant, collection.as_str(), after, limit + 1).await?;
    let more = entries.len() > limit;
    entries.truncate(limit);
    let next_cursor = entries.last().filter(|_| more).map(|last| cursor::after_key(&last.key));
    let items = entries.into_iter().map(view).collect::<Result<_, _>>()?;
    Ok(Json(Page { items, next_cursor, partial: false }))
}

/// One value.
#[utoipa::path(get, path = "/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path)), responses((status = 200, body = KvView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
) -> Result<Json<KvView>, ApiError> {
    let entry = state.store.kv(principal.tenant, collection.as_str(), key.as_str()).await?;
    Ok(Json(view(entry.ok_or_else(|| ApiError::not_found("key"))?)?))
}

/// Sets a value: any JSON. Triggers that listen to the collection hear of it.
#[utoipa::path(put, path = "/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path)), request_body = serde_json::Value,
    responses((status = 200, body = KvView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
    AnyJson(value): AnyJson,
) -> Result<Json<KvView>, ApiError> {
    let depth = depth::of(&headers)?;
    let (entry, waited) = state.store.set_kv(principal.tenant, collection.as_str(), key.as_str(), value, depth).await?;
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok(Json(KvView { runs, ..view(entry)? }))
}

/// Deletes a value and gives what was there.
#[utoipa::path(delete, path = "/kv/{collection}/{key}", tag = "kv",
    params(("collection" = String, Path), ("key" = String, Path)), responses((status = 200, body = KvView)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathEntry { collection, key }: PathEntry,
    headers: HeaderMap,
) -> Result<Json<KvView>, ApiError> {
    let depth = depth::of(&headers)?;
    let deleted = state.store.delete_kv(principal.tenant, collection.as_str(), key.as_str(), depth).await?;
    let (entry, waited) = deleted.ok_or_else(|| ApiError::not_found("key"))?;
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok(Json(KvView { runs, ..view(entry)? }))
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

//! The OpenAI-compatible API under `/openai/v1`, for unmodified OpenAI clients.
//!
//! Models are the affinities of pools. A chat completion, a completion or an embedding is a synchronous call; a batch
//! is a set of jobs. The bearer token is a Windlass token. Errors have OpenAI's format, including those raised before a
//! request reaches these handlers.

mod batches;
mod files;
mod form;
mod inference;
mod models;
mod refused;

use domain::Right;
use domain::limits::LABEL_BYTES;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;

use refused::OpenAiError;
pub(crate) use refused::into_openai_error;

/// Prefix of every path of this API.
pub(crate) const PREFIX: &str = "/openai/v1";

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(models::routes())
        .merge(inference::routes())
        .merge(files::routes())
        .merge(batches::routes())
}

/// Builds a page in OpenAI's format. `items` has one more item than the page if another page follows.
fn page(mut items: Vec<Value>, limit: usize) -> Value {
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    json!({"object": "list", "first_id": id(items.first()), "last_id": id(items.last()), "has_more": has_more,
           "data": items})
}

/// Restricts a listing to the caller's own files and batches, unless it may read results.
fn owner_filter(principal: &Principal) -> Option<String> {
    (!principal.has(Right::ReadResults)).then(|| principal.name.to_string())
}

/// Returns 403 for a file or batch of another principal, unless the caller has `right`.
fn check_owner(principal: &Principal, owner: &str, right: Right) -> Result<(), OpenAiError> {
    if *principal.name == *owner || principal.has(right) {
        return Ok(());
    }
    Err(ApiError::forbidden(format_args!(
        "the object belongs to another principal; access requires the right {}",
        right.as_str()
    ))
    .into())
}

/// True if the text is well-formed as an id with this prefix; otherwise no lookup is needed.
fn is_id(id: &str, prefix: &str) -> bool {
    id.starts_with(prefix) && id.len() <= LABEL_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the id after which the page starts.
fn after(id: Option<String>, prefix: &str) -> Result<Option<String>, OpenAiError> {
    match id {
        Some(id) if !is_id(&id, prefix) => {
            Err(ApiError::invalid_query("after", "after must be the last id of the previous page").into())
        }
        id => Ok(id),
    }
}

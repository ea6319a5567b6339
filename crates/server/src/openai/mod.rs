//! The OpenAI-compatible face under `/openai/v1` (R8): the stock client runs on one's own models.
//!
//! Models are the affinities of pools. A chat, a completion or an embedding is a synchronous call; a batch is jobs. Bearer
//! is our token. What goes wrong is told in that API's shape, here and for whatever refuses a request before it gets here.

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

use crate::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;

use refused::Refused;
pub(crate) use refused::in_that_apis_words;

/// What every path of this face begins with.
pub(crate) const PREFIX: &str = "/openai/v1";

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .merge(models::routes())
        .merge(inference::routes())
        .merge(files::routes())
        .merge(batches::routes())
}

/// A page as that API gives it, of one item more than it has if there are more.
fn page(mut items: Vec<Value>, limit: usize) -> Value {
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
    json!({"object": "list", "first_id": id(items.first()), "last_id": id(items.last()), "has_more": has_more,
           "data": items})
}

/// Whoever may read results sees everybody's files and batches; a producer sees its own.
fn only_of(principal: &Principal) -> Option<String> {
    (!principal.has(Right::ReadResults)).then(|| principal.name.to_string())
}

/// Another's file or batch takes the right that another's job would.
fn check_owner(principal: &Principal, owner: &str, right: Right) -> Result<(), Refused> {
    if *principal.name == *owner || principal.has(right) {
        return Ok(());
    }
    Err(ApiError::forbidden(format_args!("it is another's: that takes the right {}", right.as_str())).into())
}

/// Whether it could be an id of that kind; others are not looked for.
fn is_id(id: &str, prefix: &str) -> bool {
    id.starts_with(prefix) && id.len() <= LABEL_BYTES && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The id that a page begins after.
fn after(id: Option<String>, prefix: &str) -> Result<Option<String>, Refused> {
    match id {
        Some(id) if !is_id(&id, prefix) => {
            Err(ApiError::invalid_query("after", "must be the last id of the page before").into())
        }
        id => Ok(id),
    }
}

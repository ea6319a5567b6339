//! Models: the affinities of the tenant's pools.

use axum::Json;
use axum::extract::{Path, State};
use engine::runtimes::openai::{Model, models as all};
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::OpenAiError;
use crate::access::auth::Principal;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_models)).routes(routes!(model))
}

/// List the models of all pools.
///
/// A model is a member of a pool; its id is the affinity.
#[utoipa::path(get, path = "/openai/v1/models", tag = "openai", responses((status = 200, body = Object)))]
async fn list_models(State(state): State<AppState>, principal: Principal) -> Result<Json<Value>, OpenAiError> {
    let models = all(&state.store, principal.tenant).await?;
    let visible = models.iter().filter(|(_, model)| principal.reaches(&model.queue));
    let data: Vec<Value> = visible.map(|(id, model)| view(id, model)).collect();
    Ok(Json(json!({"object": "list", "data": data})))
}

/// Get a model.
///
/// The id is the affinity of a pool's member.
#[utoipa::path(get, path = "/openai/v1/models/{model}", tag = "openai", params(("model" = String, Path)),
    responses((status = 200, body = Object)))]
async fn model(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    let models = all(&state.store, principal.tenant).await?;
    let found = models.get(&id).filter(|model| principal.reaches(&model.queue));
    found.map(|model| Json(view(&id, model))).ok_or_else(|| OpenAiError::no_model(&id))
}

fn view(id: &str, model: &Model) -> Value {
    let created = model.created_at.millis() / 1_000;
    json!({"id": id, "object": "model", "created": created, "owned_by": model.pool.as_str()})
}

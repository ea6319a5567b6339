//! Nodes that drive Docker engines: capacity, usage and last contact.

use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{NodeView, Page};

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List the nodes that drive a Docker engine, by name.
///
/// The response is not paginated.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "runtimes", operation_id = "nodes",
    responses((status = 200, body = Page<NodeView>)))]
pub(crate) async fn list(State(state): State<AppState>, _: Principal) -> Result<Json<Page<NodeView>>, ApiError> {
    let now = state.store.clock().now();
    let nodes = state.store.engine_nodes_with_load().await?;
    let items = nodes.into_iter().map(|(node, used_slots)| view::runtimes::node(node, used_slots, now)).collect();
    Ok(Json(Page { items, next_cursor: None, partial: false }))
}

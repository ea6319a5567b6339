//! `/tokens`: who may do what.

use axum::extract::State;
use axum::response::Response;
use domain::{Right, Role};
use pages::Place;
use pages::tokens::Tokens;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::http::v1::tokens::TokenQuery;
use crate::state::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Tokens, newest first, and what roles bring.
#[utoipa::path(get, path = "/tokens", tag = "pages", operation_id = "tokens", params(TokenQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<TokenQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, Place::Tokens, v1::tokens::list, query).await?;
    let roles = Role::ALL.into_iter().map(|role| {
        let rights = Right::ALL.into_iter().filter(|right| role.rights().has(*right));
        let rights: Vec<&str> = rights.map(Right::as_str).collect();
        (role.as_str(), rights.join(", "))
    });
    let grantable = Right::GRANTABLE.iter().map(|right| right.as_str());
    Ok(shown(&Tokens { frame, page, roles: roles.collect(), grantable: grantable.collect() }))
}

//! `/tokens`: who may do what.

use std::path::Path;

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
    let database = database(state.store.sqlite_path());
    Ok(shown(&Tokens { frame, page, roles: roles.collect(), grantable: grantable.collect(), database }))
}

/// What `--database` takes. An address on PostgreSQL may hold a password, and a path that a shell would take apart is not for
/// copying: of these only the beginning is told.
fn database(sqlite: Option<&Path>) -> String {
    let Some(path) = sqlite else { return "postgres://…".into() };
    let is_plain = |path: &String| path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let path = std::path::absolute(path).ok().map(|path| path.display().to_string()).filter(is_plain);
    format!("sqlite:{}", path.as_deref().unwrap_or("…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x7_a_database_is_named_for_copying_and_without_its_password() {
        assert_eq!(database(None), "postgres://…");
        assert_eq!(database(Some(Path::new("/var/lib/windlass.db"))), "sqlite:/var/lib/windlass.db");
        assert_eq!(database(Some(Path::new("/tmp/$(reboot).db"))), "sqlite:…");
        assert!(database(Some(Path::new("windlass.db"))).starts_with("sqlite:/"));
    }
}

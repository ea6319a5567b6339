//! `/tokens`: tokens and the rights of roles.

use std::path::Path;

use axum::extract::State;
use axum::response::Response;
use domain::{Right, Role};
use pages::DashboardPage;
use pages::access::tokens::Tokens;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::http::v1::access::tokens::TokenQuery;
use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show tokens, newest first, and the rights of each role.
#[utoipa::path(get, path = "/tokens", tag = "pages", operation_id = "tokens", params(TokenQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<TokenQuery>,
) -> Result<Response, ApiError> {
    let (frame, page) = viewer.listing(&state, DashboardPage::Tokens, v1::access::tokens::list, query).await?;
    let roles = Role::ALL.into_iter().map(|role| {
        let rights = Right::ALL.into_iter().filter(|right| role.rights().has(*right));
        let rights: Vec<&str> = rights.map(Right::as_str).collect();
        (role.as_str(), rights.join(", "))
    });
    let grantable = Right::GRANTABLE.iter().map(|right| right.as_str());
    let database = database(state.store.sqlite_path());
    Ok(render(&Tokens { frame, page, roles: roles.collect(), grantable: grantable.collect(), database }))
}

/// Value of `--database` for the commands shown on the page. Truncated where it could be unsafe: a PostgreSQL address
/// may contain a password, and a path with special characters must not be pasted into a shell.
fn database(sqlite: Option<&Path>) -> String {
    let Some(path) = sqlite else { return "postgres://…".into() };
    let is_plain = |path: &String| path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let path = std::path::absolute(path).ok().map(|path| path.display().to_string()).filter(is_plain);
    format!("sqlite:{}", path.as_deref().unwrap_or("…"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement X7.
    #[test]
    fn a_database_url_is_shown_without_its_password() {
        assert_eq!(database(None), "postgres://…");
        assert_eq!(database(Some(Path::new("/var/lib/windlass.db"))), "sqlite:/var/lib/windlass.db");
        assert_eq!(database(Some(Path::new("/tmp/$(reboot).db"))), "sqlite:…");
        assert!(database(Some(Path::new("windlass.db"))).starts_with("sqlite:/"));
    }
}

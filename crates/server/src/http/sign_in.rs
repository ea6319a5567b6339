//! Sign-in and sign-out of the dashboard: exchanges a token for a session cookie.

use axum::extract::{Form, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pages::DashboardPage;
use pages::access::sign_in::SignIn as SignInPage;
use serde::Deserialize;
use store::access::tokens::authenticate::Authentication;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::auth::{Principal, SkipTokenRecheck};
use crate::access::session::SessionSecret;
use crate::dashboard::{render, visible_pages};
use crate::error::ApiError;
use crate::extract::Params;
use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page, sign_in)).routes(routes!(sign_out))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Next {
    /// The page to open after sign-in.
    next: Option<String>,
}

/// Show the sign-in page.
///
/// The form takes a token and starts a session.
#[utoipa::path(get, path = "/sign-in", tag = "pages", params(Next),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(Params(query): Params<Next>) -> Response {
    html(StatusCode::OK, query.next.as_deref(), None)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    /// The secret text of a token.
    token: String,
    /// The page to open after sign-in.
    #[serde(default)]
    next: Option<String>,
}

/// Sign in to the dashboard with a token.
///
/// Redirects with a session cookie. Returns 401 for an invalid token.
#[utoipa::path(post, path = "/sign-in", tag = "pages",
    request_body(content = SignIn, content_type = "application/x-www-form-urlencoded"),
    responses((status = 303), (status = 401, content_type = "text/html", body = String)))]
async fn sign_in(
    State(state): State<AppState>,
    form: Result<Form<SignIn>, axum::extract::rejection::FormRejection>,
) -> Result<Response, ApiError> {
    let Ok(Form(form)) = form else { return Ok(html(StatusCode::BAD_REQUEST, None, Some("Enter a token."))) };
    let next = form.next.as_deref();
    match state.store.authenticate(Some(form.token.trim())).await? {
        Authentication::Token(authenticated) => {
            let secret = SessionSecret::new();
            state.store.begin_session(&authenticated.token, secret.hash()).await?;
            // The overview needs rights that not every token has: without `next`, redirect to the first page the token
            // may open.
            let home = visible_pages(&Principal::of(authenticated)).next().map(DashboardPage::path);
            let next = if local(next) == "/" { home } else { next };
            Ok(go(next, state.options.cookies.cookie(&secret)))
        }
        Authentication::Open => Ok(go(next, state.options.cookies.no_cookie())),
        Authentication::Missing | Authentication::Refused => {
            let error = "The token is unknown, expired or revoked.";
            Ok(html(StatusCode::UNAUTHORIZED, next, Some(error)))
        }
    }
}

/// Sign out of the dashboard.
///
/// Once the response arrives, no node accepts the session cookie.
#[utoipa::path(post, path = "/sign-out", tag = "pages", responses((status = 303)))]
async fn sign_out(State(state): State<AppState>, _: Principal, headers: HeaderMap) -> Result<Response, ApiError> {
    if let Some(secret) = state.options.cookies.read(&headers) {
        state.store.end_session(secret.hash()).await?;
    }
    let mut response = go(Some("/sign-in"), state.options.cookies.no_cookie());
    response.extensions_mut().insert(SkipTokenRecheck);
    Ok(response)
}

fn go(next: Option<&str>, cookie: HeaderValue) -> Response {
    // A relative path: a proxy may serve the dashboard below a prefix.
    let location = HeaderValue::from_str(&format!(".{}", local(next))).unwrap_or(HeaderValue::from_static("./"));
    (StatusCode::SEE_OTHER, [(LOCATION, location), (SET_COOKIE, cookie)]).into_response()
}

/// Prevents open redirects: returns `next` only if it is a path on this host. `//evil` and `/\evil` are other hosts.
pub(crate) fn local(next: Option<&str>) -> &str {
    let is_local = |next: &&str| next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n']);
    next.filter(is_local).unwrap_or("/")
}

fn html(status: StatusCode, next: Option<&str>, error: Option<&str>) -> Response {
    (status, render(&SignInPage { next: local(next), wrong: error })).into_response()
}

#[cfg(test)]
mod tests {
    use super::local;

    /// Requirement X7.
    #[test]
    fn sign_in_redirects_only_to_local_pages() {
        assert_eq!(local(Some("/jobs?state=failed")), "/jobs?state=failed");
        for next in ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nset-cookie: x"] {
            assert_eq!(local(Some(next)), "/", "{next}");
        }
    }
}

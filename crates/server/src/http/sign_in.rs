//! Signing in and out of the pages: a token for a cookie, and back.

use axum::extract::{Form, State};
use axum::http::header::{LOCATION, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use pages::Place;
use pages::sign_in::SignIn as SignInPage;
use serde::Deserialize;
use store::tokens::authenticate::Caller;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Parting, Principal};
use crate::dashboard::{places, shown};
use crate::error::ApiError;
use crate::extract::Params;
use crate::session::SessionSecret;
use crate::state::AppState;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page, sign_in)).routes(routes!(sign_out))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Next {
    /// The page to go to afterwards.
    next: Option<String>,
}

/// The page to sign in on.
#[utoipa::path(get, path = "/sign-in", tag = "pages", params(Next),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(Params(query): Params<Next>) -> Response {
    html(StatusCode::OK, query.next.as_deref(), None)
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct SignIn {
    token: String,
    #[serde(default)]
    next: Option<String>,
}

/// Takes a token and gives a cookie.
#[utoipa::path(post, path = "/sign-in", tag = "pages",
    request_body(content = SignIn, content_type = "application/x-www-form-urlencoded"),
    responses((status = 303), (status = 401, content_type = "text/html", body = String)))]
async fn sign_in(
    State(state): State<AppState>,
    form: Result<Form<SignIn>, axum::extract::rejection::FormRejection>,
) -> Result<Response, ApiError> {
    let Ok(Form(form)) = form else { return Ok(html(StatusCode::BAD_REQUEST, None, Some("Give a token."))) };
    let next = form.next.as_deref();
    match state.store.authenticate(Some(form.token.trim())).await? {
        Caller::Token(known) => {
            let secret = SessionSecret::new();
            state.store.begin_session(&known.token, secret.hash()).await?;
            // Not everyone may see the overview: who asked for nothing else comes to the first page that is open to them.
            let home = places(&Principal::of(known)).next().map(Place::path);
            let next = if local(next) == "/" { home } else { next };
            Ok(go(next, state.options.cookies.cookie(&secret)))
        }
        Caller::Anyone => Ok(go(next, state.options.cookies.no_cookie())),
        Caller::Nobody | Caller::Refused => {
            let wrong = "That token is unknown, has expired or was revoked.";
            Ok(html(StatusCode::UNAUTHORIZED, next, Some(wrong)))
        }
    }
}

/// Ends the session. Once this is answered no node takes its cookie any more.
#[utoipa::path(post, path = "/sign-out", tag = "pages", responses((status = 303)))]
async fn sign_out(State(state): State<AppState>, _: Principal, headers: HeaderMap) -> Result<Response, ApiError> {
    if let Some(secret) = state.options.cookies.read(&headers) {
        state.store.end_session(secret.hash()).await?;
    }
    let mut gone = go(Some("/sign-in"), state.options.cookies.no_cookie());
    gone.extensions_mut().insert(Parting);
    Ok(gone)
}

fn go(next: Option<&str>, cookie: HeaderValue) -> Response {
    // From this page, not from the root of the host: a proxy may have put the pages under a path.
    let place = HeaderValue::from_str(&format!(".{}", local(next))).unwrap_or(HeaderValue::from_static("./"));
    (StatusCode::SEE_OTHER, [(LOCATION, place), (SET_COOKIE, cookie)]).into_response()
}

/// A page of ours, never another's: `//evil` and `/\evil` are addresses of other hosts.
pub(crate) fn local(next: Option<&str>) -> &str {
    let is_local = |next: &&str| next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n']);
    next.filter(is_local).unwrap_or("/")
}

fn html(status: StatusCode, next: Option<&str>, wrong: Option<&str>) -> Response {
    (status, shown(&SignInPage { next: local(next), wrong })).into_response()
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn x7_signing_in_leads_to_pages_of_ours_alone() {
        assert_eq!(local(Some("/jobs?state=failed")), "/jobs?state=failed");
        for next in ["", "jobs", "//evil.example", "/\\evil.example", "https://evil.example", "/a\r\nset-cookie: x"] {
            assert_eq!(local(Some(next)), "/", "{next}");
        }
    }
}

//! Sessions of the dashboard, and the protection of write routes against cross-site requests.

use axum::body::Body;
use axum::http::Request;
use serde_json::json;
use server::ServerOptions;
use store::StoreError;
use store::db::tx::{Operation, Sql, Tx};
use testkit::{Database, on_both};

use crate::access::tokens::Caller;
use crate::api::{Api, Response, json_request, request};

const HOST: &str = "windlass.example";
const ORIGIN: &str = "http://windlass.example";
/// The origin of the same server behind a proxy with TLS.
const PUBLIC_ORIGIN: &str = "https://windlass.example";

/// A browser, which may have signed in.
struct Browser<'a> {
    api: &'a Api,
    cookie: String,
}

impl Browser<'_> {
    async fn send(&self, mut request: Request<Body>, headers: &[(&'static str, &str)]) -> Response {
        let all = [("host", HOST), ("cookie", self.cookie.as_str())];
        for (name, value) in all.iter().chain(headers).filter(|(_, value)| !value.is_empty()) {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        self.api.send(request).await
    }

    async fn page(&self, path: &str) -> Response {
        let page = request("GET", path).header("accept", "text/html").body(Body::empty()).unwrap();
        self.send(page, &[]).await
    }

    /// Sends the form of the sign-in page.
    async fn sign_in(&mut self, token: &str, next: &str) -> Response {
        let form = request("POST", "/sign-in").header("content-type", "application/x-www-form-urlencoded");
        let form = form.body(Body::from(format!("token={token}&next={next}"))).unwrap();
        let response = self.send(form, &[("origin", ORIGIN)]).await;
        self.take_cookie(&response);
        response
    }

    async fn post(&self, path: &str, headers: &[(&'static str, &str)]) -> Response {
        self.send(json_request("POST", path, &json!({"queue": "q", "kind": "k"})), headers).await
    }

    fn take_cookie(&mut self, response: &Response) -> bool {
        let Some(cookie) = response.headers.get("set-cookie") else { return false };
        self.cookie = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
        true
    }
}

/// Requirement X7.
#[tokio::test]
async fn a_user_signs_in_with_a_token_and_out_again() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let token = api.token(json!({"name": "me", "role": "admin"})).await;
        let mut browser = Browser { api: &api, cookie: String::new() };
        let start = browser.page("/?a=b").await;
        assert_eq!((start.status.as_u16(), start.header("location")), (303, "./sign-in?next=/%3Fa%3Db"));
        let page = browser.page("/sign-in").await;
        assert_eq!(page.status, 200);
        assert!(page.header("content-security-policy").contains("form-action 'self'"));

        let wrong = browser.sign_in("windlass_nonsense", "/").await;
        assert_eq!((wrong.status.as_u16(), browser.cookie.as_str()), (401, ""));
        let shown = String::from_utf8_lossy(&wrong.body);
        assert!(shown.contains("The token is unknown"), "the page says what is wrong: {shown}");
        assert!(!shown.contains("nonsense"), "the input is not repeated");
        let signed_in = browser.sign_in(&token, "//evil.example").await;
        assert_eq!((signed_in.status.as_u16(), signed_in.header("location")), (303, "./"));
        let cookie = signed_in.header("set-cookie");
        assert!(
            cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && cookie.contains("Path=/"),
            "{cookie}"
        );
        assert!(!cookie.contains(&token));
        assert_eq!(browser.page("/").await.status, 200);
        assert_eq!(browser.page("/api/v1/jobs").await.status, 200);
        assert_eq!(browser.post("/api/v1/jobs", &[("origin", ORIGIN)]).await.status, 202);

        let before = browser.cookie.clone();
        let out = browser.post("/sign-out", &[("origin", ORIGIN)]).await;
        assert_eq!((out.status.as_u16(), out.header("location")), (303, "./sign-in"));
        assert!(out.header("set-cookie").contains("Max-Age=0"));
        browser.cookie = before;
        browser.page("/api/v1/jobs").await.problem(401, "token_required", None);
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn sign_in_works_through_a_proxy_with_another_host_header() {
    let options = ServerOptions { public_origin: Some(PUBLIC_ORIGIN.into()), ..ServerOptions::default() };
    let api = Api::with(Database::sqlite().await, options).await;
    let token = api.token(json!({"name": "me", "role": "admin"})).await;
    let mut browser = Browser { api: &api, cookie: String::new() };
    let through = |origin: &'static str| [("host", "127.0.0.1:7717"), ("origin", origin)];
    let sign_in = || {
        let form = request("POST", "/sign-in").header("content-type", "application/x-www-form-urlencoded");
        form.body(Body::from(format!("token={token}"))).unwrap()
    };
    browser.send(sign_in(), &through("https://evil.example")).await.problem(403, "host_not_allowed", None);
    let signed_in = browser.send(sign_in(), &through(PUBLIC_ORIGIN)).await;
    assert_eq!(signed_in.status, 303);
    assert!(browser.take_cookie(&signed_in));
    assert_eq!(browser.post("/api/v1/jobs", &through(PUBLIC_ORIGIN)).await.status, 202);
    browser.post("/api/v1/jobs", &through("https://evil.example")).await.problem(403, "host_not_allowed", None);
}

/// Counts the stored sessions.
struct CountSessions;

const COUNT_SESSIONS: Sql = Sql::both(&["select count(*) from sessions"]);

impl Operation for CountSessions {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        tx.query_opt(&COUNT_SESSIONS, &[]).await?.map_or(Ok(0), |row| row.int(0))
    }
}

/// Requirement X7.
#[tokio::test]
async fn a_session_rotates_its_secret_hourly_and_ends_with_its_token() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let made = admin.post("/api/v1/tokens", json!({"name": "me", "role": "viewer"})).await.json();
        let mut browser = Browser { api: &api, cookie: String::new() };
        browser.sign_in(made["token"].as_str().unwrap(), "/").await;
        assert!(!browser.page("/").await.headers.contains_key("set-cookie"), "the cookie is not renewed yet");
        api.db.pass_ms(3_601_000).await;
        let old = browser.cookie.clone();
        let page = browser.page("/").await;
        assert!(browser.take_cookie(&page) && browser.cookie != old);
        assert_eq!(browser.page("/").await.status, 200);
        let late = Browser { api: &api, cookie: old };
        assert_eq!(late.page("/").await.status, 200, "concurrent requests may use the old cookie for a minute");
        api.db.pass_ms(61_000).await;
        assert_eq!(late.page("/").await.status, 303, "the old cookie has expired");
        assert_eq!(browser.page("/").await.status, 200);

        let revoked = admin.delete(&format!("/api/v1/tokens/{}", made["id"].as_str().unwrap())).await;
        assert_eq!(revoked.status, 204);
        assert_eq!(browser.page("/").await.status, 303, "a session ends with its token");
        let own = admin.post("/api/v1/tokens", json!({"name": "leaver", "role": "admin"})).await.json();
        let leaver = Caller { api: &api, token: own["token"].as_str().unwrap().to_owned() };
        let path = format!("/api/v1/tokens/{}", own["id"].as_str().unwrap());
        assert_eq!(leaver.delete(&path).await.status, 204, "a token can revoke itself");
        leaver.get("/api/v1/jobs").await.problem(401, "invalid_token", None);
        browser.sign_in(&admin.token, "/").await;
        assert_eq!(browser.page("/").await.status, 200);
        api.db.pass_ms(12 * 3_600_000 + 60_000).await;
        assert_eq!(browser.page("/").await.status, 303, "an unused session expires");
        // The engine's own task may have pruned the sessions already.
        api.db.store.prune_sessions().await.unwrap();
        assert_eq!(api.db.store.read(CountSessions).await.unwrap(), 0);
    })
    .await;
}

/// Asserts a 403 in the error format of the path.
#[track_caller]
fn assert_rejected(path: &str, response: &Response) {
    if path.starts_with("/openai/") {
        assert_eq!((response.status.as_u16(), &response.json()["error"]["code"]), (403, &json!("host_not_allowed")));
    } else {
        response.problem(403, "host_not_allowed", None);
    }
}

/// Requirement X7.
#[tokio::test]
async fn cross_origin_requests_are_rejected_on_every_write_route() {
    let api = Api::new(Database::sqlite().await).await;
    let token = api.token(json!({"name": "me", "role": "admin"})).await;
    let mut browser = Browser { api: &api, cookie: String::new() };
    browser.sign_in(&token, "/").await;
    let caller = Caller { api: &api, token };
    let document: serde_json::Value = serde_json::from_str(&server::document().to_json().unwrap()).unwrap();
    let mut requests = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "00000000-0000-7000-8000-000000000000").replace(['{', '}'], "");
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            let method = method.to_uppercase();
            for headers in [
                [("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
                [("origin", "https://evil.example"), ("sec-fetch-site", "")],
                [("origin", ""), ("sec-fetch-site", "same-site")],
                [("origin", "null"), ("sec-fetch-site", "")],
            ] {
                assert_rejected(&path, &browser.send(json_request(&method, &path, &json!({})), &headers).await);
                let mut with_token = json_request(&method, &path, &json!({}));
                for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
                    with_token.headers_mut().insert(*name, value.parse().unwrap());
                }
                assert_rejected(&path, &caller.send(with_token).await);
                requests += 1;
            }
            // Browsers send `Origin` or `Sec-Fetch-Site`, so a cookie without either is rejected.
            let has_its_own_secret = path.starts_with("/api/v1/hooks/") || path.ends_with("/facts");
            if path != "/sign-in" && !has_its_own_secret {
                assert_rejected(&path, &browser.send(json_request(&method, &path, &json!({})), &[]).await);
            }
        }
    }
    assert!(requests > 60, "only {requests}");
}

/// Requirement X7.
#[tokio::test]
async fn sign_in_and_error_pages_lead_to_a_page_the_user_may_read() {
    let api = Api::new(Database::sqlite().await).await;
    for (token, home) in [
        (json!({"name": "o", "role": "viewer"}), "./"),
        (json!({"name": "v", "role": "viewer", "queues": ["q"]}), "./jobs"),
        (json!({"name": "p", "role": "producer"}), "./jobs"),
    ] {
        let token = api.token(token).await;
        let mut browser = Browser { api: &api, cookie: String::new() };
        assert_eq!(browser.sign_in(&token, "/").await.header("location"), home);
        let page = browser.page(home.trim_start_matches('.')).await;
        assert_eq!(page.status, 200);
        let brand = format!("class=\"brand\" href=\"{home}\"");
        assert!(String::from_utf8_lossy(&page.body).contains(&brand), "{home}");
        for (path, status) in [("/tokens", 403), ("/no-such-page", 404)] {
            let refused = browser.page(path).await;
            assert_eq!(refused.status, status, "{path}");
            assert!(String::from_utf8_lossy(&refused.body).contains(&format!("<a href=\"{home}\">")), "{path} {home}");
        }
        let signed_in = browser.sign_in(&token, "/jobs?state=failed").await;
        assert_eq!(signed_in.header("location"), "./jobs?state=failed", "the requested page takes precedence");
    }
    // A worker's token may read no page, so the error page links to the sign-in page.
    let token = api.token(json!({"name": "w", "role": "worker"})).await;
    let mut browser = Browser { api: &api, cookie: String::new() };
    assert_eq!(browser.sign_in(&token, "/").await.header("location"), "./");
    let refused = browser.page("/").await;
    assert_eq!(refused.status, 403);
    assert!(String::from_utf8_lossy(&refused.body).contains("<a href=\"./sign-in\">"));
}

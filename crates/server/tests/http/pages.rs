//! The dashboard: complete pages, escaped contents, controls by right, and relative links.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::receiver::{Behavior, Receiver};
use testkit::{Database, on_both};

use crate::api::{Api, Response, request};
use crate::triggers::deliveries::open;
use crate::triggers::runs::{TRIGGERS, jobs};

/// Markup, attribute, script, style and template syntax in one text, which pages must escape.
pub(crate) const POLYGLOT: &str = "jaVasCript:/*-/*`/*'/*\"/**/(onerror=alert(1) )//</stYle/</titLe/</teXtarEa/</scRipt/--!><sVg/oNload=alert(2)//>{{7*7}}";

/// Every page without parameters.
const PAGES: [&str; 16] = [
    "/",
    "/jobs",
    "/queues",
    "/pools",
    "/workers",
    "/runs",
    "/subjects",
    "/failures",
    "/dead-letters",
    "/triggers",
    "/deliveries",
    "/runtimes",
    "/signals",
    "/history",
    "/tokens",
    "/system",
];

fn html(response: &Response) -> String {
    assert_eq!(response.status, 200, "{:?}", response.body);
    assert_eq!(response.header("content-type"), "text/html; charset=utf-8");
    String::from_utf8(response.body.to_vec()).unwrap()
}

#[tokio::test]
async fn every_page_renders_completely_with_a_strict_content_security_policy() {
    on_both(async |db| {
        // Avoids the moment at which the schedule fires.
        db.advance_to_hour_start().await;
        let api = Api::new(db).await;
        for path in PAGES {
            html(&api.get(path).await);
        }
        let (job, worker, epoch) = api.claimed("mail").await;
        api.settle(
            &worker,
            json!({"job_id": job, "epoch": epoch, "outcome": "fail",
            "error": {"code": "BOOM", "message": "it broke", "retryable": false}}),
        )
        .await;
        api.job("mail").await;
        let waiting = api.job("unserved").await;
        let selector = json!({"all": [{"fact": "os", "exists": true}]});
        let process = json!({"selector": selector, "queue": "fleet", "kind": "patch"});
        assert_eq!(api.put("/api/v1/processes/patch", process).await.status, 200);
        assert_eq!(api.put("/api/v1/subjects/web-01", json!({"facts": {"os": "debian12"}})).await.status, 200);
        let trigger = json!({"name": "nightly", "source": "cron", "filter": {"schedule": "0 3 * * *"},
                             "target": {"job": {"queue": "reports", "kind": "nightly"}}});
        let trigger = api.post("/api/v1/triggers", trigger).await.json()["id"].as_str().unwrap().to_owned();
        let runtime = json!({"image": "nginx:1.29.0", "command": ["nginx"], "env": {"TOKEN": "s3cret"}});
        assert_eq!(api.put("/api/v1/runtimes/web", runtime).await.status, 200);
        let members = json!([{"affinity": "llama", "runtime": "web"}]);
        assert_eq!(api.put("/api/v1/pools/gpu", json!({"slots": 1, "members": members})).await.status, 200);
        for (queue, affinity) in [("gpu", "llama"), ("plain", "mistral"), ("plain", "phi")] {
            let job = json!({"queue": queue, "kind": "ask", "affinity": affinity});
            assert_eq!(api.post("/api/v1/jobs", job).await.status, 202);
        }
        let hooked = json!({"queue": "hooked", "kind": "k", "webhook": {"url": "https://example.com/hook"}});
        let hooked = api.post("/api/v1/jobs", hooked).await.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(api.post(&format!("/api/v1/jobs/{hooked}/cancel"), json!({})).await.status, 200);
        let delivery = api.get("/api/v1/deliveries").await.json()["items"][0]["id"].as_str().unwrap().to_owned();
        let nodes = json!([{"name": "split", "queue": "ci", "kind": "split"},
                           {"name": "join", "queue": "ci", "kind": "join", "needs": ["split"]}]);
        let run = api.post("/api/v1/runs", json!({"name": "release", "nodes": nodes})).await.json();
        let run = run["id"].as_str().unwrap().to_owned();
        let (flow, flow_worker, flow_epoch) = api.claimed("flow").await;
        let ask =
            json!([{"op": "step", "key": "build", "result": 7}, {"op": "approval", "key": "ok", "title": "Deploy?"}]);
        api.journal(&flow_worker, &flow, flow_epoch, ask).await;
        let more = [
            "/runs?state=running&name=&tag=",
            "/runtimes/web",
            "/jobs?state=failed&queue=&text=",
            "/dead-letters?resolved=true",
            "/deliveries?state=failed",
            "/subjects/web-01",
            "/history?subject=web-01&runtime=",
        ];
        let ids = [
            format!("/jobs/{job}"),
            format!("/jobs/{waiting}"),
            format!("/runs/{run}"),
            format!("/jobs/{flow}"),
            format!("/dead-letters?job_id={job}"),
            format!("/deliveries/{delivery}"),
            format!("/triggers/{trigger}"),
        ];
        for path in PAGES.into_iter().chain(more).chain(ids.iter().map(String::as_str)) {
            let response = api.get(path).await;
            let page = html(&response);
            assert!(page.trim_end().ends_with("</html>"), "{path}");
            for forbidden in [" style=", " onclick=", "<script>", "<style", "href=\"/", "src=\"/"] {
                assert!(!page.contains(forbidden), "{path} has {forbidden}");
            }
            let policy = response.header("content-security-policy");
            assert!(policy.contains("script-src 'self';") && policy.contains("default-src 'none'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
        }
        let page = html(&api.get(&format!("/jobs/{job}")).await);
        for expected in ["BOOM", "it broke", "data-call=\"POST api/v1/jobs/", "/retry\"", "Edit and retry", "attempt 1"]
        {
            assert!(page.contains(expected), "{expected}");
        }
        let page = html(&api.get(&format!("/jobs/{waiting}")).await);
        assert!(page.contains("no live worker serves this queue and kind") && page.contains("/cancel\""));
        let page = html(&api.get(&format!("/runs/{run}")).await);
        assert!(page.contains("class=\"node node-waiting\"") && page.contains("/cancel\""), "{page}");
        let page = html(&api.get(&format!("/jobs/{flow}")).await);
        for expected in ["1 of 2 steps done", "Waits for approval: Deploy?", "/approvals/ok\"", "/fork\""] {
            assert!(page.contains(expected), "{expected} in {page}");
        }
        let page = html(&api.get("/dead-letters").await);
        assert!(page.contains("BOOM") && page.contains("/replay\""), "{page}");
        let page = html(&api.get("/triggers").await);
        assert_eq!(page.matches("data-show=\"time\"").count(), 5, "the next five fires: {page}");
        let page = html(&api.get(&format!("/triggers/{trigger}")).await);
        assert!(
            page.contains("DELETE api/v1/triggers/") && page.contains("jobs?queue=reports&#38;kind=nightly"),
            "{page}"
        );
        let page = html(&api.get("/runtimes/web").await);
        assert!(page.contains("nginx:1.29.0") && page.contains("TOKEN") && !page.contains("s3cret"), "{page}");
        let page = html(&api.get("/history?runtime=web").await);
        assert!(page.contains("value=\"runtime/web\"") && page.contains("./runtimes/web"), "{page}");
        assert!(!page.contains("name=\"runtime\""), "the page has one search field: {page}");
        let page = html(&api.get("/pools").await);
        let next = |affinity: &str| page.contains(&format!("<dd class=\"next-swap\"><strong>{affinity}</strong>"));
        assert!(next("llama") && next("mistral") && !next("phi"), "the oldest job of each queue is next: {page}");
        let page = html(&api.get("/").await);
        assert!(page.contains("1 unresolved dead letter"), "{page}");
        assert!(page.contains("no worker serves it") && page.contains("windlass work --queue unserved"), "{page}");
    })
    .await;
}

#[tokio::test]
async fn job_contents_are_escaped_on_every_page() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let text: String = POLYGLOT.chars().take(100).collect();
        let job = json!({"queue": "q", "kind": "k", "payload": {POLYGLOT: [POLYGLOT]}, "affinity": text, "subject": text,
                         "run": text, "tags": [text], "unique_key": text, "concurrency_key": text});
        let response = api.post("/api/v1/jobs", job).await;
        assert_eq!(response.status, 202, "{:?}", response.body);
        let job = response.json()["id"].as_str().unwrap().to_owned();
        let worker = api.worker("q").await;
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1, "affinity": text})).await.json();
        let epoch = claim["jobs"][0]["epoch"].as_i64().unwrap();
        let signal = json!({"epoch": epoch, "summary": POLYGLOT, "diagnostics": {"x": POLYGLOT},
            "next_actions": [{"label": text, "href": format!("/{text}")}, {"label": text, "href": "https://example.com/\"><script>"}]});
        let put = api.put(&format!("/api/v1/jobs/{job}/signal"), signal).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        let paused = api.post("/api/v1/queues/q/pause", json!({"reason": POLYGLOT})).await;
        assert_eq!(paused.status, 200, "{:?}", paused.body);
        let runtime = json!({"image": "busybox:1", "command": [POLYGLOT]});
        assert_eq!(api.put("/api/v1/runtimes/web", runtime).await.status, 200);
        let members = json!([{"affinity": text, "runtime": "web"}]);
        assert_eq!(api.put("/api/v1/pools/gpu", json!({"slots": 1, "members": members})).await.status, 200);
        let check_pages = async || {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            let more = [format!("/jobs/{job}"), format!("/jobs?tag={encoded}"), "/runtimes/web".to_owned()];
            for path in PAGES.map(str::to_owned).into_iter().chain(more) {
                let page = html(&api.get(&path).await).to_ascii_lowercase();
                for live in ["<svg/onload", "</script/", "<script>", "javascript:/*-/*`/*'", "href=\"javascript"] {
                    assert!(!page.contains(live), "{path} has {live}");
                }
            }
        };
        check_pages().await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail",
            "error": {"code": "x", "message": POLYGLOT, "retryable": false}})).await;
        check_pages().await;
        assert!(html(&api.get(&format!("/jobs/{job}")).await).contains("&#60;sVg/oNload=alert(2)"));
    })
    .await;
}

#[tokio::test]
async fn a_page_shows_only_the_controls_and_data_that_the_token_permits() {
    let api = Api::new(Database::sqlite().await).await;
    let operator = api.caller(json!({"name": "o", "role": "operator"})).await;
    let viewer = api.caller(json!({"name": "v", "role": "viewer"})).await;
    let producer = api.caller(json!({"name": "p", "role": "producer"})).await;
    let admin = api.caller(json!({"name": "a", "role": "admin"})).await;
    let job = admin.job("q").await;
    let page = html(&operator.get(&format!("/jobs/{job}")).await);
    assert!(page.contains("/cancel\""));
    let page = html(&viewer.get(&format!("/jobs/{job}")).await);
    assert!(!page.contains("data-call") && !page.contains("secret"), "{page}");
    assert!(page.contains("cannot read payloads"));
    // A reader of a run has no controls, and a reader of a job gives no approval.
    let run = json!({"nodes": [{"name": "a", "queue": "r", "kind": "k"}]});
    let run = admin.post("/api/v1/runs", run).await.json()["id"].as_str().unwrap().to_owned();
    let (asking, worker, epoch) = admin.claimed("flow").await;
    let ask = json!([{"op": "approval", "key": "ok", "title": "Deploy?", "right": "manage_tokens"}]);
    let writes = json!({"writes": [{"job_id": asking, "epoch": epoch, "ops": ask}]});
    assert_eq!(admin.post(&format!("/api/v1/workers/{worker}/journal"), writes).await.status, 200);
    for (path, control) in [(format!("/runs/{run}"), "/cancel\""), (format!("/jobs/{asking}"), "/fork\"")] {
        assert!(html(&operator.get(&path).await).contains(control), "{path}");
        assert!(!html(&viewer.get(&path).await).contains("data-call"), "{path}");
    }
    let path = format!("/jobs/{asking}");
    assert!(html(&admin.get(&path).await).contains("/approvals/ok\""));
    assert!(!html(&operator.get(&path).await).contains("/approvals/ok\""), "the approval names another right");
    assert!(!html(&viewer.get("/queues").await).contains("Pause"));
    assert!(!html(&viewer.get("/jobs").await).contains("type=\"checkbox\""));
    assert_eq!(admin.put("/api/v1/runtimes/web", json!({"image": "nginx:1.29.0"})).await.status, 200);
    let members = json!([{"affinity": "llama", "runtime": "web"}]);
    assert_eq!(admin.put("/api/v1/pools/gpu", json!({"slots": 1, "members": members})).await.status, 200);
    for path in ["/runtimes", "/runtimes/web", "/pools"] {
        assert!(html(&admin.get(path).await).contains("data-call"), "{path}");
        assert!(!html(&operator.get(path).await).contains("data-call"), "{path}: runtimes require a separate right");
    }
    let reader = api.caller(json!({"name": "l", "role": "viewer", "rights": ["read_logs"]})).await;
    assert!(html(&reader.get("/runtimes/web").await).contains("aria-labelledby=\"logs\""));
    assert!(
        !html(&viewer.get("/runtimes/web").await).contains("aria-labelledby=\"logs\""),
        "logs require a separate right"
    );
    // A producer does not see the jobs of others, and its menu contains only pages that it may read.
    assert_eq!(producer.get(&format!("/jobs/{job}")).await.status, 404);
    let page = html(&producer.get("/jobs").await);
    assert!(!page.contains(&job) && !page.contains(">Queues"), "{page}");
    assert_eq!(producer.get("/queues").await.status, 403);
}

#[tokio::test]
async fn the_token_form_suggests_admin_for_the_first_token_and_viewer_afterwards() {
    let api = Api::new(Database::sqlite().await).await;
    let page = html(&api.get("/tokens").await);
    assert!(page.contains("<option selected>admin</option>") && page.contains("Sign in with it"), "{page}");
    let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
    let page = html(&admin.get("/tokens").await);
    assert!(page.contains("<option selected>viewer</option>") && !page.contains("Sign in with it"), "{page}");
}

#[tokio::test]
async fn a_running_job_shows_its_progress_and_its_worker() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("mail").await;
        let signal = json!({"epoch": epoch, "progress": 0.25, "phase": "fetch", "state": "working"});
        let put = api.put(&format!("/api/v1/jobs/{job}/signal"), signal).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        let page = html(&api.get("/jobs").await);
        assert!(page.contains("25 % · fetch · <time") && page.contains("data-show=\"elapsed\""), "{page}");
        let name = api.get("/api/v1/workers").await.json()["items"][0]["name"].as_str().unwrap().to_owned();
        let page = html(&api.get(&format!("/jobs/{job}")).await);
        let link = format!("<span title=\"{worker}\"><a href=\"../workers/{worker}\">{name}</a></span>");
        assert!(page.contains(&link), "{page}");
    })
    .await;
}

#[tokio::test]
async fn setting_queue_limits_keeps_the_webhook() {
    on_both(async |db| {
        let api = open(db).await;
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let admin = api.caller(json!({"name": "a", "role": "admin"})).await;
        let operator = api.caller(json!({"name": "o", "role": "operator"})).await;
        let webhook = json!({"url": receiver.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
        assert_eq!(admin.put("/api/v1/queues/mail", json!({"webhook": webhook})).await.status, 200);
        for (caller, concurrency) in [(&admin, 3), (&operator, 4)] {
            let page = html(&caller.get("/queues").await);
            let base =
                page.split("data-base=\"").find_map(|rest| rest.split('"').next().filter(|base| base.contains("hook")));
            let base = base.expect("the limits form has base settings").replace("&#34;", "\"");
            let mut settings: Value = serde_json::from_str(&base).unwrap();
            settings["concurrency"] = json!(concurrency);
            let response = caller.put("/api/v1/queues/mail", settings).await;
            assert_eq!(
                (response.status.as_u16(), &response.json()["settings"]["concurrency"]),
                (200, &json!(concurrency))
            );
        }
        let webhook = admin.get("/api/v1/queues/mail").await.json()["settings"]["webhook"].clone();
        assert_eq!(
            webhook,
            json!({"url": receiver.url()}),
            "complete, although the operator's page showed only a part"
        );
        let job = admin.post("/api/v1/jobs", json!({"queue": "mail", "kind": "k"})).await.json();
        let cancel = format!("/api/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
        assert_eq!(admin.post(&cancel, json!({})).await.status, 200);
        let seen = receiver.wait_for(1).await;
        assert!(seen[0].header("webhook-signature").is_some(), "the secret is still stored");
    })
    .await;
}

#[tokio::test]
async fn a_job_links_to_its_trigger_until_the_trigger_is_deleted() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let trigger = json!({"name": "welcome", "source": "pubsub", "filter": {"topic": "t"},
                             "target": {"job": {"queue": "mail", "kind": "k"}}});
        let trigger = api.post(TRIGGERS, trigger).await.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(api.post("/api/v1/topics/t", json!({})).await.status, 202);
        let job = jobs(&api, "mail", 1).await.remove(0)["id"].as_str().unwrap().to_owned();
        let link = format!("href=\"../triggers/{trigger}\"");
        assert!(html(&api.get(&format!("/jobs/{job}")).await).contains(&link));
        assert_eq!(api.call("DELETE", &format!("{TRIGGERS}/{trigger}")).await.status, 204);
        let page = html(&api.get(&format!("/jobs/{job}")).await);
        assert!(page.contains("trigger <code") && !page.contains(&link), "{page}");
    })
    .await;
}

/// Requirement T10.
#[tokio::test]
async fn missed_schedule_slots_are_counted_on_the_triggers_page() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let trigger = json!({"name": "hourly", "source": "cron", "filter": {"schedule": "0 * * * *"},
                             "target": {"job": {"queue": "reports", "kind": "hourly"}}});
        assert_eq!(api.post("/api/v1/triggers", trigger).await.status, 201);
        assert!(!html(&api.get("/triggers").await).contains("missed, last detected"));
        api.db.pass_ms(2 * 24 * 3_600_000 + 90_000).await;
        // One slot may be due now and fires; the policy `skip` skips the others.
        api.db.store.fire_schedules().await.unwrap();
        let page = html(&api.get("/triggers").await);
        let missed = api.get("/api/v1/triggers").await.json()["items"][0]["missed"].as_i64().unwrap();
        assert!((46..=49).contains(&missed), "{missed}");
        assert!(page.contains(&format!("{missed} due times missed, last detected")), "{page}");
    })
    .await;
}

#[tokio::test]
async fn an_error_is_a_page_for_browsers_and_a_problem_document_for_programs() {
    let api = Api::new(Database::sqlite().await).await;
    for (path, status) in
        [("/jobs/nonsense", 404), ("/no/such/page", 404), ("/jobs?state=odd", 400), ("/jobs?x=1", 400)]
    {
        let page_request = request("GET", path).header("accept", "text/html,*/*").body(Body::empty()).unwrap();
        let response = api.send(page_request).await;
        assert_eq!(response.status.as_u16(), status, "{path}");
        assert_eq!(response.header("content-type"), "text/html; charset=utf-8", "{path}");
        assert!(String::from_utf8_lossy(&response.body).contains("Go to the overview"));
        assert!(!response.header("content-security-policy").is_empty());
        assert_eq!(api.get(path).await.header("content-type"), "application/problem+json", "{path}");
    }
}

#[tokio::test]
async fn static_files_are_cached_until_they_change() {
    let api = Api::new(Database::sqlite().await).await;
    let page = html(&api.get("/jobs").await);
    let address = page.split("href=\"./static/app.css").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    let file = api.get(&format!("/static/app.css{address}")).await;
    assert_eq!((file.status.as_u16(), file.header("content-type")), (200, "text/css; charset=utf-8"));
    assert!(file.header("cache-control").contains("immutable"));
    let unnamed = api.get("/static/live.js").await;
    assert_eq!(unnamed.header("cache-control"), "no-cache");
    let again = request("GET", "/static/live.js").header("if-none-match", unnamed.header("etag"));
    assert_eq!(api.send(again.body(Body::empty()).unwrap()).await.status, 304);
    assert_eq!(api.get("/static/../Cargo.toml").await.status, 404);
    // Also without a token, because the sign-in page uses them.
    api.token(json!({"name": "a", "role": "admin"})).await;
    assert_eq!(api.get("/static/app.js").await.status, 200);
    assert_eq!(api.get("/jobs").await.status, 401);
}

//! Signals over HTTP.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::on_both;

use crate::api::{Answer, Api, members, request};

#[tokio::test]
async fn s1_a_signal_is_derived_and_refined_by_the_worker_that_has_the_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let waiting = api.job("other").await;
        let signal = api.get(&format!("/api/v1/jobs/{waiting}/signal")).await.json();
        assert_eq!(
            (&signal["kind"], &signal["summary"]),
            (&json!("queued"), &json!("Next in line; no live worker serves it."))
        );
        let expected = [
            "created_at",
            "diagnostics",
            "eta_seconds",
            "job_id",
            "kind",
            "last_known_outcome",
            "next_actions",
            "payload",
            "phase",
            "predicted",
            "progress",
            "run",
            "summary",
            "updated_at",
            "version",
        ];
        assert_eq!(members(&signal), expected);

        let (job, worker, epoch) = api.claimed("q").await;
        let put = async |body: Value| api.put(&format!("/api/v1/jobs/{job}/signal"), body).await;
        let refined = put(json!({
            "epoch": epoch, "phase": "fetch", "summary": "Pulling layers", "progress": 0.25, "eta_s": 12.5,
            "last_known_outcome": {"ok": true}, "next_actions": [{"label": "Docs", "href": "https://example.com"}],
            "diagnostics": {"layer": 3}, "payload": [1], "state": "loading",
        }))
        .await;
        assert_eq!(refined.status, 200);
        let refined = refined.json();
        assert_eq!((&refined["kind"], &refined["phase"]), (&json!("phase"), &json!("fetch")));
        assert_eq!((&refined["summary"], &refined["progress"]), (&json!("Pulling layers"), &json!(0.25)));
        assert_eq!(refined["eta_seconds"], json!({"p50": 12.5, "p90": 12.5}));
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"], "loading");

        put(json!({"epoch": epoch + 1, "phase": "fetch"})).await.problem(409, "claim_lost", None);
        put(json!({"epoch": epoch, "state": "succeeded"})).await.problem(422, "invalid_field", Some("state"));
        put(json!({"epoch": epoch, "progress": 1.5})).await.problem(422, "invalid_field", Some("progress"));
        put(json!({"epoch": epoch, "summary": "a\u{0}b"})).await.problem(422, "invalid_field", Some("summary"));
        let href = json!({"epoch": epoch, "next_actions": [{"label": "x", "href": "javascript:alert(1)"}]});
        put(href).await.problem(422, "invalid_field", Some("next_actions[0].href"));
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        put(json!({"epoch": epoch, "phase": "late"})).await.problem(409, "already_ended", None);
        let ended = api.get(&format!("/api/v1/jobs/{job}/signal")).await.json();
        assert_eq!(ended["kind"], "succeeded");
        assert!(ended["summary"].as_str().unwrap().starts_with("Succeeded on attempt 1 after "), "{ended}");
    })
    .await;
}

async fn signal(api: &Api, job: &str) -> Answer {
    api.get(&format!("/api/v1/jobs/{job}/signal")).await
}

#[tokio::test]
async fn s3_an_unchanged_signal_is_304_and_says_where_it_was_told_from() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        let first = signal(&api, &job).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() > 20, "{tag}");
        assert_eq!(first.header("content-type"), "application/json");
        let again = async |tag: &str| {
            let path = format!("/api/v1/jobs/{job}/signal");
            api.ask(request("GET", &path).header("if-none-match", tag).body(Body::empty()).unwrap()).await
        };
        for same in [tag.as_str(), "*", &format!("\"x\", W/{tag}")] {
            let unchanged = again(same).await;
            assert_eq!((unchanged.status.as_u16(), unchanged.body.len()), (304, 0));
            assert_eq!(unchanged.header("etag"), tag);
        }
        assert_eq!(again("\"other\"").await.status, 200);
        assert_eq!(first.header("x-signal-source"), "snapshot");
        assert_eq!(first.header("cache-status"), "windlass; hit");

        let waiting = api.job("elsewhere").await;
        let cold = signal(&api, &waiting).await;
        assert_eq!(
            (cold.header("x-signal-source"), cold.header("cache-status")),
            ("cold_start", "windlass; fwd=miss; stored")
        );
        let warm = signal(&api, &waiting).await;
        assert_eq!((warm.header("x-signal-source"), warm.header("cache-status")), ("snapshot", "windlass; hit"));
        assert_eq!(warm.json()["diagnostics"]["queue_position"], 1);
    })
    .await;
}

#[tokio::test]
async fn s3_no_job_is_404_and_a_pruned_one_204() {
    on_both(async |db| {
        let api = Api::new(db).await;
        signal(&api, "01890a5d-ac96-774b-bcce-b302099a8057").await.problem(404, "not_found", None);
        let (job, worker, epoch) = api.claimed("q").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        api.db.pass_ms(8 * 86_400_000).await;
        while api.db.store.prune(90 * 86_400).await.unwrap().jobs > 0 {}
        let forgotten = signal(&api, &job).await;
        assert_eq!((forgotten.status.as_u16(), forgotten.body.len()), (204, 0));
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.status, 404);
    })
    .await;
}

/// Follows a link as its method says.
async fn follow(api: &Api, action: &Value) -> Answer {
    api.call(action["method"].as_str().unwrap_or("GET"), action["href"].as_str().unwrap()).await
}

fn action<'a>(signal: &'a Value, label: &str) -> &'a Value {
    let actions = signal["next_actions"].as_array().unwrap();
    actions.iter().find(|action| action["label"] == label).unwrap_or_else(|| panic!("{label}: {signal}"))
}

#[tokio::test]
async fn s1_the_last_outcome_is_known_and_every_next_action_leads_somewhere() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let push = async || {
            let job = json!({"queue": "a/b", "kind": "k", "subject": "m-7", "run": "r"});
            api.post("/api/v1/jobs", job).await.json()["id"].as_str().unwrap().to_owned()
        };
        let first = push().await;
        let worker = api.worker("a/b").await;
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        let epoch = claim["jobs"][0]["epoch"].clone();
        let log = request("PUT", &format!("/api/v1/jobs/{first}/artifacts/log")).header("content-type", "text/plain");
        let log = log.header("x-windlass-epoch", epoch.to_string()).body(Body::from("hello")).unwrap();
        assert!(api.ask(log).await.status.is_success());
        let error = json!({"code": "boom", "message": "it broke", "retryable": false});
        api.settle(&worker, json!({"job_id": first, "epoch": epoch, "outcome": "fail", "error": error})).await;
        let failed = signal(&api, &first).await.json();
        assert_eq!((&failed["kind"], &failed["last_known_outcome"]), (&json!("failed"), &Value::Null));
        assert_eq!(follow(&api, action(&failed, "The log")).await.body, "hello");

        let second = push().await;
        api.post("/api/v1/queues/a%2Fb/pause", json!({"reason": "tea"})).await;
        let blocked = signal(&api, &second).await.json();
        assert_eq!((&blocked["kind"], &blocked["summary"]), (&json!("blocked"), &json!("The queue is paused: tea.")));
        let outcome = &blocked["last_known_outcome"];
        assert_eq!((&outcome["job_id"], &outcome["state"]), (&json!(first), &json!("failed")));
        assert_eq!(outcome["error_code"], "boom");
        assert_eq!(follow(&api, action(&blocked, "The previous run")).await.json()["id"], first.as_str());
        assert_eq!(follow(&api, action(&blocked, "Resume the queue")).await.status, 200);
        assert_eq!(follow(&api, action(&blocked, "Why it is not running")).await.json()["reason"], "behind");
        let queued = signal(&api, &second).await.json();
        assert_eq!(queued["kind"], "queued", "{queued}");
        assert_eq!(follow(&api, action(&queued, "Cancel it")).await.status, 200);
        assert_eq!(follow(&api, action(&failed, "Retry it")).await.status, 202);
        let retried = signal(&api, &first).await.json();
        assert_eq!(follow(&api, action(&retried, "The retry")).await.json()["kind"], "queued");
    })
    .await;
}

#[tokio::test]
async fn s1_signals_are_listed_by_kind_and_run_newest_first() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let push = async |run: &str| {
            let answer = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "run": run})).await;
            answer.json()["id"].as_str().unwrap().to_owned()
        };
        let (first, second, other) = (push("r").await, push("r").await, push("s").await);
        api.call("POST", &format!("/api/v1/jobs/{first}/cancel")).await;
        let listed = async |query: &str| -> Vec<String> {
            let page = api.get(&format!("/api/v1/signals{query}")).await.json();
            let items = page["items"].as_array().unwrap().clone();
            items.iter().map(|signal| signal["job_id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(listed("").await, [other.clone(), second.clone(), first.clone()]);
        assert_eq!(listed("?run=r").await, [second.clone(), first.clone()]);
        assert_eq!(listed("?kind=queued").await, [other, second]);
        assert_eq!(listed("?kind=canceled&run=r").await, [first]);
        assert_eq!(listed("?kind=failed").await, Vec::<String>::new());
        api.get("/api/v1/signals?kind=odd").await.problem(400, "invalid_query", Some("kind"));
        api.get("/api/v1/signals?state=odd").await.problem(400, "invalid_query", Some("state"));
    })
    .await;
}

//! Signals of jobs over HTTP.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::eventually::eventually;
use testkit::on_both;

use crate::api::{Api, Response, members, request};

/// Requirement S1.
#[tokio::test]
async fn a_signal_is_derived_and_refined_by_the_claiming_worker() {
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
            "eta_basis",
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
            "signature",
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

pub(crate) async fn signal(api: &Api, job: &str) -> Response {
    api.get(&format!("/api/v1/jobs/{job}/signal")).await
}

/// Requirement S3.
#[tokio::test]
async fn an_unchanged_signal_returns_304_with_its_source() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let running = signal(&api, &job).await.header("etag").to_owned();
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        let first = signal(&api, &job).await;
        let tag = first.header("etag").to_owned();
        assert!(tag.starts_with('"') && tag.len() > 20, "{tag}");
        assert_eq!(first.header("content-type"), "application/json");
        let again = async |tag: &str| {
            let path = format!("/api/v1/jobs/{job}/signal");
            api.send(request("GET", &path).header("if-none-match", tag).body(Body::empty()).unwrap()).await
        };
        for same in [tag.as_str(), "*", &format!("\"x\", W/{tag}")] {
            let unchanged = again(same).await;
            assert_eq!((unchanged.status.as_u16(), unchanged.body.len()), (304, 0));
            assert_eq!(unchanged.header("etag"), tag);
        }
        assert_eq!(again("\"other\"").await.status, 200);
        let changed = again(running.as_str()).await;
        assert_eq!((changed.status.as_u16(), changed.header("etag")), (200, tag.as_str()), "the job has ended");
        assert_eq!(first.header("x-signal-source"), "snapshot");
        assert_eq!(first.header("cache-status"), "windlass; hit");

        let waiting = api.job("elsewhere").await;
        let cold = signal(&api, &waiting).await;
        assert_eq!(
            (cold.header("x-signal-source"), cold.header("cache-status")),
            ("cold_start", "windlass; fwd=miss; stored")
        );
        // The snapshot is fresh for a second, which a busy machine may exceed between two requests.
        let warm = eventually("the snapshot is served from the cache", async || {
            let warm = signal(&api, &waiting).await;
            (warm.header("cache-status") == "windlass; hit").then_some(warm)
        })
        .await;
        assert_eq!(warm.header("x-signal-source"), "snapshot");
        assert_eq!(warm.json()["diagnostics"]["queue_position"], 1);
    })
    .await;
}

/// Requirement S3.
#[tokio::test]
async fn the_signal_of_a_missing_job_is_404_and_of_a_pruned_one_204() {
    on_both(async |db| {
        let api = Api::new(db).await;
        signal(&api, "01890a5d-ac96-774b-bcce-b302099a8057").await.problem(404, "not_found", None);
        let (job, worker, epoch) = api.claimed("q").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        api.db.pass_ms(8 * 86_400_000).await;
        while api.db.store.prune(90 * 86_400).await.unwrap().jobs > 0 {}
        let pruned = signal(&api, &job).await;
        assert_eq!((pruned.status.as_u16(), pruned.body.len()), (204, 0));
        assert_eq!(api.get(&format!("/api/v1/jobs/{job}")).await.status, 404);
    })
    .await;
}

/// Requests the link of an action with its method.
async fn follow(api: &Api, action: &Value) -> Response {
    api.call(action["method"].as_str().unwrap_or("GET"), action["href"].as_str().unwrap()).await
}

fn action<'a>(signal: &'a Value, label: &str) -> &'a Value {
    let actions = signal["next_actions"].as_array().unwrap();
    actions.iter().find(|action| action["label"] == label).unwrap_or_else(|| panic!("{label}: {signal}"))
}

/// Requirement S1.
#[tokio::test]
async fn a_signal_has_the_last_known_outcome_and_working_next_actions() {
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
        assert!(api.send(log).await.status.is_success());
        let error = json!({"code": "boom", "message": "it broke", "retryable": false});
        api.settle(&worker, json!({"job_id": first, "epoch": epoch, "outcome": "fail", "error": error})).await;
        let failed = signal(&api, &first).await.json();
        assert_eq!((&failed["kind"], &failed["last_known_outcome"]), (&json!("failed"), &Value::Null));
        assert_eq!(follow(&api, action(&failed, "Log")).await.body, "hello");

        let second = push().await;
        api.post("/api/v1/queues/a%2Fb/pause", json!({"reason": "tea"})).await;
        let blocked = signal(&api, &second).await.json();
        assert_eq!((&blocked["kind"], &blocked["summary"]), (&json!("blocked"), &json!("The queue is paused: tea.")));
        let outcome = &blocked["last_known_outcome"];
        assert_eq!((&outcome["job_id"], &outcome["state"]), (&json!(first), &json!("failed")));
        assert_eq!(outcome["error_code"], "boom");
        assert_eq!(follow(&api, action(&blocked, "Previous run")).await.json()["id"], first.as_str());
        assert_eq!(follow(&api, action(&blocked, "Resume the queue")).await.status, 200);
        assert_eq!(follow(&api, action(&blocked, "Why the job is not running")).await.json()["reason"], "behind");
        let queued = signal(&api, &second).await.json();
        assert_eq!(queued["kind"], "queued", "{queued}");
        assert_eq!(follow(&api, action(&queued, "Cancel the job")).await.status, 200);
        assert_eq!(follow(&api, action(&failed, "Retry the job")).await.status, 202);
        let retried = signal(&api, &first).await.json();
        assert_eq!(follow(&api, action(&retried, "Retry of this job")).await.json()["kind"], "queued");
    })
    .await;
}

const OLD_SUMMARY: &str = "Downloading layer 7 of 9";

/// Enqueues and claims a job, and sets every field of its signal.
async fn signaled(api: &Api, queue: &str) -> (String, String, i64) {
    let (job, worker, epoch) = api.claimed(queue).await;
    let update = json!({
        "epoch": epoch, "summary": OLD_SUMMARY, "eta_s": 12, "diagnostics": {"log": "L"}, "payload": [1],
        "next_actions": [{"label": "Docs", "href": "https://example.com"}], "last_known_outcome": {"ok": true},
    });
    let updated = api.put(&format!("/api/v1/jobs/{job}/signal"), update).await.json();
    assert_eq!((&updated["summary"], &updated["payload"]), (&json!(OLD_SUMMARY), &json!([1])));
    action(&updated, "Docs");
    (job, worker, epoch)
}

/// Asserts that the signal contains nothing of an earlier attempt except the last known outcome.
async fn assert_old_signal_is_dropped(api: &Api, job: &str, after: &str) {
    let current = signal(api, job).await.json();
    assert!(
        current["summary"] != OLD_SUMMARY && current["eta_seconds"] != json!({"p50": 12.0, "p90": 12.0}),
        "{after}: {current}"
    );
    assert_eq!((&current["diagnostics"]["log"], &current["payload"]), (&Value::Null, &Value::Null), "{after}");
    let actions = current["next_actions"].as_array().unwrap();
    assert!(actions.iter().all(|action| action["label"] != "Docs"), "{after}: {current}");
    assert_eq!(current["last_known_outcome"], json!({"ok": true}), "{after}");
}

/// Requirement S1.
#[tokio::test]
async fn a_queued_retry_does_not_show_the_signal_of_its_previous_attempt() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let error = json!({"code": "boom", "message": "it broke", "retryable": true});
        for outcome in [
            json!({"outcome": "fail", "error": error}),
            json!({"outcome": "snooze", "delay_s": 3_600}),
            json!({"outcome": "release"}),
        ] {
            let kind = outcome["outcome"].as_str().unwrap();
            let (job, worker, epoch) = signaled(&api, kind).await;
            let mut settled = outcome.clone();
            (settled["job_id"], settled["epoch"]) = (json!(job), json!(epoch));
            let response = api.settle(&worker, settled).await.json();
            assert_eq!(response["results"][0]["status"], "applied", "{kind}: {response}");
            assert_eq!(signal(&api, &job).await.json()["kind"], "queued", "{kind}");
            assert_old_signal_is_dropped(&api, &job, kind).await;
        }
        let (job, worker, _) = signaled(&api, "deregistered").await;
        assert_eq!(api.call("DELETE", &format!("/api/v1/workers/{worker}")).await.status, 204);
        assert_old_signal_is_dropped(&api, &job, "a deregistered worker").await;

        let (job, ..) = signaled(&api, "lease").await;
        let state = async || api.get(&format!("/api/v1/jobs/{job}")).await.json()["state"].clone();
        // The engine may take the clock step for an outage, which extends the lease once.
        while state().await == "working" {
            api.db.pass_ms(301_000).await;
            api.db.store.sweep().await.unwrap();
        }
        assert_old_signal_is_dropped(&api, &job, "an expired lease").await;
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn the_next_attempt_shows_only_its_own_signal() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = signaled(&api, "q").await;
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "release"})).await;
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_old_signal_is_dropped(&api, &job, "the next claim").await;
        let epoch = claim["jobs"][0]["epoch"].clone();
        let update = json!({"epoch": epoch, "summary": "Again"});
        let updated = api.put(&format!("/api/v1/jobs/{job}/signal"), update).await;
        assert_eq!(updated.json()["summary"], "Again");
        assert_old_signal_is_dropped(&api, &job, "the first update of the next attempt").await;
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn signals_are_listed_by_kind_and_run_newest_first() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let push = async |run: &str| {
            let response = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "run": run})).await;
            response.json()["id"].as_str().unwrap().to_owned()
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

/// Requirement S9.
#[tokio::test]
async fn the_eta_comes_from_history_and_is_null_without_samples() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // All durations are minutes, so that the run time of the test itself is negligible.
        let worker = json!({"name": "w", "queues": ["q"], "lease_s": 3_600});
        let worker = api.post("/api/v1/workers", worker).await.json()["id"].as_str().unwrap().to_owned();
        let run = async |ms: i64| {
            let job = api.job("q").await;
            let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
            api.db.pass_ms(ms).await;
            let epoch = claim["jobs"][0]["epoch"].clone();
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        };
        let fresh = api.job("other").await;
        assert_eq!(signal(&api, &fresh).await.json()["eta_seconds"], Value::Null, "without samples there is no ETA");
        api.call("POST", &format!("/api/v1/jobs/{fresh}/cancel")).await;
        for _ in 0..8 {
            run(600_000).await;
        }
        api.db.store.fold_duration_samples().await.unwrap();
        let waiting = api.job("q").await;
        // The estimate is cached for some seconds, and may be based on figures from before all jobs had run.
        let has_samples = |signal: &Value| signal["diagnostics"]["eta"]["samples"].as_f64() >= Some(8.0);
        let estimated = api.get_when(&format!("/api/v1/jobs/{waiting}/signal"), has_samples).await;
        let p50 = estimated["eta_seconds"]["p50"].as_f64().unwrap();
        assert!((540.0..720.0).contains(&p50), "{estimated}");
        assert!(estimated["summary"].as_str().unwrap().contains("done in about 10 min"), "{estimated}");
        assert_eq!(estimated["eta_basis"]["text"], "from 8 jobs of this kind");
        assert!(estimated["eta_seconds"]["p90"].as_f64().unwrap() >= p50);
        // A job that is not enqueued would come second.
        let job = json!({"queue": "q", "kind": "k"});
        let next = api.post("/api/v1/jobs/estimate", job).await.json();
        assert_eq!((&next["ahead"], &next["workers"]), (&json!(1), &json!(1)));
        let second = next["eta_seconds"]["p50"].as_f64().unwrap();
        assert!((1_080.0..1_500.0).contains(&second), "{next}");
        assert!(next["summary"].as_str().unwrap().starts_with("Ends in about 20 min"), "{next}");
        let other = api.post("/api/v1/jobs/estimate", json!({"queue": "unserved", "kind": "k"})).await.json();
        assert_eq!(
            (&other["eta_seconds"], &other["summary"]),
            (&Value::Null, &json!("No estimate: no live worker serves such jobs."))
        );
        api.post("/api/v1/jobs/estimate", json!({"queue": "", "kind": "k"})).await.problem(
            422,
            "invalid_field",
            Some("queue"),
        );
        let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_eq!(claim["jobs"][0]["id"], waiting.as_str());
        api.db.pass_ms(240_000).await;
        let running = signal(&api, &waiting).await.json();
        let remaining = running["eta_seconds"]["p50"].as_f64().unwrap();
        assert!((60.0..420.0).contains(&remaining), "{running}");
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn estimates_are_scored_without_a_reader() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let worker = json!({"name": "w", "queues": ["q"], "lease_s": 3_600});
        let worker = api.post("/api/v1/workers", worker).await.json()["id"].as_str().unwrap().to_owned();
        let mut sampler = server::AnswerSampler::new(api.db.store.clone());
        let run = async |sampler: &mut server::AnswerSampler| {
            let job = api.job("q").await;
            sampler.sample().await.expect("samples");
            let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
            sampler.sample().await.expect("samples");
            api.db.pass_ms(600_000).await;
            let epoch = claim["jobs"][0]["epoch"].clone();
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
            api.db.store.fold_duration_samples().await.expect("folds");
        };
        for _ in 0..20 {
            run(&mut sampler).await;
        }
        let rows = api.db.store.calibrations(domain::TenantId::DEFAULT, 10).await.expect("reads");
        assert!(rows[0].calibration.answers >= 10.0, "{} answers", rows[0].calibration.answers);
    })
    .await;
}

/// Requirement S4.
#[tokio::test]
async fn ttfs_events_are_accepted_and_summarized() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let event = |ms: i64| {
            json!({"job_id": "01890a5d-ac96-774b-bcce-b302099a8057", "surface": "cli",
            "event_type": "signal.rendered", "ttfs_ms": ms, "cache_hit": true, "signal_source": "snapshot",
            "kind": "queued", "phase": "unknown", "network_state": "wifi", "metadata": {"a": 1}})
        };
        let post = async |body: Value| api.post("/api/v1/ttfs/events", body).await;
        let accepted = post(json!({"events": [event(100), event(3_000)]})).await;
        assert_eq!((accepted.status.as_u16(), accepted.json()), (202, json!({"accepted": 2})));
        let hour = &api.get("/api/v1/ttfs/summary?by=hour").await.json()["items"][0];
        assert_eq!(
            (&hour["event_count"], &hour["p95_ms"], &hour["over_p50_slo"]),
            (&json!(2), &json!(2_855), &json!(1))
        );
        assert_eq!(hour["cache_hit"], true);
        assert_eq!(api.get("/api/v1/ttfs/summary?by=day").await.json()["items"][0]["cache_hit_rate"], 1.0);
        let slo = api.get("/api/v1/ttfs/slo").await.json();
        assert_eq!((&slo["items"][0]["p50_compliance_pct"], &slo["alerts"]), (&json!(50.0), &json!([])));
        let bad = |change: &str, value: Value| {
            let mut event = event(1);
            event[change] = value;
            json!({"events": [event]})
        };
        post(bad("surface", json!("tv"))).await.problem(422, "invalid_field", Some("events[0].surface"));
        post(bad("event_type", json!("x"))).await.problem(422, "invalid_field", Some("events[0].event_type"));
        post(bad("ttfs_ms", json!(-1))).await.problem(422, "invalid_field", Some("events[0].ttfs_ms"));
        for member in ["signal_source", "kind", "phase"] {
            let field = format!("events[0].{member}");
            post(bad(member, json!("odd"))).await.problem(422, "invalid_field", Some(&field));
        }
        post(bad("ttfs_ms", Value::Null)).await.problem(422, "invalid_field", Some("events[0].ttfs_ms"));
        post(bad("at", json!("2020-01-01T00:00:00Z"))).await.problem(422, "invalid_field", Some("events[0].at"));
        post(bad("odd", json!(1))).await.problem(422, "invalid_field", Some("events[0].odd"));
        api.get("/api/v1/ttfs/summary?by=year").await.problem(400, "invalid_query", Some("by"));
    })
    .await;
}

/// Requirement S1.
#[tokio::test]
async fn a_job_on_a_locked_out_subject_is_blocked_before_any_claim() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let locked = json!({"cause": "bad disk"});
        assert_eq!(api.put("/api/v1/subjects/m-1/backoffs/*", locked).await.status, 200);
        let made = api.post("/api/v1/jobs", json!({"queue": "q", "kind": "k", "subject": "m-1"})).await.json();
        let signal = api.get(&format!("/api/v1/jobs/{}/signal", made["id"].as_str().unwrap())).await.json();
        let actual = (signal["kind"].as_str().unwrap(), signal["summary"].as_str().unwrap());
        assert_eq!(actual, ("blocked", "The subject m-1 is in backoff: bad disk."), "names keep their spelling");
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn ttfs_events_are_read_back_page_by_page() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        let event = |code: Value| {
            json!({"surface": "ui", "event_type": "signal.error", "ttfs_ms": 7, "job_id": job, "error_code": code,
                   "error_message": "it broke", "metadata": {"n": 1}})
        };
        let events = json!({"events": [event(json!("a")), event(json!("b")), event(Value::Null)]});
        assert_eq!(api.post("/api/v1/ttfs/events", events).await.json()["accepted"], 3);
        let first = api.get(&format!("/api/v1/ttfs/events?job_id={job}&limit=2")).await.json();
        let cursor = first["next_cursor"].as_str().unwrap().to_owned();
        let rest = api.get(&format!("/api/v1/ttfs/events?job_id={job}&limit=2&cursor={cursor}")).await.json();
        assert_eq!((first["items"].as_array().unwrap().len(), rest["items"].as_array().unwrap().len()), (2, 1));
        let of_code = api.get("/api/v1/ttfs/events?error_code=b").await.json();
        let item = &of_code["items"][0];
        assert_eq!(
            (&item["error_code"], &item["error_message"], &item["metadata"]),
            (&json!("b"), &json!("it broke"), &json!({"n": 1}))
        );
        assert_eq!(api.get("/api/v1/ttfs/events?since=2200-01-01T00:00:00Z").await.json()["items"], json!([]));
        api.get("/api/v1/ttfs/events?job_id=x").await.problem(400, "invalid_query", Some("job_id"));
    })
    .await;
}

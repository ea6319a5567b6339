//! Triggers, topics, hooks and key-value collections over HTTP, with a running engine.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::eventually::{eventually, wait_until};
use testkit::on_both;

use crate::api::{Api, Response, request};

pub(crate) const TRIGGERS: &str = "/api/v1/triggers";

pub(crate) fn on(source: &str, filter: Value, job: Value) -> Value {
    json!({"name": format!("{source}-{job}"), "source": source, "filter": filter, "target": {"job": job}})
}

pub(crate) async fn create(api: &Api, trigger: Value) -> String {
    let response = api.post(TRIGGERS, trigger).await;
    assert_eq!(response.status, 201, "{:?}", response.body);
    response.json()["id"].as_str().unwrap().to_owned()
}

/// Waits for exactly `count` jobs in a queue.
pub(crate) async fn jobs(api: &Api, queue: &str, count: usize) -> Vec<Value> {
    let items = |page: &Value| page["items"].as_array().unwrap().clone();
    let page = api.get_when(&format!("/api/v1/jobs?queue={queue}"), |page| items(page).len() >= count).await;
    assert_eq!(items(&page).len(), count, "{page}");
    items(&page)
}

/// Requirement T4.
#[tokio::test]
async fn one_event_creates_one_job_per_trigger_with_the_event_as_payload() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let plain = create(&api, on("pubsub", json!({"topic": "orders:*"}), json!({"queue": "plain", "kind": "k"}))).await;
        let mapped = json!({"queue": "mapped", "kind": "k", "payload": {"id": "{{ data.id }}", "text": "n {{ data.id }}"},
            "subject": "order-{{ data.id }}", "priority": 3, "max_attempts": 7});
        create(&api, on("pubsub", json!({"topic": "*", "when": "data.id > 5"}), mapped)).await;
        let response = api.post("/api/v1/topics/orders:7", json!({"id": 7})).await;
        assert_eq!(response.status, 202);
        let event = response.json()["event_id"].clone();
        let job = jobs(&api, "plain", 1).await.remove(0);
        assert_eq!(job["payload"]["data"], json!({"id": 7}));
        let payload_event = &job["payload"]["event"];
        assert_eq!(
            (&payload_event["id"], &payload_event["source"], &payload_event["op"]),
            (&event, &json!("pubsub"), &json!("publish"))
        );
        assert_eq!((&payload_event["topic"], &payload_event["depth"]), (&json!("orders:7"), &json!(0)));
        assert_eq!((&job["depth"], &job["principal"]), (&json!(1), &json!("local")));
        let by = job["triggered_by"].as_str().unwrap();
        assert!(by.starts_with(&format!("trigger:{plain}:{}", event.as_str().unwrap())), "{by}");
        let job = jobs(&api, "mapped", 1).await.remove(0);
        assert_eq!(job["payload"], json!({"id": 7, "text": "n 7"}));
        assert_eq!((&job["subject"], &job["priority"], &job["max_attempts"]), (&json!("order-7"), &json!(3), &json!(7)));
        api.post("/api/v1/topics/orders:5", json!({"id": 5})).await;
        jobs(&api, "plain", 2).await;
        jobs(&api, "mapped", 1).await;
        assert_eq!(api.get(&format!("{TRIGGERS}/{plain}")).await.json()["fired"], 2);
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_condition_that_reads_too_much_fails_alone_and_visibly() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let costly = json!({"topic": "*", "when": "data | reject('in', data) | list | length > 0"});
        let costly = create(&api, on("pubsub", costly, json!({"queue": "never", "kind": "k"}))).await;
        create(&api, on("pubsub", json!({"topic": "*"}), json!({"queue": "plain", "kind": "k"}))).await;
        let numbers: Vec<u32> = (0..50_000).collect();
        assert_eq!(api.post("/api/v1/topics/a", json!(numbers)).await.status, 202);
        jobs(&api, "plain", 1).await;
        let failed = |trigger: &Value| trigger["failed"] == 1;
        let trigger = api.get_when(&format!("{TRIGGERS}/{costly}"), failed).await;
        let error = trigger["last_error"].as_str().unwrap();
        assert!(error.starts_with("expression_too_expensive: "), "{error}");
        let letters = api.get("/api/v1/dead-letters").await.json();
        let letter = &letters["items"][0];
        assert_eq!(letter["last_error"]["code"], "expression_too_expensive");
        assert_eq!(letter["attempt_count"], 1, "a retry would fail again");
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn key_value_changes_are_stored_and_start_jobs() {
    on_both(async |db| {
        let api = Api::new(db).await;
        create(
            &api,
            on("kv", json!({"collection": "users", "ops": ["delete"]}), json!({"queue": "gone", "kind": "k"})),
        )
        .await;
        let path = "/api/v1/kv/users/ann%2F1";
        let set = api.put(path, json!({"age": 7})).await.json();
        assert_eq!((&set["key"], &set["value"], &set["version"]), (&json!("ann/1"), &json!({"age": 7}), &json!(1)));
        assert_eq!(api.put(path, json!([1, "x", null])).await.json()["version"], 2);
        assert_eq!(api.get(path).await.json()["value"], json!([1, "x", null]));
        assert_eq!(api.get("/api/v1/kv/users").await.json()["items"].as_array().unwrap().len(), 1);
        assert_eq!(api.call("DELETE", path).await.status, 200);
        api.get(path).await.problem(404, "not_found", None);
        api.call("DELETE", path).await.problem(404, "not_found", None);
        let job = jobs(&api, "gone", 1).await.remove(0);
        assert_eq!(
            (&job["payload"]["event"]["key"], &job["payload"]["data"]),
            (&json!("ann/1"), &json!([1, "x", null]))
        );
        let bad = request("PUT", path).header("content-type", "application/json").body(Body::from("{")).unwrap();
        api.send(bad).await.problem(400, "invalid_json", None);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn key_value_writes_support_if_match_and_if_none_match() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let path = "/api/v1/kv/c/k";
        let send = async |method: &str, name: &str, value: &str| {
            let builder = request(method, path).header("content-type", "application/json").header(name, value);
            api.send(builder.body(Body::from("7")).unwrap()).await
        };
        send("PUT", "if-match", "\"1\"").await.problem(412, "precondition_failed", None);
        send("PUT", "if-match", "*").await.problem(412, "precondition_failed", None);
        send("DELETE", "if-match", "*").await.problem(412, "precondition_failed", None);
        let made = send("PUT", "if-none-match", "*").await;
        assert_eq!((made.status.as_u16(), made.header("etag")), (200, "\"1\""));
        send("PUT", "if-none-match", "*").await.problem(412, "precondition_failed", None);
        assert_eq!(api.get(path).await.header("etag"), "\"1\"");
        assert_eq!(send("PUT", "if-match", "\"1\"").await.header("etag"), "\"2\"");
        send("PUT", "if-match", "\"1\"").await.problem(412, "precondition_failed", None);
        send("DELETE", "if-match", "\"1\"").await.problem(412, "precondition_failed", None);
        for (name, value) in [("If-Match", "2"), ("If-Match", "W/\"2\""), ("If-None-Match", "\"2\"")] {
            send("PUT", name, value).await.problem(400, "invalid_header", Some(name));
        }
        assert_eq!(api.get(path).await.json()["version"], 2, "the value is unchanged");
        assert_eq!(send("PUT", "if-match", "*").await.header("etag"), "\"3\"");
        assert_eq!(send("DELETE", "if-match", "\"2\", \"3\"").await.status, 200);
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn a_trigger_loop_ends_at_the_depth_limit_and_is_counted() {
    on_both(async |db| {
        let api = Api::new(db).await;
        // A canceled job in A creates one in B and the other way around. The loop below cancels each of them.
        let a = json!({"queue": "a", "kind": "k"});
        let b = json!({"queue": "b", "kind": "k"});
        let to_b = create(&api, on("job", json!({"queue": "a", "states": ["canceled"]}), b)).await;
        let to_a = create(&api, on("job", json!({"queue": "b", "states": ["canceled"]}), a)).await;
        api.job("a").await;
        let stopped = eventually("the loop is stopped", async || {
            for queue in ["a", "b"] {
                let page = api.get(&format!("/api/v1/jobs?queue={queue}&state=queued")).await.json();
                for job in page["items"].as_array().unwrap() {
                    api.call("POST", &format!("/api/v1/jobs/{}/cancel", job["id"].as_str().unwrap())).await;
                }
            }
            let (one, other) =
                (api.get(&format!("{TRIGGERS}/{to_a}")).await, api.get(&format!("{TRIGGERS}/{to_b}")).await);
            let loops = |response: &Response| response.json()["loops_stopped"].as_i64().unwrap();
            Some(loops(&one) + loops(&other)).filter(|stopped| *stopped > 0)
        })
        .await;
        assert_eq!((stopped, api.job_count().await), (1, 17), "the first job and one for each of sixteen levels");
        let page = api.get("/api/v1/jobs?limit=500").await.json();
        let deepest = page["items"].as_array().unwrap().iter().max_by_key(|job| job["depth"].as_i64()).unwrap().clone();
        assert_eq!(deepest["depth"], 16);
        let history = api.get(&format!("/api/v1/jobs/{}/history", deepest["id"].as_str().unwrap())).await.json();
        assert!(history["items"].as_array().unwrap().iter().any(|item| item["event"] == "loop_stopped"), "{history}");
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 0, "a loop creates no dead letter");
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn the_depth_of_an_event_comes_from_its_header() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let id = create(&api, on("pubsub", json!({"topic": "t"}), json!({"queue": "deep", "kind": "k"}))).await;
        let publish = async |depth: &str| {
            let request = request("POST", "/api/v1/topics/t").header("content-type", "application/json");
            api.send(request.header("windlass-depth", depth).body(Body::from("1")).unwrap()).await
        };
        assert_eq!(publish("15").await.status, 202);
        assert_eq!(jobs(&api, "deep", 1).await[0]["depth"], 16);
        assert_eq!(publish("16").await.status, 202);
        wait_until("the loop is stopped", async || {
            api.get(&format!("{TRIGGERS}/{id}")).await.json()["loops_stopped"] == 1
        })
        .await;
        jobs(&api, "deep", 1).await;
        publish("-1").await.problem(400, "invalid_header", Some("Windlass-Depth"));
    })
    .await;
}

/// Requirement T5.
#[tokio::test]
async fn the_depth_header_applies_to_fire_retry_and_replay() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let send = async |path: &str, depth: &str, body: Value| {
            let request = request("POST", path).header("content-type", "application/json");
            api.send(request.header("windlass-depth", depth).body(Body::from(body.to_string())).unwrap()).await
        };
        let failed = async |queue: &str| {
            let (job, worker, epoch) = api.claimed(queue).await;
            let error = json!({"code": "boom", "retryable": false});
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
            let letters = api.get(&format!("/api/v1/dead-letters?job_id={job}")).await.json();
            (job, letters["items"][0]["id"].as_str().unwrap().to_owned())
        };
        let depth = async |job: &Value| {
            api.get(&format!("/api/v1/jobs/{}", job.as_str().unwrap())).await.json()["depth"].clone()
        };
        let id = create(&api, on("pubsub", json!({"topic": "t"}), json!({"queue": "fired", "kind": "k"}))).await;
        assert_eq!(send(&format!("{TRIGGERS}/{id}/fire"), "5", json!({})).await.status, 202);
        assert_eq!(jobs(&api, "fired", 1).await[0]["depth"], 6);
        let (job, _) = failed("retried").await;
        let retried = send(&format!("/api/v1/jobs/{job}/retry"), "7", json!({})).await.json();
        assert_eq!(depth(&retried["id"]).await, 7);
        let (_, letter) = failed("replayed").await;
        let replayed = send(&format!("/api/v1/dead-letters/{letter}/replay"), "8", json!({})).await.json();
        assert_eq!(depth(&replayed["job_id"]).await, 8);
        let (_, letter) = failed("many").await;
        assert_eq!(send("/api/v1/dead-letters/replay", "9", json!({"ids": [letter]})).await.json()["replayed"], 1);
        let resolved = api.get(&format!("/api/v1/dead-letters/{letter}")).await.json();
        assert_eq!(depth(&resolved["replayed_as"]).await, 9);
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn a_dead_letter_handler_runs_and_resolves_the_dead_letter() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let mut handler = on("dead_letter", json!({"source": "job"}), json!({"queue": "handlers", "kind": "k"}));
        handler["handles"] = json!(true);
        create(&api, handler).await;
        for (outcome, expected) in [("finish", "handled_by_script"), ("fail", "handler_failed")] {
            let (job, worker, epoch) = api.claimed("q").await;
            let error = json!({"code": "boom", "retryable": false});
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": error})).await;
            let handler = api.worker("handlers").await;
            let run = api.next_job(&handler).await;
            assert_eq!((&run["payload"]["data"]["job_id"], &run["max_attempts"]), (&json!(job), &json!(1)), "{run}");
            let mut settled = json!({"job_id": run["id"], "epoch": run["epoch"], "outcome": outcome});
            if outcome == "fail" {
                settled["error"] = json!({"code": "boom"});
            }
            api.settle(&handler, settled).await;
            let letters = api.get(&format!("/api/v1/dead-letters?job_id={job}")).await.json();
            assert_eq!(letters["items"][0]["resolution"], expected);
            assert!(letters["items"][0]["resolved_by"].as_str().unwrap().starts_with("trigger:"));
            let ended = if outcome == "finish" { "succeeded" } else { "failed" };
            assert_eq!(letters["items"][0]["handlers"][0]["outcome"], ended);
        }
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 2, "handlers create no dead letter");
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn a_trigger_can_be_tested_fired_disabled_and_deleted() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = json!({"queue": "made", "kind": "k", "payload": {"n": "{{ data.n * 2 }}"}});
        let trigger = on("kv", json!({"collection": "c", "ops": ["set"], "when": "data.n > 1"}), job);
        let id = create(&api, trigger.clone()).await;
        let fire = format!("{TRIGGERS}/{id}/fire");
        let dry = async |body: Value| api.post(&fire, body).await.json()["dry_run"].clone();
        let attributes = json!({"collection": "c"});
        let matching = dry(json!({"dry_run": true, "op": "set", "attributes": attributes, "data": {"n": 2}})).await;
        assert_eq!(matching, json!({"matches": true, "queue": "made", "kind": "k", "payload": {"n": 4}}));
        assert_eq!(
            dry(json!({"dry_run": true, "op": "delete", "attributes": attributes, "data": {"n": 2}})).await["matches"],
            false
        );
        assert_eq!(dry(json!({"dry_run": true, "data": {"n": 1}})).await["matches"], false);
        api.post(&fire, json!({"op": "set"})).await.problem(422, "invalid_field", Some("op"));
        let odd = json!({"dry_run": true, "attributes": {"colour": "red"}});
        api.post(&fire, odd).await.problem(422, "invalid_field", Some("attributes.colour"));
        assert_eq!(api.post(&fire, json!({"data": {"n": 1}})).await.status, 202);
        assert_eq!(jobs(&api, "made", 1).await[0]["payload"], json!({"n": 2}), "a manual fire ignores the filter");
        let mut off = trigger;
        off["enabled"] = json!(false);
        assert_eq!(api.put(&format!("{TRIGGERS}/{id}"), off).await.json()["enabled"], false);
        api.put("/api/v1/kv/c/k", json!({"n": 5})).await;
        assert_eq!(api.call("DELETE", &format!("{TRIGGERS}/{id}")).await.status, 204);
        api.get(&format!("{TRIGGERS}/{id}")).await.problem(404, "not_found", None);
        jobs(&api, "made", 1).await;
    })
    .await;
}

/// Waits for the first dead letter of the trigger.
async fn first_dead_letter(api: &Api, trigger: &str) -> Value {
    let path = format!("/api/v1/dead-letters?trigger_id={trigger}");
    api.get_when(&path, |page| page["items"].get(0).is_some()).await["items"][0].clone()
}

/// Requirement T6.
#[tokio::test]
async fn a_job_with_a_process_and_an_empty_subject_becomes_a_dead_letter() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = json!({"queue": "q", "kind": "k", "process": "scrub", "subject": "{{ data.a }}"});
        let id = create(&api, on("pubsub", json!({"topic": "t"}), job)).await;
        api.post("/api/v1/topics/t", json!({"a": ""})).await;
        let error = first_dead_letter(&api, &id).await["last_error"].clone();
        assert_eq!(error["code"], "mapping_invalid");
        assert!(error["message"].as_str().unwrap().starts_with("process requires a subject"), "{error}");
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn a_failed_mapping_becomes_a_dead_letter_with_its_error() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let mut trigger =
            on("pubsub", json!({"topic": "t"}), json!({"queue": "q", "kind": "k", "subject": "{{ data.a }}"}));
        trigger["retry"] = json!({"max_attempts": 2, "initial_s": 0});
        let id = create(&api, trigger).await;
        api.post("/api/v1/topics/t", json!({"a": "\u{202e}hidden"})).await;
        let letter = first_dead_letter(&api, &id).await;
        assert_eq!((&letter["source"], &letter["job_id"]), (&json!("pubsub"), &Value::Null));
        assert_eq!(letter["last_error"]["code"], "mapping_invalid");
        let replay = format!("/api/v1/dead-letters/{}/replay", letter["id"].as_str().unwrap());
        let mut payload = letter["payload"].clone();
        payload["data"] = json!({"a": "seen"});
        let replayed = api.post(&replay, json!({"payload": payload})).await;
        assert_eq!((replayed.status.as_u16(), replayed.json()["event_id"].is_string()), (202, true));
        assert_eq!(jobs(&api, "q", 1).await[0]["subject"], "seen");
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_replayed_event_passes_its_original_filter() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = json!({"queue": "q", "kind": "k", "subject": "{{ data.a }}", "payload": {"key": "{{ event.key }}"}});
        let id = create(&api, on("kv", json!({"collection": "c", "when": "event.key == 'a'"}), job)).await;
        api.put("/api/v1/kv/c/a", json!({"a": "\u{202e}hidden"})).await;
        let letter = first_dead_letter(&api, &id).await;
        let mut payload = letter["payload"].clone();
        payload["data"] = json!({"a": "seen"});
        let replay = format!("/api/v1/dead-letters/{}/replay", letter["id"].as_str().unwrap());
        assert_eq!(api.post(&replay, json!({"payload": payload})).await.status, 202);
        assert_eq!(jobs(&api, "q", 1).await[0]["payload"], json!({"key": "a"}));
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn an_event_at_the_size_limit_creates_a_job() {
    on_both(async |db| {
        let api = Api::new(db).await;
        create(&api, on("pubsub", json!({"topic": "*"}), json!({"queue": "q", "kind": "k"}))).await;
        let data = "x".repeat(domain::limits::PAYLOAD_BYTES - 2);
        let topic = "t".repeat(domain::limits::LABEL_BYTES);
        assert_eq!(api.post(&format!("/api/v1/topics/{topic}"), json!(data)).await.status, 202);
        assert_eq!(jobs(&api, "q", 1).await[0]["payload"]["data"], json!(data));
    })
    .await;
}

/// Requirement T10.
#[tokio::test]
async fn a_schedule_shows_its_next_five_fires() {
    on_both(async |db| {
        // Avoids the moment at which the schedule fires.
        db.advance_to_hour_start().await;
        let api = Api::new(db).await;
        let filter = json!({"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "missed": "coalesce"});
        let id = create(&api, on("cron", filter, json!({"queue": "q", "kind": "k"}))).await;
        let shown = api.get(&format!("{TRIGGERS}/{id}")).await.json();
        assert_eq!(shown["next_fires"].as_array().unwrap().len(), 5);
        assert_eq!(api.post(&format!("{TRIGGERS}/{id}/fire"), json!({})).await.status, 202);
        jobs(&api, "q", 1).await;
    })
    .await;
}

/// Requirement T2.
#[tokio::test]
async fn toggling_a_trigger_keeps_its_principal() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let root = api.caller(json!({"name": "root", "role": "admin"})).await;
        // The operator may not read the target's headers.
        let operator = api.caller(json!({"name": "ops", "role": "operator", "rights": ["manage_triggers"]})).await;
        let trigger = json!({"name": "t", "source": "kv", "filter": {"collection": "c"},
            "target": {"http": {"url": "https://example.com/", "headers": {"authorization": "Bearer hidden"}}}});
        let made = root.post(TRIGGERS, trigger).await.json();
        let path = format!("{TRIGGERS}/{}", made["id"].as_str().unwrap());
        let shown = operator.get(&path).await.json();
        let with = |enabled: bool, name: &str| {
            json!({"name": name, "source": "kv", "filter": shown["filter"], "target": shown["target"],
                "mode": shown["mode"], "retry": shown["retry"], "enabled": enabled})
        };
        for enabled in [false, true] {
            let toggled = operator.put(&path, with(enabled, "t")).await;
            assert_eq!(toggled.status, 200, "{:?}", toggled.body);
            let toggled = toggled.json();
            assert_eq!((&toggled["enabled"], &toggled["principal"]), (&json!(enabled), &json!("root")));
        }
        operator.put(&path, with(false, "mine")).await.problem(403, "forbidden", None);
        operator.put(&path, with(true, "t")).await.problem(403, "forbidden", None);
        let by = root.get("/api/v1/history?limit=1").await.json()["items"][0]["actor"].clone();
        assert_eq!(by, "ops", "the history contains the user");
    })
    .await;
}

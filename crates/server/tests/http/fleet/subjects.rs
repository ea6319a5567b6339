//! Subjects and processes over HTTP.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::eventually::wait_until;
use testkit::{Database, on_both};

use crate::api::{Api, Response, members, request};

const INSTALL: &str = "/api/v1/processes/install";

fn install() -> Value {
    json!({
        "selector": {"all": [{"fact": "state", "equals": "provided"}], "not": [{"fact": "broken", "exists": true}]},
        "queue": "q", "kind": "install", "max_active": 3, "every_s": 300, "excludes": ["wipe"],
        "backoff": {"initial_s": 60, "maximum_s": 120, "exponent": 2.0, "jitter": 0.0},
    })
}

async fn settle(api: &Api, worker: &str, job: &Value, outcome: Value) -> String {
    let mut outcome = outcome;
    outcome["job_id"] = job["id"].clone();
    outcome["epoch"] = job["epoch"].clone();
    api.settle(worker, outcome).await.json()["results"][0]["status"].as_str().unwrap().to_owned()
}

async fn events(api: &Api, subject: &str) -> Vec<String> {
    let page = api.get(&format!("/api/v1/subjects/{subject}/history?limit=500")).await.json();
    let items = page["items"].as_array().unwrap().iter().rev();
    items.map(|item| item["event"].as_str().unwrap().to_owned()).collect()
}

/// Requirement W3.
#[tokio::test]
async fn a_process_moves_a_subject_through_failure_backoff_and_success() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let put = api.put(INSTALL, install()).await;
        assert_eq!(put.status, 200);
        assert_eq!(put.json()["selector"], install()["selector"]);
        let subject = api.put("/api/v1/subjects/m-1", json!({"kind": "machine", "facts": {"state": "provided"}})).await;
        assert_eq!(subject.status, 200);
        assert_eq!(subject.json()["facts"]["state"]["value"], "provided");
        assert!(subject.json()["facts"]["state"]["at"].is_string());

        let worker = api.worker("q").await;
        let job = api.next_job(&worker).await;
        let actual = (&job["subject"], &job["process"], &job["payload"]);
        let payload = json!({"subject": "m-1", "facts": {"state": "provided"}});
        assert_eq!(actual, (&json!("m-1"), &json!("install"), &payload));
        api.call("DELETE", "/api/v1/subjects/m-1").await.problem(409, "subject_busy", None);
        let error = json!({"code": "no_disk", "message": "no disk was found", "retryable": true});
        assert_eq!(settle(&api, &worker, &job, json!({"outcome": "fail", "error": error})).await, "applied");
        assert_eq!(settle(&api, &worker, &job, json!({"outcome": "finish"})).await, "already_ended");

        let card = api.get("/api/v1/subjects/m-1").await.json();
        let backoff = &card["backoffs"][0];
        assert_eq!((&backoff["process"], &backoff["cause"]), (&json!("install"), &json!("no_disk: no disk was found")));
        assert_eq!(backoff["job_id"], job["id"]);
        assert!(backoff["by"].as_str().unwrap().starts_with("worker "));
        assert_eq!(card["processes"][0]["standing"], "in_backoff");
        let listed = api.get("/api/v1/processes").await.json();
        let figures = &listed["items"][0];
        let actual = (&figures["name"], &figures["eligible"], &figures["active"], &figures["in_backoff"]);
        assert_eq!(actual, (&json!("install"), &json!(0), &json!(0), &json!(1)));

        api.db.pass_ms(61_000).await;
        let worker = api.worker("q").await;
        let job = api.next_job(&worker).await;
        let facts = json!({"state": "installed", "disk": "sda"});
        assert_eq!(settle(&api, &worker, &job, json!({"outcome": "finish", "facts": facts})).await, "applied");
        let card = api.get("/api/v1/subjects/m-1").await.json();
        assert_eq!((&card["backoffs"], &card["work"], &card["processes"]), (&json!([]), &json!([]), &json!([])));
        assert_eq!(card["facts"]["disk"]["value"], "sda");
        let expected =
            ["created", "facts_changed", "started", "failed", "backed_off", "started", "finished", "facts_changed"];
        assert_eq!(events(&api, "m-1").await, expected);
        let page = api.get("/api/v1/subjects/m-1/history?limit=5").await.json();
        assert_eq!(members(&page), ["items", "next_cursor"]);
        let backed_off = &page["items"][3];
        assert_eq!(
            (&backed_off["event"], &backed_off["cause"]),
            (&json!("backed_off"), &json!("no_disk: no disk was found"))
        );
        assert!(backed_off["detail"]["until"].as_str().unwrap().ends_with('Z'));
        assert_eq!(page["items"][4]["detail"]["message"], "no disk was found");
        let cursor = page["next_cursor"].as_str().unwrap();
        let rest = api.get(&format!("/api/v1/subjects/m-1/history?limit=5&cursor={cursor}")).await.json();
        assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next_cursor"]), (3, &Value::Null));

        assert_eq!(api.call("DELETE", "/api/v1/subjects/m-1").await.status, 204);
        api.get("/api/v1/subjects/m-1").await.problem(404, "not_found", None);
        assert_eq!(events(&api, "m-1").await.last().map(String::as_str), Some("deleted"));
        api.get("/api/v1/subjects/missing/history").await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement W5.
#[tokio::test]
async fn a_lockout_shows_its_author_cause_and_end() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let lock = "/api/v1/subjects/m-1/backoffs/*";
        let locked = api.put(lock, json!({"cause": "bad disk"})).await;
        assert_eq!(locked.status, 200, "a lockout creates a missing subject");
        let card = api.get("/api/v1/subjects/m-1").await.json();
        let backoff = &card["backoffs"][0];
        let actual = (&backoff["process"], &backoff["until"], &backoff["cause"], &backoff["by"]);
        assert_eq!(actual, (&json!("*"), &Value::Null, &json!("bad disk"), &json!("local")));

        let job = json!({"queue": "q", "kind": "k", "subject": "m-1", "process": "install"});
        let job = api.post("/api/v1/jobs", job).await.json();
        let worker = api.worker("q").await;
        let none = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
        assert_eq!(none, json!({"jobs": []}));
        let why = api.get(&format!("/api/v1/jobs/{}/why", job["id"].as_str().unwrap())).await.json();
        assert_eq!(why["reason"], "backoff");
        assert!(why["detail"].as_str().unwrap().contains("bad disk"));

        assert_eq!(api.call("DELETE", lock).await.status, 204);
        api.call("DELETE", lock).await.problem(404, "not_found", None);
        assert_eq!(api.next_job(&worker).await["id"], job["id"]);
        let soon =
            api.put("/api/v1/subjects/m-1/backoffs/install", json!({"for_s": 60, "cause": "later"})).await.json();
        assert!(soon["until"].is_string());
    })
    .await;
}

/// Requirement W7.
#[tokio::test]
async fn the_process_view_the_eligible_list_and_the_metrics_agree() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let mut settings = install();
        settings["max_active"] = json!(1);
        api.put(INSTALL, settings).await;
        for subject in ["a", "b", "c"] {
            api.put(&format!("/api/v1/subjects/{subject}"), json!({"facts": {"state": "provided"}})).await;
        }
        wait_until("one subject is active", async || api.get(INSTALL).await.json()["active"] == 1).await;
        let process = api.get(INSTALL).await.json();
        assert_eq!((&process["eligible"], &process["in_backoff"]), (&json!(2), &json!(0)));
        let first = api.get("/api/v1/processes/install/eligible?limit=1").await.json();
        let cursor = first["next_cursor"].as_str().unwrap();
        let rest = api.get(&format!("/api/v1/processes/install/eligible?limit=1&cursor={cursor}")).await.json();
        let subjects = [&first["items"][0]["subject"], &rest["items"][0]["subject"]];
        assert_eq!((subjects, &rest["next_cursor"]), ([&json!("b"), &json!("c")], &Value::Null));
        assert_eq!(first["items"][0]["ready_at"], process["oldest"]);
        let metrics = String::from_utf8(api.get("/metrics").await.body.to_vec()).unwrap();
        for line in
            ["eligible{process=\"install\"} 2", "active{process=\"install\"} 1", "in_backoff{process=\"install\"} 0"]
        {
            assert!(metrics.contains(&format!("windlass_process_{line}")), "{metrics}");
        }
        assert!(metrics.contains("windlass_process_oldest_seconds{process=\"install\"} "));
        assert_eq!(api.call("DELETE", INSTALL).await.status, 204);
        api.get(INSTALL).await.problem(404, "not_found", None);
        api.call("DELETE", INSTALL).await.problem(404, "not_found", None);
        api.get("/api/v1/processes/install/eligible").await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test]
async fn subjects_are_listed_by_id_and_filtered_by_kind_or_prefix() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for (subject, kind) in [("m%2F2", "machine"), ("g-1", "game"), ("m%2F1", "machine")] {
            api.put(&format!("/api/v1/subjects/{subject}"), json!({"kind": kind, "facts": {}})).await;
        }
        let ids = |page: &Value| -> Vec<String> {
            page["items"].as_array().unwrap().iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
        };
        let first = api.get("/api/v1/subjects?limit=2").await.json();
        let cursor = first["next_cursor"].as_str().unwrap();
        let second = api.get(&format!("/api/v1/subjects?limit=2&cursor={cursor}")).await.json();
        assert_eq!((ids(&first), ids(&second)), (vec!["g-1".into(), "m/1".into()], vec!["m/2".to_owned()]));
        assert_eq!(ids(&api.get("/api/v1/subjects?kind=game").await.json()), ["g-1"]);
        assert_eq!(ids(&api.get("/api/v1/subjects?prefix=m%2F").await.json()), ["m/1", "m/2"]);
    })
    .await;
}

async fn report(api: &Api, subject: &str, token: Option<&str>, body: &Value) -> Response {
    let mut report =
        request("PUT", &format!("/api/v1/subjects/{subject}/facts")).header("content-type", "application/json");
    if let Some(token) = token {
        report = report.header("authorization", format!("Bearer {token}"));
    }
    api.send(report.body(Body::from(body.to_string())).unwrap()).await
}

/// Requirement W8.
#[tokio::test]
async fn an_agent_credential_sets_only_the_facts_of_its_subject() {
    on_both(async |db| {
        let api = Api::new(db).await;
        for subject in ["m-1", "m-2"] {
            api.put(&format!("/api/v1/subjects/{subject}"), json!({"facts": {}})).await;
        }
        let made = api.call("POST", "/api/v1/subjects/m-1/credential").await;
        assert_eq!(made.status, 201);
        let token = made.json()["token"].as_str().unwrap().to_owned();
        let beat = json!({"facts": {"heartbeat": 1}});
        assert_eq!(report(&api, "m-1", Some(&token), &beat).await.status, 204);
        let card = api.get("/api/v1/subjects/m-1").await.json();
        assert_eq!(card["facts"]["heartbeat"]["value"], 1);
        report(&api, "m-2", Some(&token), &beat).await.problem(404, "not_found", None);
        report(&api, "m-1", None, &beat).await.problem(401, "unauthorized", None);
        report(&api, "m-1", Some("wlsub_made-up"), &beat).await.problem(401, "unauthorized", None);
        report(&api, "m-1", Some(&token), &json!({"kind": "x", "facts": {}})).await.problem(
            422,
            "invalid_field",
            Some("kind"),
        );
        let next = api.call("POST", "/api/v1/subjects/m-1/credential").await.json();
        report(&api, "m-1", Some(&token), &beat).await.problem(401, "unauthorized", None);
        let token = next["token"].as_str().unwrap();
        assert_eq!(report(&api, "m-1", Some(token), &beat).await.status, 204);
        assert_eq!(api.call("DELETE", "/api/v1/subjects/m-1/credential").await.status, 204);
        report(&api, "m-1", Some(token), &beat).await.problem(401, "unauthorized", None);
        api.call("POST", "/api/v1/subjects/missing/credential").await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement X10.
#[tokio::test]
async fn invalid_facts_backoffs_and_processes_name_the_field() {
    let api = Api::new(Database::sqlite().await).await;
    let subject = "/api/v1/subjects/m-1";
    let check = async |path: &str, body: Value, field: &str| {
        api.put(path, body).await.problem(422, "invalid_field", Some(field));
    };
    check(subject, json!({"facts": {"a b": 1}}), "facts.a b").await;
    check(subject, json!({"facts": {"big": "x".repeat(20_000)}}), "facts.big").await;
    check(subject, json!({"facts": {}, "colour": "red"}), "colour").await;
    check(subject, json!({"kind": "two words", "facts": {}}), "kind").await;
    check("/api/v1/subjects/%20m", json!({"facts": {}}), "id").await;
    let huge = r#"{"facts": {"n": 1e999}}"#;
    let huge = request("PUT", subject).header("content-type", "application/json").body(Body::from(huge)).unwrap();
    api.send(huge).await.problem(422, "invalid_field", Some("facts.n"));

    let backoff = "/api/v1/subjects/m-1/backoffs/install";
    check(backoff, json!({}), "cause").await;
    check(backoff, json!({"cause": " "}), "cause").await;
    check(backoff, json!({"cause": "x", "for_s": 0}), "for_s").await;
    check(backoff, json!({"cause": "x", "for_s": 1, "until": "2030-01-01T00:00:00Z"}), "for_s").await;
    check(backoff, json!({"cause": "x", "until": "9000-01-01T00:00:00Z"}), "until").await;
    check("/api/v1/subjects/m-1/backoffs/a%20b", json!({"cause": "x"}), "process").await;

    let with = |member: &str, value: Value| {
        let mut settings = install();
        settings[member] = value;
        settings
    };
    check(INSTALL, json!({"queue": "q", "kind": "k"}), "selector").await;
    check(INSTALL, with("queue", json!("")), "queue").await;
    check(INSTALL, with("max_active", json!(0)), "max_active").await;
    check(INSTALL, with("every_s", json!(0)), "every_s").await;
    check(INSTALL, with("excludes", json!(["a b"])), "excludes[0]").await;
    check(INSTALL, with("backoff", json!({"exponent": 0.5})), "backoff.exponent").await;
    let selector = |condition: Value| with("selector", json!({"any": [condition]}));
    check(INSTALL, selector(json!({"fact": "a"})), "selector.any[0]").await;
    check(INSTALL, selector(json!({"fact": "a", "exists": true, "equals": 1})), "selector.any[0]").await;
    check(INSTALL, selector(json!({"fact": "a b", "exists": true})), "selector.any[0].fact").await;
    check(INSTALL, selector(json!({"fact": "a", "older_than_s": -1})), "selector.any[0].older_than_s").await;
    check(INSTALL, selector(json!({"fact": "a", "newer_than_s": 1})), "selector.any[0].newer_than_s").await;
    assert_eq!(api.get("/api/v1/subjects").await.json()["items"], json!([]));
    assert_eq!(api.get("/api/v1/processes").await.json()["items"], json!([]));
    for bad in ["/api/v1/subjects?cursor=x", "/api/v1/subjects/m/history?cursor=AWo", "/api/v1/processes?cursor=x"] {
        api.get(bad).await.problem(400, "invalid_cursor", Some("cursor"));
    }
    api.get("/api/v1/subjects?colour=red").await.problem(400, "invalid_query", Some("colour"));
}

/// Requirement W5.
#[tokio::test]
async fn a_failing_worker_may_name_its_backoff_over_http() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let with = |members: Value| {
            let mut outcome = json!({"job_id": job, "epoch": epoch, "outcome": "fail", "error": {"code": "bmc"}});
            outcome.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
            outcome
        };
        let until = "2030-01-01T00:00:00Z";
        for (members, field) in [
            (json!({"backoff_s": -1}), "backoff_s"),
            (json!({"backoff_s": 1, "backoff_until": until}), "backoff_until"),
            (json!({"backoff_until": "9000-01-01T00:00:00Z"}), "backoff_until"),
            (json!({"backoff_s": 1, "outcome": "release", "error": null}), "backoff_s"),
        ] {
            let refused = api.settle(&worker, with(members)).await;
            refused.problem(422, "invalid_field", Some(&format!("outcomes[0].{field}")));
        }
        let settled = api.settle(&worker, with(json!({"backoff_s": 7_200}))).await.json();
        assert_eq!(settled["results"][0]["status"], "applied");
        let waiting = api.get(&format!("/api/v1/jobs/{job}")).await.json();
        let at = |member: &str| waiting[member].as_str().unwrap().parse::<jiff::Timestamp>().unwrap().as_millisecond();
        assert_eq!(at("run_at") - at("updated_at"), 7_200_000, "{waiting}");
    })
    .await;
}

/// Requirement W1.
#[tokio::test]
async fn a_selector_with_groups_and_comparisons_is_stored_and_shown() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let with = |selector: Value| json!({"selector": selector, "queue": "q", "kind": "k"});
        let recovery = json!({"all": [{"fact": "generation", "differs_from": "report.generation"}, {"any": [
            {"all": [{"fact": "temperature", "greater_than": 70.5}, {"fact": "booted", "less_than": "2026-11-19T12:00:00Z"}]},
            {"fact": "a", "equals_fact": "b"}]}]});
        let put = api.put("/api/v1/processes/recover", with(recovery.clone())).await.json();
        assert_eq!(put["selector"], recovery, "{put}");
        let facts = json!({"generation": 2, "report.generation": 1, "temperature": 71, "booted": "2026-11-19T11:00:00Z"});
        api.put("/api/v1/subjects/hot", json!({"facts": facts})).await;
        api.put("/api/v1/subjects/cold", json!({"facts": {"generation": 2, "temperature": 70}})).await;
        let eligible = api.get_when("/api/v1/processes/recover", |process| {
            process["eligible"].as_i64().unwrap() + process["active"].as_i64().unwrap() > 0
        });
        let process = eligible.await;
        assert_eq!(process["eligible"].as_i64().unwrap() + process["active"].as_i64().unwrap(), 1, "{process}");
        let deep = (0..5).fold(json!({"fact": "a", "exists": true}), |inner, _| json!({"all": [inner]}));
        for (selector, field) in [
            (json!({"all": [{"fact": "a", "exists": true, "equals": 1}]}), "selector.all[0]"),
            (json!({"all": [{"fact": "a"}]}), "selector.all[0]"),
            (json!({"all": [{"exists": true}]}), "selector.all[0]"),
            (json!({"any": [{"all": [{"fact": "a", "greater_than": true}]}]}), "selector.any[0].all[0].greater_than"),
            (json!({"all": [deep]}), "selector"),
        ] {
            let refused = api.put("/api/v1/processes/bad", with(selector)).await;
            refused.problem(422, "invalid_field", Some(field));
        }
    })
    .await;
}

//! Pools on a real Docker engine: a backlog brings its model up, drains, and swaps within the bound (R7, Q6).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use store::StoreError;
use store::tx::{Operation, Tx};
use testkit::docker::IMAGE;
use testkit::{on_both, on_postgres};

use crate::api::Api;
use crate::runtimes::Driven;

/// A small model: it answers a POST with its own name, through busybox's CGI.
fn model(name: &str) -> Value {
    let answer = format!("#!/bin/sh\necho 'Content-Type: application/json'\necho\necho '{{\"model\": \"{name}\"}}'\n");
    let script = "trap 'exit 0' TERM; mkdir -p /www/cgi-bin; echo \"$ANSWER\" > /www/cgi-bin/run; \
         /bin/busybox chmod +x /www/cgi-bin/run; echo ok > /www/health; httpd -f -p 8080 -h /www & wait";
    json!({
        "image": IMAGE, "command": ["sh", "-c", script], "env": {"ANSWER": answer}, "ports": [{"container": 8080}],
        "probe": {"path": "/health", "port": 8080},
    })
}

async fn declare(api: &Api, names: &[&str]) {
    for name in names {
        let put = api.put(&format!("/api/v1/runtimes/{name}"), model(name)).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
    }
}

fn pool(slots: u32, names: &[&str]) -> Value {
    let members: Vec<Value> = names.iter().map(|name| json!({"affinity": name, "runtime": name})).collect();
    let handler = json!({"path": "/cgi-bin/run", "timeout_s": 300});
    json!({"slots": slots, "members": members, "starvation_s": 60, "handler": handler})
}

async fn push(api: &Api, affinity: &str) -> String {
    let job = json!({"queue": "gpu", "kind": "ask", "affinity": affinity, "payload": {"question": 1}});
    let made = api.post("/api/v1/jobs", job).await;
    assert_eq!(made.status, 202);
    made.json()["id"].as_str().unwrap().to_owned()
}

async fn ended(api: &Api, id: &str) -> Value {
    let deadline = Instant::now() + crate::api::PATIENCE;
    loop {
        let job = api.get(&format!("/api/v1/jobs/{id}?wait=5s")).await.json();
        if ["succeeded", "failed", "canceled"].contains(&job["state"].as_str().unwrap()) {
            return job;
        }
        assert!(Instant::now() < deadline, "{job}");
    }
}

async fn until(what: &str, check: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + crate::api::PATIENCE;
    while !check().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_backlog_brings_its_model_up_drains_and_swaps() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["beta"]).await;
        // It is not up before somebody says so: that it is loading must be seen.
        let mut alpha = model("alpha");
        let script = format!("until [ -e /go ]; do sleep 1; done; {}", alpha["command"][2].as_str().unwrap());
        alpha["command"][2] = json!(script);
        assert_eq!(api.put("/api/v1/runtimes/alpha", alpha).await.status, 200);
        let mut declared = pool(1, &["alpha", "beta"]);
        // However long these take, nobody has to give way.
        declared["starvation_s"] = json!(3_600);
        // Interleaved: in their own order they would need a swap each.
        let mut jobs = Vec::new();
        for number in 0..20 {
            jobs.push(push(api, if number % 2 == 0 { "alpha" } else { "beta" }).await);
        }
        let put = api.put("/api/v1/pools/gpu", declared.clone()).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        until("somebody is loading", async || {
            let page = api.get("/api/v1/jobs?queue=gpu&state=loading").await.json();
            !page["items"].as_array().unwrap().is_empty()
        })
        .await;
        until("its container is there", async || {
            api.get("/api/v1/runtimes/alpha").await.json()["container_id"].is_string()
        })
        .await;
        let runtime = api.get("/api/v1/runtimes/alpha").await.json();
        driven.docker.run(&["exec", runtime["container_id"].as_str().unwrap(), "touch", "/go"]);
        for (number, id) in jobs.iter().enumerate() {
            let job = ended(api, id).await;
            let model = if number % 2 == 0 { "alpha" } else { "beta" };
            assert_eq!((&job["state"], &job["result"]["model"]), (&json!("succeeded"), &json!(model)), "{job}");
        }
        // What the node knows of its pool is written down once a second.
        until("both loads are told", async || api.get("/api/v1/pools/gpu").await.json()["loads"] == 2).await;
        let pool = api.get("/api/v1/pools/gpu").await.json();
        assert_eq!(pool["swaps_made"], 2, "one for each model: {pool}");
        assert!(
            pool["swaps_avoided"].as_i64().unwrap() >= 9 && pool["minutes_saved"].as_f64().unwrap() > 0.0,
            "{pool}"
        );
        let log = api.get("/api/v1/runtimes/alpha/operations").await.json();
        let lines: Vec<(&str, &str)> = log["items"]
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .map(|line| (line["kind"].as_str().unwrap(), line["source"].as_str().unwrap()))
            .collect();
        assert_eq!(lines, [("start", "auto_scale"), ("stop", "auto_scale")], "all in the operation log");
        // Only now: a machine that stands still between two jobs has a model idle, too.
        declared["idle_stop_s"] = json!(3);
        assert_eq!(api.put("/api/v1/pools/gpu", declared).await.status, 200);
        until("an idle model is stopped", async || {
            api.get("/api/v1/runtimes/beta").await.json()["status"] == "stopped"
        })
        .await;
        assert_eq!(api.call("DELETE", "/api/v1/pools/gpu").await.status, 204);
        api.get("/api/v1/pools/gpu").await.problem(404, "not_found", None);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_model_that_cannot_be_loaded_backs_off_alone() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        let mut broken = model("broken");
        broken["command"] = json!(["/no/such/program"]);
        api.put("/api/v1/runtimes/broken", broken).await;
        api.put("/api/v1/pools/gpu", pool(1, &["broken", "good"])).await;
        let waiting = push(api, "broken").await;
        until("it says why", async || {
            let pool = api.get("/api/v1/pools/gpu").await.json();
            pool["members"][0]["cause"].as_str().is_some_and(|cause| cause.contains("container_start_failed"))
        })
        .await;
        let done = push(api, "good").await;
        assert_eq!(ended(api, &done).await["result"]["model"], "good", "the other is not held up");
        // While the next load is tried it is on its way to one.
        until("no attempt is burnt", async || {
            api.get(&format!("/api/v1/jobs/{waiting}")).await.json()["attempt"].as_i64() == Some(0)
        })
        .await;
        // Repaired, it comes up by itself when its time has passed.
        api.put("/api/v1/runtimes/broken", model("broken")).await;
        assert_eq!(ended(api, &waiting).await["result"]["model"], "broken");
    })
    .await;
}

/// A model that can never be posted to.
async fn declare_without_a_port(api: &Api, name: &str) {
    let mut mute = model(name);
    mute["ports"] = json!([]);
    mute["probe"] = Value::Null;
    assert_eq!(api.put(&format!("/api/v1/runtimes/{name}"), mute).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_model_that_publishes_no_port_is_left_alone_and_says_so() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        declare_without_a_port(api, "mute").await;
        api.put("/api/v1/pools/gpu", pool(1, &["mute", "good"])).await;
        let waiting = push(api, "mute").await;
        until("it says why", async || {
            let pool = api.get("/api/v1/pools/gpu").await.json();
            pool["members"][0]["cause"].as_str().is_some_and(|cause| cause.contains("publishes no port"))
        })
        .await;
        until("its job says why", async || {
            let signal = api.get(&format!("/api/v1/jobs/{waiting}/signal")).await.json();
            signal["summary"].as_str().unwrap().contains("publishes no port")
        })
        .await;
        let done = push(api, "good").await;
        assert_eq!(ended(api, &done).await["result"]["model"], "good", "the other is not held up");
        let log = api.get("/api/v1/runtimes/mute/operations").await.json();
        assert_eq!(log["items"], json!([]), "it is not even started");
        // With a port it comes up by itself when its time has passed.
        api.put("/api/v1/runtimes/mute", model("mute")).await;
        assert_eq!(ended(api, &waiting).await["result"]["model"], "mute");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_job_that_needs_no_model_goes_to_one_that_can_be_loaded() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        declare_without_a_port(api, "mute").await;
        api.put("/api/v1/pools/gpu", pool(1, &["mute", "good"])).await;
        let made = api.post("/api/v1/jobs", json!({"queue": "gpu", "kind": "ask", "payload": {}})).await.json();
        let done = ended(api, made["id"].as_str().unwrap()).await;
        assert_eq!((&done["state"], &done["result"]["model"]), (&json!("succeeded"), &json!("good")), "{done}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_pool_that_is_declared_anew_waits_for_a_model_on_its_way_up() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        let mut slow = model("slow");
        let script = format!("sleep 5; {}", slow["command"][2].as_str().unwrap());
        slow["command"][2] = json!(script);
        assert_eq!(api.put("/api/v1/runtimes/slow", slow).await.status, 200);
        let mut declared = pool(1, &["slow"]);
        api.put("/api/v1/pools/gpu", declared.clone()).await;
        let job = json!({"queue": "gpu", "kind": "ask", "affinity": "slow", "payload": {}, "max_attempts": 1});
        let made = api.post("/api/v1/jobs", job).await.json();
        until("its container runs", async || api.get("/api/v1/runtimes/slow").await.json()["status"] == "running")
            .await;
        declared["idle_stop_s"] = json!(600);
        assert_eq!(api.put("/api/v1/pools/gpu", declared).await.status, 200);
        let done = ended(api, made["id"].as_str().unwrap()).await;
        assert_eq!((&done["state"], &done["result"]["model"]), (&json!("succeeded"), &json!("slow")), "{done}");
    })
    .await;
}

async fn worker_called(api: &Api, name: &str) -> Option<String> {
    let workers = api.get("/api/v1/workers").await.json();
    let found = workers["items"].as_array().unwrap().iter().find(|worker| worker["name"] == name)?;
    found["id"].as_str().map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_slot_that_is_asked_to_drain_takes_a_new_place_and_works_on() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["alpha", "beta"]).await;
        api.put("/api/v1/pools/gpu", pool(1, &["alpha", "beta"])).await;
        let first = push(api, "alpha").await;
        assert_eq!(ended(api, &first).await["result"]["model"], "alpha");
        let slot = worker_called(api, "pool gpu slot 0").await.expect("the slot is a worker");
        let drain = async |worker: &str| api.call("POST", &format!("/api/v1/workers/{worker}/drain")).await.status;
        assert_eq!(drain(slot.as_str()).await, 204);
        // The node's own worker goes by itself when it has had nothing to do for a while.
        if let Some(worker) = worker_called(api, "engine here").await {
            let drained = drain(worker.as_str()).await;
            assert!(drained == 204 || drained == 404, "{drained}");
        }
        let second = push(api, "beta").await;
        assert_eq!(ended(api, &second).await["result"]["model"], "beta");
        assert_ne!(worker_called(api, "pool gpu slot 0").await, Some(slot));
    })
    .await;
}

/// Statements of the test's own.
struct Statements(&'static str);

impl Operation for Statements {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch(self.0).await
    }
}

/// Nothing can end, as on a full disk.
const FULL: &str = "create function full_disk() returns trigger language plpgsql as
        $$ begin raise exception 'no space is left' using errcode = '53100'; end $$;
    create trigger full_disk before insert on ended for each row execute function full_disk()";
const ROOM_AGAIN: &str = "drop trigger full_disk on ended; drop function full_disk()";

#[tokio::test(flavor = "multi_thread")]
async fn x12_an_answer_is_kept_in_hand_while_the_database_is_away() {
    on_postgres(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        let mut alpha = model("alpha");
        let answer = alpha["env"]["ANSWER"].as_str().unwrap().replace("/bin/sh\n", "/bin/sh\necho x >> /www/posts\n");
        alpha["env"]["ANSWER"] = json!(answer);
        assert_eq!(api.put("/api/v1/runtimes/alpha", alpha).await.status, 200);
        api.put("/api/v1/pools/gpu", pool(1, &["alpha"])).await;
        let first = push(api, "alpha").await;
        assert_eq!(ended(api, &first).await["state"], "succeeded");
        let runtime = api.get("/api/v1/runtimes/alpha").await.json();
        let container = runtime["container_id"].as_str().unwrap();
        let posts = || driven.docker.run(&["exec", container, "cat", "/www/posts"]).lines().count();
        let store = &api.db.store;
        store.write(Statements(FULL)).await.unwrap();
        let second = push(api, "alpha").await;
        until("it is posted", async || posts() == 2).await;
        // Long enough to be posted once more, were its answer forgotten.
        tokio::time::sleep(Duration::from_secs(4)).await;
        store.write(Statements(ROOM_AGAIN)).await.unwrap();
        assert_eq!(ended(api, &second).await["state"], "succeeded");
        assert_eq!(posts(), 2, "what was answered is not asked again");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r7_a_pinned_model_stays_and_the_others_take_turns() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["fixed", "one", "two"]).await;
        let mut declared = pool(2, &["fixed", "one", "two"]);
        declared["members"][0]["stay"] = json!("pinned");
        declared["idle_stop_s"] = json!(1);
        api.put("/api/v1/pools/gpu", declared).await;
        until("the pinned one is up before anybody asks", async || {
            api.get("/api/v1/runtimes/fixed").await.json()["status"] == "running"
        })
        .await;
        for affinity in ["one", "two", "fixed", "one"] {
            let job = push(api, affinity).await;
            assert_eq!(ended(api, &job).await["result"]["model"], affinity);
            let mut up = 0;
            for name in ["fixed", "one", "two"] {
                up += i32::from(api.get(&format!("/api/v1/runtimes/{name}")).await.json()["status"] == "running");
            }
            assert!(up <= 2, "{up} are up in two slots");
        }
        let fixed = api.get("/api/v1/runtimes/fixed/operations").await.json();
        assert_eq!(fixed["items"].as_array().unwrap().len(), 1, "started once and never stopped");
        for (change, field) in [
            (json!({"slots": 0, "members": [{"affinity": "a", "runtime": "one"}]}), "slots"),
            (json!({"slots": 1, "members": []}), "members"),
            (json!({"slots": 1, "members": [{"affinity": "a", "runtime": "nobody"}]}), "members[0].runtime"),
            (json!({"slots": 1, "members": [{"affinity": "a", "runtime": "one", "stay": "x"}]}), "members[0].stay"),
            (
                json!({"slots": 1, "members": [{"affinity": "a", "runtime": "one"}], "handler": {"path": "x"}}),
                "handler.path",
            ),
        ] {
            api.put("/api/v1/pools/other", change).await.problem(422, "invalid_field", Some(field));
        }
        let taken = json!({"slots": 1, "members": [{"affinity": "a", "runtime": "one"}]});
        api.put("/api/v1/pools/other", taken).await.problem(409, "limit_reached", None);
    })
    .await;
}

#[tokio::test]
async fn r7_a_memory_budget_holds_for_pools_and_for_their_runtimes() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let sized = |mb: i64| json!({"image": "nothing:1.0.0", "memory_mb": mb});
        let put = async |path: &str, body: Value| api.put(&format!("/api/v1/{path}"), body).await;
        assert_eq!(put("runtimes/small", sized(4_000)).await.status, 200);
        assert_eq!(put("runtimes/large", sized(16_000)).await.status, 200);
        assert_eq!(put("runtimes/any", json!({"image": "nothing:1.0.0"})).await.status, 200);
        let mut two = pool(2, &["small", "large"]);
        two["memory_mb"] = json!(16_000);
        put("pools/gpu", two.clone()).await.problem(422, "invalid_field", Some("memory_mb"));
        let mut unknown = pool(1, &["small", "any"]);
        unknown["memory_mb"] = json!(16_000);
        put("pools/gpu", unknown).await.problem(422, "invalid_field", Some("members[1].runtime"));
        two["memory_mb"] = json!(20_000);
        assert_eq!(put("pools/gpu", two).await.json()["memory_mb"], 20_000);
        put("runtimes/small", sized(4_001)).await.problem(422, "invalid_field", Some("memory_mb"));
        assert_eq!(api.get("/api/v1/runtimes/small").await.json()["memory_mb"], 4_000, "nothing was changed");
        assert_eq!(put("runtimes/small", sized(3_000)).await.status, 200);
    })
    .await;
}

//! Pools on a real Docker engine: loading a model for a backlog, draining, and swapping within the starvation bound.

use std::time::Duration;

use serde_json::{Value, json};
use store::StoreError;
use store::db::tx::{Operation, Tx};
use testkit::docker::IMAGE;
use testkit::eventually::wait_until;
use testkit::{on_both, on_postgres};

use crate::api::Api;
use crate::runtimes::operations::Driven;

/// A model that responds to a POST with its own name, through busybox's CGI.
fn model(name: &str) -> Value {
    let response =
        format!("#!/bin/sh\necho 'Content-Type: application/json'\necho\necho '{{\"model\": \"{name}\"}}'\n");
    let script = "trap 'exit 0' TERM; mkdir -p /www/cgi-bin; echo \"$ANSWER\" > /www/cgi-bin/run; \
         /bin/busybox chmod +x /www/cgi-bin/run; echo ok > /www/health; httpd -f -p 8080 -h /www & wait";
    json!({
        "image": IMAGE, "command": ["sh", "-c", script], "env": {"ANSWER": response}, "ports": [{"container": 8080}],
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

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_loads_its_model_drains_and_swaps() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["beta"]).await;
        // The model starts only when the test creates /go, so that the state `loading` can be observed.
        let mut alpha = model("alpha");
        let script = format!("until [ -e /go ]; do sleep 1; done; {}", alpha["command"][2].as_str().unwrap());
        alpha["command"][2] = json!(script);
        assert_eq!(api.put("/api/v1/runtimes/alpha", alpha).await.status, 200);
        let mut declared = pool(1, &["alpha", "beta"]);
        // Longer than the test, so that no model is swapped out because of starvation.
        declared["starvation_s"] = json!(3_600);
        // Interleaved: in this order every job would need a swap.
        let mut jobs = Vec::new();
        for number in 0..20 {
            jobs.push(push(api, if number % 2 == 0 { "alpha" } else { "beta" }).await);
        }
        let put = api.put("/api/v1/pools/gpu", declared.clone()).await;
        assert_eq!(put.status, 200, "{:?}", put.body);
        wait_until("a job waits for a loading model", async || {
            let page = api.get("/api/v1/jobs?queue=gpu&state=loading").await.json();
            !page["items"].as_array().unwrap().is_empty()
        })
        .await;
        wait_until("the container exists", async || {
            api.get("/api/v1/runtimes/alpha").await.json()["container_id"].is_string()
        })
        .await;
        let runtime = api.get("/api/v1/runtimes/alpha").await.json();
        driven.docker.run(&["exec", runtime["container_id"].as_str().unwrap(), "touch", "/go"]);
        for (number, id) in jobs.iter().enumerate() {
            let job = api.ended(id).await;
            let model = if number % 2 == 0 { "alpha" } else { "beta" };
            assert_eq!((&job["state"], &job["result"]["model"]), (&json!("succeeded"), &json!(model)), "{job}");
        }
        // The node stores the figures of its pool once a second.
        wait_until("both loads are stored", async || api.get("/api/v1/pools/gpu").await.json()["loads"] == 2).await;
        let pool = api.get("/api/v1/pools/gpu").await.json();
        assert_eq!(pool["swaps_made"], 2, "one for each model: {pool}");
        assert!(
            pool["swaps_avoided"].as_i64().unwrap() >= 9 && pool["minutes_saved"].as_f64().unwrap() > 0.0,
            "{pool}"
        );
        let figure = |name: &str| pool[name].as_f64().unwrap_or_else(|| panic!("{name}: {pool}"));
        assert!(figure("stop_s") > 0.0 && figure("load_s") > 0.0);
        assert!(
            (figure("swap_s") - figure("stop_s") - figure("load_s")).abs() < 0.001,
            "a swap stops and starts: {pool}"
        );
        let log = api.get("/api/v1/runtimes/alpha/operations").await.json();
        let lines: Vec<(&str, &str)> = log["items"]
            .as_array()
            .unwrap()
            .iter()
            .rev()
            .map(|line| (line["kind"].as_str().unwrap(), line["source"].as_str().unwrap()))
            .collect();
        assert_eq!(lines, [("start", "auto_scale"), ("stop", "auto_scale")], "the operation log is complete");
        // Set only now, because a pause of the machine between two jobs counts as idle time.
        declared["idle_stop_s"] = json!(3);
        assert_eq!(api.put("/api/v1/pools/gpu", declared).await.status, 200);
        wait_until("the idle model is stopped", async || {
            api.get("/api/v1/runtimes/beta").await.json()["status"] == "stopped"
        })
        .await;
        assert_eq!(api.call("DELETE", "/api/v1/pools/gpu").await.status, 204);
        api.get("/api/v1/pools/gpu").await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_model_backs_off_without_blocking_the_others() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        let mut broken = model("broken");
        broken["command"] = json!(["/no/such/program"]);
        api.put("/api/v1/runtimes/broken", broken).await;
        api.put("/api/v1/pools/gpu", pool(1, &["broken", "good"])).await;
        let waiting = push(api, "broken").await;
        wait_until("the pool shows the cause", async || {
            let pool = api.get("/api/v1/pools/gpu").await.json();
            pool["members"][0]["cause"].as_str().is_some_and(|cause| cause.contains("container_start_failed"))
        })
        .await;
        let done = push(api, "good").await;
        assert_eq!(api.ended(&done).await["result"]["model"], "good", "the other model is not blocked");
        // During the next load attempt the job may be claimed for a moment.
        wait_until("no attempt is used up", async || {
            api.get(&format!("/api/v1/jobs/{waiting}")).await.json()["attempt"].as_i64() == Some(0)
        })
        .await;
        // The repaired model is loaded after its backoff.
        api.put("/api/v1/runtimes/broken", model("broken")).await;
        assert_eq!(api.ended(&waiting).await["result"]["model"], "broken");
    })
    .await;
}

/// Declares a model that publishes no port, so that it cannot receive requests.
async fn declare_without_a_port(api: &Api, name: &str) {
    let mut unreachable = model(name);
    unreachable["ports"] = json!([]);
    unreachable["probe"] = Value::Null;
    assert_eq!(api.put(&format!("/api/v1/runtimes/{name}"), unreachable).await.status, 200);
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_without_a_port_is_not_loaded_and_the_cause_is_shown() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        declare_without_a_port(api, "mute").await;
        api.put("/api/v1/pools/gpu", pool(1, &["mute", "good"])).await;
        let waiting = push(api, "mute").await;
        wait_until("the pool shows the cause", async || {
            let pool = api.get("/api/v1/pools/gpu").await.json();
            pool["members"][0]["cause"].as_str().is_some_and(|cause| cause.contains("publishes no port"))
        })
        .await;
        wait_until("the signal of the job shows the cause", async || {
            let signal = api.get(&format!("/api/v1/jobs/{waiting}/signal")).await.json();
            signal["summary"].as_str().unwrap().contains("publishes no port")
        })
        .await;
        let done = push(api, "good").await;
        assert_eq!(api.ended(&done).await["result"]["model"], "good", "the other model is not blocked");
        let log = api.get("/api/v1/runtimes/mute/operations").await.json();
        assert_eq!(log["items"], json!([]), "the model was not started");
        // With a port the model is loaded after its backoff.
        api.put("/api/v1/runtimes/mute", model("mute")).await;
        assert_eq!(api.ended(&waiting).await["result"]["model"], "mute");
    })
    .await;
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_without_an_affinity_runs_on_a_loadable_model() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["good"]).await;
        declare_without_a_port(api, "mute").await;
        api.put("/api/v1/pools/gpu", pool(1, &["mute", "good"])).await;
        let made = api.post("/api/v1/jobs", json!({"queue": "gpu", "kind": "ask", "payload": {}})).await.json();
        let done = api.ended(made["id"].as_str().unwrap()).await;
        assert_eq!((&done["state"], &done["result"]["model"]), (&json!("succeeded"), &json!("good")), "{done}");
    })
    .await;
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_redeclared_pool_waits_for_a_model_that_is_starting() {
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
        wait_until("the container runs", async || api.get("/api/v1/runtimes/slow").await.json()["status"] == "running")
            .await;
        declared["idle_stop_s"] = json!(600);
        assert_eq!(api.put("/api/v1/pools/gpu", declared).await.status, 200);
        let done = api.ended(made["id"].as_str().unwrap()).await;
        assert_eq!((&done["state"], &done["result"]["model"]), (&json!("succeeded"), &json!("slow")), "{done}");
    })
    .await;
}

async fn worker_called(api: &Api, name: &str) -> Option<String> {
    let workers = api.get("/api/v1/workers").await.json();
    let found = workers["items"].as_array().unwrap().iter().find(|worker| worker["name"] == name)?;
    found["id"].as_str().map(str::to_owned)
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_drained_pool_slot_registers_again_and_continues() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["alpha", "beta"]).await;
        api.put("/api/v1/pools/gpu", pool(1, &["alpha", "beta"])).await;
        let first = push(api, "alpha").await;
        assert_eq!(api.ended(&first).await["result"]["model"], "alpha");
        let slot = worker_called(api, "pool gpu slot 0").await.expect("the slot is a worker");
        let drain = async |worker: &str| api.call("POST", &format!("/api/v1/workers/{worker}/drain")).await.status;
        assert_eq!(drain(slot.as_str()).await, 204);
        // The node's own worker deregisters after it has been idle for a while.
        if let Some(worker) = worker_called(api, "engine here").await {
            let drained = drain(worker.as_str()).await;
            assert!(drained == 204 || drained == 404, "{drained}");
        }
        let second = push(api, "beta").await;
        assert_eq!(api.ended(&second).await["result"]["model"], "beta");
        assert_ne!(worker_called(api, "pool gpu slot 0").await, Some(slot));
    })
    .await;
}

/// Runs SQL statements.
struct Statements(&'static str);

impl Operation for Statements {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch(self.0).await
    }
}

/// Makes every end of a job fail, as on a full disk.
const FULL: &str = "create function full_disk() returns trigger language plpgsql as
        $$ begin raise exception 'no space is left' using errcode = '53100'; end $$;
    create trigger full_disk before insert on ended for each row execute function full_disk()";
const WRITABLE: &str = "drop trigger full_disk on ended; drop function full_disk()";

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_response_is_retained_during_a_database_outage() {
    on_postgres(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        let mut alpha = model("alpha");
        let response = alpha["env"]["ANSWER"].as_str().unwrap().replace("/bin/sh\n", "/bin/sh\necho x >> /www/posts\n");
        alpha["env"]["ANSWER"] = json!(response);
        assert_eq!(api.put("/api/v1/runtimes/alpha", alpha).await.status, 200);
        api.put("/api/v1/pools/gpu", pool(1, &["alpha"])).await;
        let first = push(api, "alpha").await;
        assert_eq!(api.ended(&first).await["state"], "succeeded");
        let runtime = api.get("/api/v1/runtimes/alpha").await.json();
        let container = runtime["container_id"].as_str().unwrap();
        let posts = || driven.docker.run(&["exec", container, "cat", "/www/posts"]).lines().count();
        let store = &api.db.store;
        store.write(Statements(FULL)).await.unwrap();
        let second = push(api, "alpha").await;
        wait_until("the request is sent", async || posts() == 2).await;
        // Real time: without the retained response the worker would send the request again within this time.
        tokio::time::sleep(Duration::from_secs(4)).await;
        store.write(Statements(WRITABLE)).await.unwrap();
        assert_eq!(api.ended(&second).await["state"], "succeeded");
        assert_eq!(posts(), 2, "the request is not sent again");
    })
    .await;
}

/// Requirement R7.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_model_stays_loaded_while_the_others_swap() {
    on_both(async |db| {
        let driven = Driven::new(db).await;
        let api = &driven.api;
        declare(api, &["fixed", "one", "two"]).await;
        let mut declared = pool(2, &["fixed", "one", "two"]);
        declared["members"][0]["stay"] = json!("pinned");
        declared["idle_stop_s"] = json!(1);
        api.put("/api/v1/pools/gpu", declared).await;
        wait_until("the pinned model runs without a job", async || {
            api.get("/api/v1/runtimes/fixed").await.json()["status"] == "running"
        })
        .await;
        for affinity in ["one", "two", "fixed", "one"] {
            let job = push(api, affinity).await;
            assert_eq!(api.ended(&job).await["result"]["model"], affinity);
            let mut running = 0;
            for name in ["fixed", "one", "two"] {
                running += i32::from(api.get(&format!("/api/v1/runtimes/{name}")).await.json()["status"] == "running");
            }
            assert!(running <= 2, "{running} models run in two slots");
        }
        let fixed = api.get("/api/v1/runtimes/fixed/operations").await.json();
        assert_eq!(fixed["items"].as_array().unwrap().len(), 1, "the pinned model was started once and never stopped");
        for (change, field) in [
            (json!({"slots": 0, "members": [{"affinity": "a", "runtime": "one"}]}), "slots"),
            (json!({"slots": 1, "members": []}), "members"),
            (json!({"slots": 1, "members": [{"affinity": "a", "runtime": "missing"}]}), "members[0].runtime"),
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

/// Requirement R7.
#[tokio::test]
async fn a_memory_budget_limits_pools_and_their_runtimes() {
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
        assert_eq!(api.get("/api/v1/runtimes/small").await.json()["memory_mb"], 4_000, "the runtime is unchanged");
        assert_eq!(put("runtimes/small", sized(3_000)).await.status, 200);
    })
    .await;
}

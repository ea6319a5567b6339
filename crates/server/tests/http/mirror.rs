//! Isolation of tenants. Every operation of the OpenAPI document is sent by tenant B with the ids of tenant A in path,
//! query, body, batch items and cursors. B must get the same response as for an id that does not exist, and A's data
//! must not change.

use std::collections::BTreeMap;

use axum::body::Body;
use serde_json::{Value, json};
use store::db::tx::{Operation, Tx};
use store::{Store, StoreError};
use testkit::eventually::wait_until;
use testkit::on_both;
use uuid::Uuid;

use crate::access::tokens::Caller;
use crate::api::{Api, Response, json_request, request};

/// A text that all data of A contains and no response to B may contain.
const CANARY: &str = "canary-of-a";
/// Tables that a task of the server updates during the test. Their figures are compared through the API instead.
const FOLDED: [&str; 4] = ["counters", "counter_deltas", "throughput", "figures"];

/// The maximum, because hundreds of requests follow without a heartbeat, and an expired worker would change A's data.
const LEASE_S: i64 = domain::limits::LEASE_MAX_S;

/// Ids of one tenant, by their parameter names.
type Ids = BTreeMap<&'static str, String>;

/// Creates one of each kind of thing that has an id.
async fn create_all(a: &Caller<'_>) -> Ids {
    let mut ids = Ids::new();
    let made = a
        .post(
            "/api/v1/jobs",
            json!({"queue": "mail", "kind": "k", "payload": {"c": CANARY}, "unique_key": "u", "subject": "s", "run": "r",
                   "tags": ["t"], "concurrency_key": "c"}),
        )
        .await;
    assert_eq!(made.status, 202, "{:?}", made.body);
    ids.insert("job", made.json()["id"].as_str().unwrap().to_owned());
    let more = a.job("other").await;
    let worker = json!({"name": CANARY, "queues": ["other"], "lease_s": LEASE_S});
    let worker = a.post("/api/v1/workers", worker).await.json();
    let worker = worker["id"].as_str().unwrap().to_owned();
    let claim = a.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
    ids.insert("epoch", claim["jobs"][0]["epoch"].to_string());
    let put = request("PUT", &format!("/api/v1/jobs/{more}/artifacts/artifact"));
    let put = put.header("x-windlass-epoch", &ids["epoch"]).body(Body::from(CANARY)).unwrap();
    assert_eq!(a.send(put).await.status, 201);
    ids.insert("claimed", more);
    ids.insert("worker", worker);
    let token = a.post("/api/v1/tokens", json!({"name": CANARY, "role": "viewer"})).await.json();
    ids.insert("token", token["id"].as_str().unwrap().to_owned());
    let page = a.get("/api/v1/jobs?limit=1").await.json();
    ids.insert("cursor", page["next_cursor"].as_str().unwrap().to_owned());
    let settings = json!({"timeout_s": 7, "phases": [CANARY]});
    assert_eq!(a.put("/api/v1/queues/mail", settings).await.status, 200);
    let value = json!({"c": CANARY});
    assert_eq!(a.put("/api/v1/kv/collection-of-a/key-of-a", value).await.status, 200);
    ids.insert("collection", "collection-of-a".to_owned());
    ids.insert("key", "key-of-a".to_owned());
    let runtime = json!({"image": CANARY, "command": [CANARY]});
    assert_eq!(a.put("/api/v1/runtimes/artifact", runtime).await.status, 200);
    let facts = json!({"facts": {"note": CANARY}});
    assert_eq!(a.put("/api/v1/subjects/machine-of-a", facts).await.status, 200);
    ids.insert("subject", "machine-of-a".to_owned());
    let trigger = json!({"name": CANARY, "source": "pubsub", "filter": {"topic": "t"},
                         "target": {"job": {"queue": "mail", "kind": "k"}}});
    let trigger = a.post("/api/v1/triggers", trigger).await;
    assert_eq!(trigger.status, 201, "{:?}", trigger.body);
    ids.insert("trigger", trigger.json()["id"].as_str().unwrap().to_owned());
    let pool = json!({"slots": 1, "members": [{"affinity": "model-of-a", "runtime": "artifact"}]});
    assert_eq!(a.put("/api/v1/pools/artifact", pool).await.status, 200);
    ids.insert("model", "model-of-a".to_owned());
    let form = crate::runtimes::openai::form(CANARY);
    let file = a.send(form).await.json()["id"].as_str().unwrap().to_owned();
    let batch = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h",
                       "metadata": {"c": CANARY}});
    ids.insert("batch", a.post("/openai/v1/batches", batch).await.json()["id"].as_str().unwrap().to_owned());
    // A task validates the file. After that the batch does not change any more.
    let path = format!("/openai/v1/batches/{}", ids["batch"]);
    wait_until("the batch fails", async || a.get(&path).await.json()["status"] == "failed").await;
    ids.insert("file", file);
    let signature = json!({"pattern": {"kind": "k"}, "outcome": {"likely_cause": CANARY}});
    let signature = a.post("/api/v1/signatures", signature).await;
    assert_eq!(signature.status, 201, "{:?}", signature.body);
    ids.insert("signature", signature.json()["id"].as_str().unwrap().to_owned());
    let (letter, group) = fail_job(a).await;
    ids.insert("letter", letter);
    ids.insert("group", group);
    ids
}

/// Fails a job permanently. Returns its dead letter and its failure group.
async fn fail_job(a: &Caller<'_>) -> (String, String) {
    let job = json!({"queue": "broken", "kind": "broken", "payload": {"c": CANARY}});
    assert_eq!(a.post("/api/v1/jobs", job).await.status, 202);
    let worker = json!({"name": CANARY, "queues": ["broken"], "lease_s": LEASE_S});
    let worker = a.post("/api/v1/workers", worker).await.json();
    let worker = worker["id"].as_str().unwrap();
    let claim = a.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
    let (id, epoch) = (&claim["jobs"][0]["id"], &claim["jobs"][0]["epoch"]);
    let error = json!({"code": CANARY, "message": CANARY, "retryable": false});
    let outcome = json!({"job_id": id, "epoch": epoch, "outcome": "fail", "error": error});
    a.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": [outcome]})).await;
    let first = async |path: &str, member: &str| {
        let page = a.get(path).await.json();
        page["items"][0][member].as_str().map(str::to_owned)
    };
    let letter = first("/api/v1/dead-letters", "id").await.expect("the failure created a dead letter");
    wait_until("the failure is grouped", async || first("/api/v1/failures", "group_id").await.is_some()).await;
    (letter, first("/api/v1/failures", "group_id").await.expect("the failure has a group"))
}

/// The same names with ids that do not exist.
fn missing_ids(of: &Ids) -> Ids {
    let mut ids = of.clone();
    for name in ["collection", "key", "subject", "model"] {
        ids.insert(name, format!("missing-{name}"));
    }
    ids.insert("file", format!("file-{}", "0".repeat(32)));
    ids.insert("batch", format!("batch_{}", "0".repeat(32)));
    for name in ["job", "claimed", "worker", "token", "trigger", "signature", "letter", "group"] {
        ids.insert(name, Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + ids.len() as u128).to_string());
    }
    ids
}

/// Returns the name of the id that `{id}` stands for in a path.
fn id_name(path: &str) -> &'static str {
    let noun = path.trim_start_matches("/api/v1").trim_start_matches('/').split('/').next().unwrap_or_default();
    match noun {
        "jobs" => "job",
        "workers" => "worker",
        "tokens" => "token",
        "subjects" => "subject",
        "triggers" | "hooks" => "trigger",
        "signatures" => "signature",
        "dead-letters" => "letter",
        "failures" => "group",
        _ => "job",
    }
}

/// Returns paths and bodies with ids. Operations that are not listed get an empty object.
fn bodies(method: &str, path: &str, ids: &Ids, own_worker: &str) -> Vec<(String, Value)> {
    let (job, claimed) = (&ids["job"], &ids["claimed"]);
    let epoch: i64 = ids["epoch"].parse().unwrap();
    let outcome = |kind: &str| {
        let mut outcome = json!({"job_id": claimed, "epoch": epoch, "outcome": kind});
        match kind {
            "fail" => outcome["error"] = json!({"code": "x", "message": "y"}),
            "snooze" => outcome["delay_s"] = json!(1),
            _ => {}
        }
        outcome
    };
    let all = ["finish", "fail", "cancel", "snooze", "release"].map(outcome);
    match (method, path) {
        ("POST", "/api/v1/jobs/cancel") => vec![(path.into(), json!({"queue": "mail", "unique_key": "u"}))],
        ("POST", "/api/v1/jobs") => vec![(path.into(), json!({"queue": "fresh", "kind": "k", "parent": job}))],
        ("POST", "/api/v1/jobs/batch") => {
            vec![(path.into(), json!({"jobs": [{"queue": "fresh", "kind": "k", "id": job}]}))]
        }
        ("POST", "/api/v1/workers") => {
            vec![(path.into(), json!({"name": "b", "queues": ["fresh"], "id": ids["worker"]}))]
        }
        ("POST", "/api/v1/tokens") => vec![(path.into(), json!({"name": "b", "role": "admin", "tenant": "a"}))],
        ("POST", "/api/v1/workers/{id}/claim") => vec![(path.into(), json!({"max": 10}))],
        ("POST", "/api/v1/workers/{id}/settle") => vec![
            (path.into(), json!({"outcomes": all})),
            // A's jobs with B's own worker.
            (path.replace("{id}", own_worker), json!({"outcomes": all})),
        ],
        ("PUT", "/api/v1/jobs/{id}/signal") => {
            let signal = json!({"epoch": epoch, "summary": "taken over"});
            vec![(path.into(), signal.clone()), (path.replace("{id}", claimed), signal)]
        }
        ("PUT", "/api/v1/jobs/{id}/artifacts/{name}") => {
            vec![(path.into(), json!("x")), (path.replace("{id}", claimed), json!("x"))]
        }
        ("POST", "/openai/v1/batches") => {
            let body = json!({"input_file_id": ids["file"], "endpoint": "/v1/embeddings", "completion_window": "24h"});
            vec![(path.into(), body)]
        }
        ("POST", "/openai/v1/chat/completions" | "/openai/v1/completions" | "/openai/v1/embeddings") => {
            vec![(path.into(), json!({"model": ids["model"]}))]
        }
        ("POST", "/api/v1/dead-letters/{id}/resolve") => vec![(path.into(), json!({"resolution": "ignored"}))],
        ("POST", "/api/v1/dead-letters/replay") => {
            vec![(path.into(), json!({"ids": [ids["letter"]]})), (path.into(), json!({"filter": {"queue": "broken"}}))]
        }
        ("PUT", "/api/v1/signatures/{id}") => vec![(path.into(), json!({"muted": true}))],
        ("POST", "/api/v1/signatures/{id}/merge") => vec![(path.into(), json!({"into": ids["signature"]}))],
        ("POST", "/api/v1/signatures/match") => vec![(path.into(), json!({"kind": "k"}))],
        _ => vec![(path.into(), json!({}))],
    }
}

/// Returns the response without ids and times, which differ between requests.
fn normalized(response: &Response, ids: &Ids) -> (u16, String) {
    let mut body = String::from_utf8_lossy(&response.body).into_owned();
    for (name, id) in ids.iter().filter(|(name, _)| **name != "epoch") {
        body = body.replace(id.as_str(), name);
    }
    let mut text = String::new();
    let mut rest = body.as_str();
    // Ids and times of resources that the request created.
    while let Some(start) = rest.find('"') {
        let end = rest[start + 1..].find('"').map_or(rest.len(), |end| start + end + 2);
        let quoted = rest[start..end].trim_matches('"');
        text.push_str(&rest[..start]);
        let is_time = quoted.len() >= 20 && quoted.as_bytes()[4] == b'-' && quoted.ends_with('Z');
        let is_token = quoted.starts_with("windlass_") || quoted.starts_with("wlsub_");
        text.push_str(if is_time || is_token || Uuid::parse_str(quoted).is_ok() { "…" } else { quoted });
        rest = &rest[end..];
    }
    text.push_str(rest);
    (response.status.as_u16(), text)
}

/// Requirement X6.
#[tokio::test]
async fn every_operation_with_ids_of_another_tenant_behaves_as_not_found() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let tenant_of = async |name: &str| {
            let made = server::access::local_admin::create_tenant(&api.db.store, name).await;
            made.unwrap_or_else(|problem| panic!("{problem:?}"))
        };
        let tenant = tenant_of("a").await;
        tenant_of("b").await;
        let a = api.caller(json!({"name": "root", "role": "admin", "tenant": "a"})).await;
        let b = api.caller(json!({"name": "root", "role": "admin", "tenant": "b"})).await;
        let theirs = create_all(&a).await;
        let missing = missing_ids(&theirs);
        let own_worker = json!({"name": "b", "queues": ["other", "mail"], "lease_s": LEASE_S});
        let own_worker = b.post("/api/v1/workers", own_worker).await.json();
        let own_worker = own_worker["id"].as_str().unwrap();
        // A task stores when a token was last used. From then on B's token listing contains that time.
        wait_until("the use of B's token is stored", async || {
            b.get("/api/v1/tokens").await.json()["items"][0]["last_used_at"].is_string()
        })
        .await;
        let before = (digest(&api.db.store, tenant).await, a.get("/api/v1/queues").await.json());

        let document: Value = serde_json::from_str(&server::document().to_json().unwrap()).unwrap();
        let mut operations = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let method = method.to_uppercase();
                for kind in 0..bodies(&method, path, &theirs, own_worker).len() {
                    let send = async |ids: &Ids| {
                        let (path, body) = bodies(&method, path, ids, own_worker).swap_remove(kind);
                        let path = path.replace("{id}", &ids[id_name(&path)]).replace("{name}", "artifact");
                        let path = path.replace("{collection}", &ids["collection"]).replace("{key}", &ids["key"]);
                        let path = path.replace("{model}", &ids["model"]).replace("{file}", &ids["file"]);
                        let path = path.replace("{batch}", &ids["batch"]);
                        let request = match method.as_str() {
                            "GET" | "DELETE" => request(&method, &path).body(Body::empty()).unwrap(),
                            method => json_request(method, &path, &body),
                        };
                        let response = b.send(request).await;
                        assert!(!String::from_utf8_lossy(&response.body).contains(CANARY), "{method} {path}");
                        assert!(response.status.as_u16() < 500, "{method} {path} {}", response.status);
                        normalized(&response, ids)
                    };
                    let (theirs, missing) = (send(&theirs).await, send(&missing).await);
                    // Figures of the process change between two requests, and a page shows what B has created
                    // meanwhile.
                    if !path.starts_with("/api/") && !path.starts_with("/openai/") {
                        assert_eq!(theirs.0, missing.0, "{method} {path}");
                    } else if path != "/api/v1/tasks" {
                        assert_eq!(theirs, missing, "{method} {path}");
                    }
                    operations += 1;
                }
                for parameter in operation["parameters"].as_array().into_iter().flatten().filter(|p| p["in"] == "query")
                {
                    let name = parameter["name"].as_str().unwrap();
                    let value = match name {
                        "cursor" => theirs["cursor"].as_str(),
                        "after" if path.ends_with("/files") => theirs["file"].as_str(),
                        "after" => theirs["batch"].as_str(),
                        "queue" => "mail",
                        "kind" => "k",
                        "subject" => "s",
                        "run" => "r",
                        "tag" => "t",
                        "tenant" => "a",
                        // A page repeats its filter, so the canary itself cannot be the filter there.
                        "text" if !path.starts_with("/api/") => "canary",
                        "text" => CANARY,
                        _ => continue,
                    };
                    let path = path.replace("{id}", &theirs[id_name(path)]).replace("{name}", "artifact");
                    let response =
                        b.send(request("GET", &format!("{path}?{name}={value}")).body(Body::empty()).unwrap()).await;
                    let body = String::from_utf8_lossy(&response.body).into_owned();
                    assert!(
                        !body.contains(CANARY) || body.contains(&format!("{name} {CANARY}")),
                        "{path} {name}: {body}"
                    );
                    assert!(
                        !theirs
                            .iter()
                            .any(|(name, id)| *name != "epoch" && *name != "cursor" && body.contains(id.as_str())),
                        "{path} {name}: {body}"
                    );
                }
            }
        }
        assert!(operations > 30, "only {operations} operations were sent");
        let after = (digest(&api.db.store, tenant).await, a.get("/api/v1/queues").await.json());
        assert_eq!(before, after, "A's data has not changed");
    })
    .await;
}

/// Returns every row of a tenant as text.
async fn digest(store: &Store, tenant: i64) -> Vec<String> {
    store.read(Digest { tenant }).await.unwrap()
}

struct Digest {
    tenant: i64,
}

impl Operation for Digest {
    type Output = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let tables = if tx.is_postgres() {
            "select c.table_name::text, string_agg(c.column_name, ',') from information_schema.columns c
             join information_schema.tables t using (table_schema, table_name)
             where c.table_schema = 'windlass' and t.table_type = 'BASE TABLE' group by 1
             having bool_or(c.column_name = 'tenant') order by 1"
        } else {
            "select m.name, group_concat(p.name) from sqlite_master m join pragma_table_info(m.name) p
             where m.type = 'table' group by 1 having sum(p.name = 'tenant') > 0 order by 1"
        };
        let mut digest = Vec::new();
        for row in tx.query_built(tables, &[]).await? {
            let (table, columns) = (row.text(0)?, row.text(1)?);
            if FOLDED.contains(&table.as_str()) {
                continue;
            }
            // The time of the last use of A's token may change.
            let columns = columns.split(',').filter(|column| *column != "used_at");
            let column = |column: &str| match tx.is_postgres() {
                true => format!("coalesce({column}::text, '∅')"),
                false => format!("quote({column})"),
            };
            let columns: Vec<String> = columns.map(column).collect();
            let text = format!(
                "select {} from {table} where tenant = {} order by 1",
                columns.join(" || '|' || "),
                self.tenant
            );
            for row in tx.query_built(&text, &[]).await? {
                digest.push(format!("{table}: {}", row.text(0)?));
            }
        }
        assert!(digest.len() > 8, "A has rows: {digest:?}");
        Ok(digest)
    }
}

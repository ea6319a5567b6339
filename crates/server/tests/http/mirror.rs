//! X6: two tenants. Every operation of the OpenAPI document is replayed as B with A's ids in path, query, body, batch items
//! and cursors. B hears exactly what it hears of an id that nobody has, and nothing of A's changes.

use std::collections::BTreeMap;

use axum::body::Body;
use serde_json::{Value, json};
use store::tx::{Operation, Tx};
use store::{Store, StoreError};
use testkit::on_both;
use testkit::receiver::wait_until;
use uuid::Uuid;

use crate::api::{Answer, Api, in_time, json_request, request};
use crate::tokens::Caller;

/// In everything A has, and in nothing B may hear.
const CANARY: &str = "canary-of-a";
/// Kept figures are folded by a task while the test runs; they are compared as the API tells them.
const FOLDED: [&str; 4] = ["counters", "counter_deltas", "throughput", "figures"];

/// Hundreds of requests follow, and nobody beats: a worker found dead would be a change of the server's own.
const LEASE_S: i64 = domain::limits::LEASE_S_MAX;

/// One side's ids, by the names that paths and bodies have for them.
type Ids = BTreeMap<&'static str, String>;

/// What A has: each kind of thing that has an id.
async fn things_of(a: &Caller<'_>) -> Ids {
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
    let put = request("PUT", &format!("/api/v1/jobs/{more}/artifacts/artifact")).body(Body::from(CANARY)).unwrap();
    assert_eq!(a.ask(put).await.status, 201);
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
    let form = crate::openai::form(CANARY);
    let file = a.ask(form).await.json()["id"].as_str().unwrap().to_owned();
    let batch = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h",
                       "metadata": {"c": CANARY}});
    ids.insert("batch", a.post("/openai/v1/batches", batch).await.json()["id"].as_str().unwrap().to_owned());
    // What it finds in the file is told by a task; then nothing of it moves any more.
    let path = format!("/openai/v1/batches/{}", ids["batch"]);
    in_time(async { while a.get(&path).await.json()["status"] != "failed" {} }).await;
    ids.insert("file", file);
    let signature = json!({"pattern": {"kind": "k"}, "outcome": {"likely_cause": CANARY}});
    let signature = a.post("/api/v1/signatures", signature).await;
    assert_eq!(signature.status, 201, "{:?}", signature.body);
    ids.insert("signature", signature.json()["id"].as_str().unwrap().to_owned());
    let (letter, group) = failure_of(a).await;
    ids.insert("letter", letter);
    ids.insert("group", group);
    ids
}

/// A job of A's fails for good. Gives what is left of it: its dead letter and the group of its like.
async fn failure_of(a: &Caller<'_>) -> (String, String) {
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
    let letter = first("/api/v1/dead-letters", "id").await.expect("it left a letter");
    wait_until("the failure is grouped", async || first("/api/v1/failures", "group_id").await.is_some()).await;
    (letter, first("/api/v1/failures", "group_id").await.expect("it has a group"))
}

/// The same names with ids that nobody has.
fn nothing(of: &Ids) -> Ids {
    let mut ids = of.clone();
    for name in ["collection", "key", "subject", "model"] {
        ids.insert(name, format!("{name}-of-nobody"));
    }
    ids.insert("file", format!("file-{}", "0".repeat(32)));
    ids.insert("batch", format!("batch_{}", "0".repeat(32)));
    for name in ["job", "claimed", "worker", "token", "trigger", "signature", "letter", "group"] {
        ids.insert(name, Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + ids.len() as u128).to_string());
    }
    ids
}

/// What stands for `{id}` in a path.
fn id_in(path: &str) -> &'static str {
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

/// Bodies that carry ids. What is not named here is sent an empty object.
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
            // A's jobs through B's own worker.
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

/// The answer without what differs from one request to the next by nature.
fn told(answer: &Answer, ids: &Ids) -> (u16, String) {
    let mut body = String::from_utf8_lossy(&answer.body).into_owned();
    for (name, id) in ids.iter().filter(|(name, _)| **name != "epoch") {
        body = body.replace(id.as_str(), name);
    }
    let mut text = String::new();
    let mut rest = body.as_str();
    // Ids and times of what the request itself made.
    while let Some(start) = rest.find('"') {
        let end = rest[start + 1..].find('"').map_or(rest.len(), |end| start + end + 2);
        let word = rest[start..end].trim_matches('"');
        text.push_str(&rest[..start]);
        let is_time = word.len() >= 20 && word.as_bytes()[4] == b'-' && word.ends_with('Z');
        let is_token = word.starts_with("windlass_") || word.starts_with("wlsub_");
        text.push_str(if is_time || is_token || Uuid::parse_str(word).is_ok() { "…" } else { word });
        rest = &rest[end..];
    }
    text.push_str(rest);
    (answer.status.as_u16(), text)
}

#[tokio::test]
async fn x6_every_operation_as_b_with_the_ids_of_a() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let tenant_of = async |name: &str| {
            let made = server::machine::create_tenant(&api.db.store, name).await;
            made.unwrap_or_else(|problem| panic!("{problem:?}"))
        };
        let tenant = tenant_of("a").await;
        tenant_of("b").await;
        let a = api.caller(json!({"name": "root", "role": "admin", "tenant": "a"})).await;
        let b = api.caller(json!({"name": "root", "role": "admin", "tenant": "b"})).await;
        let theirs = things_of(&a).await;
        let nobodys = nothing(&theirs);
        let own_worker = json!({"name": "b", "queues": ["other", "mail"], "lease_s": LEASE_S});
        let own_worker = b.post("/api/v1/workers", own_worker).await.json();
        let own_worker = own_worker["id"].as_str().unwrap();
        // That a token is used is noted behind its back: from here on the listing of B's tokens has a time there.
        wait_until("the use of B's token is noted", async || {
            b.get("/api/v1/tokens").await.json()["items"][0]["last_used_at"].is_string()
        })
        .await;
        let before = (digest(&api.db.store, tenant).await, a.get("/api/v1/queues").await.json());

        let document: Value = serde_json::from_str(&server::document().to_json().unwrap()).unwrap();
        let mut asked = 0;
        for (path, item) in document["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let method = method.to_uppercase();
                for kind in 0..bodies(&method, path, &theirs, own_worker).len() {
                    let ask = async |ids: &Ids| {
                        let (path, body) = bodies(&method, path, ids, own_worker).swap_remove(kind);
                        let path = path.replace("{id}", &ids[id_in(&path)]).replace("{name}", "artifact");
                        let path = path.replace("{collection}", &ids["collection"]).replace("{key}", &ids["key"]);
                        let path = path.replace("{model}", &ids["model"]).replace("{file}", &ids["file"]);
                        let path = path.replace("{batch}", &ids["batch"]);
                        let asked = match method.as_str() {
                            "GET" | "DELETE" => request(&method, &path).body(Body::empty()).unwrap(),
                            method => json_request(method, &path, &body),
                        };
                        let answer = b.ask(asked).await;
                        assert!(!String::from_utf8_lossy(&answer.body).contains(CANARY), "{method} {path}");
                        assert!(answer.status.as_u16() < 500, "{method} {path} {}", answer.status);
                        told(&answer, ids)
                    };
                    let (theirs, nobodys) = (ask(&theirs).await, ask(&nobodys).await);
                    // The figures of the process move between two looks, and a page shows what B itself has made by now.
                    if !path.starts_with("/api/") && !path.starts_with("/openai/") {
                        assert_eq!(theirs.0, nobodys.0, "{method} {path}");
                    } else if path != "/api/v1/tasks" {
                        assert_eq!(theirs, nobodys, "{method} {path}");
                    }
                    asked += 1;
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
                        // A page shows the filter that was asked for, so there the word says nothing.
                        "text" if !path.starts_with("/api/") => "canary",
                        "text" => CANARY,
                        _ => continue,
                    };
                    let path = path.replace("{id}", &theirs[id_in(path)]).replace("{name}", "artifact");
                    let answer =
                        b.ask(request("GET", &format!("{path}?{name}={value}")).body(Body::empty()).unwrap()).await;
                    let body = String::from_utf8_lossy(&answer.body).into_owned();
                    assert!(
                        !body.contains(CANARY) || body.contains(&format!("{name} {CANARY}")),
                        "{path} {name}: {body}"
                    );
                    assert!(
                        !theirs
                            .iter()
                            .any(|(what, id)| *what != "epoch" && *what != "cursor" && body.contains(id.as_str())),
                        "{path} {name}: {body}"
                    );
                }
            }
        }
        assert!(asked > 30, "only {asked} operations were asked");
        let after = (digest(&api.db.store, tenant).await, a.get("/api/v1/queues").await.json());
        assert_eq!(before, after, "nothing of A's has changed");
    })
    .await;
}

/// Every row of a tenant, as text.
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
            // When A's own token was last used is A's own doing.
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

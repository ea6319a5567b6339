//! The OpenAI-compatible API. The test acts as the model: it claims the jobs of requests and completes them.

use axum::body::Body;
use axum::http::Request;
use domain::TenantId;
use engine::{Engine, EngineOptions};
use serde_json::{Value, json};
use store::queue::artifacts::Blobs;
use store::queue::list::JobFilter;
use testkit::eventually::{before_timeout, wait_until};
use testkit::on_both;

use crate::api::{Api, request};

async fn with_model(api: &Api) -> String {
    let runtime = json!({"image": "nothing:1.0.0"});
    assert_eq!(api.put("/api/v1/runtimes/m", runtime).await.status, 200);
    let pool = json!({"slots": 1, "members": [{"affinity": "m", "runtime": "m"}]});
    assert_eq!(api.put("/api/v1/pools/gpu", pool).await.status, 200);
    api.worker("gpu").await
}

/// A multipart form with a file, as a browser or a client sends it.
pub(crate) fn form(content: &str) -> Request<Body> {
    let body = format!(
        "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: form-data; \
         name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{content}\r\n--b--\r\n"
    );
    let upload = request("POST", "/openai/v1/files").header("content-type", "multipart/form-data; boundary=b");
    upload.body(Body::from(body)).unwrap()
}

async fn upload(api: &Api, content: &str) -> Value {
    let response = api.send(form(content)).await;
    assert_eq!(response.status, 200, "{:?}", response.body);
    response.json()
}

fn line(number: usize) -> String {
    let body = json!({"model": "m", "input": number});
    json!({"custom_id": format!("line-{number}"), "method": "POST", "url": "/v1/embeddings", "body": body}).to_string()
}

async fn batch(api: &Api, content: &str) -> String {
    let file = upload(api, content).await;
    let request = json!({"input_file_id": file["id"], "endpoint": "/v1/embeddings", "completion_window": "24h",
                         "metadata": {"who": "me"}});
    let made = api.post("/openai/v1/batches", request).await;
    assert_eq!((made.status.as_u16(), &made.json()["status"]), (200, &json!("validating")));
    made.json()["id"].as_str().unwrap().to_owned()
}

async fn batch_in(api: &Api, id: &str, status: &str) -> Value {
    api.get_when(&format!("/openai/v1/batches/{id}"), |batch| batch["status"] == status).await
}

/// Claims and completes up to `max` requests: each with its input, every tenth with an error. Returns their number.
async fn run_model(api: &Api, worker: &str, max: usize) -> usize {
    let claim = json!({"max": max, "wait_s": 5});
    let claimed = api.post(&format!("/api/v1/workers/{worker}/claim"), claim).await.json();
    let jobs = claimed["jobs"].as_array().unwrap().clone();
    let outcomes: Vec<Value> = jobs
        .iter()
        .map(|job| {
            let input = job["payload"]["input"].as_i64().unwrap();
            match input % 10 {
                9 => json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "fail",
                            "error": {"code": "handler_refused", "message": "no", "retryable": false}}),
                _ => json!({"job_id": job["id"], "epoch": job["epoch"], "outcome": "finish",
                            "result": {"object": "list", "data": [{"embedding": [input]}]}}),
            }
        })
        .collect();
    if !outcomes.is_empty() {
        let settled = api.post(&format!("/api/v1/workers/{worker}/settle"), json!({"outcomes": outcomes})).await;
        assert_eq!(settled.status, 200, "{:?}", settled.body);
    }
    jobs.len()
}

/// Completes exactly `count` requests. A task enqueues them, some hundred at a time.
async fn run_model_for(api: &Api, worker: &str, count: usize) {
    let all = async {
        let mut done = 0;
        while done < count {
            done += run_model(api, worker, (count - done).min(350)).await;
        }
    };
    before_timeout(&format!("{count} requests arrive"), all).await;
}

async fn content(api: &Api, file: &Value) -> Vec<Value> {
    let response = api.get(&format!("/openai/v1/files/{}/content", file.as_str().unwrap())).await;
    assert_eq!(response.header("content-type"), "application/octet-stream");
    let text = String::from_utf8(response.body.to_vec()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Requirement R8.
#[tokio::test]
async fn a_batch_runs_each_line_once_and_stores_results_and_errors() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let worker = with_model(&api).await;
        // Two nodes process the batch, and each line still has one job.
        let blobs = Blobs::folder(api.blobs.path()).unwrap();
        let options = EngineOptions { blobs: Some(blobs), ..EngineOptions::default() };
        let other = Engine::start(api.db.store.clone(), options).await.unwrap();
        let retention = json!({"retention_s": 60});
        assert_eq!(api.put("/api/v1/queues/gpu", retention).await.status, 200);
        let lines: Vec<String> = (0..1_200).map(line).collect();
        let id = batch(&api, &lines.join("\n")).await;
        run_model_for(&api, &worker, 700).await;
        let running = batch_in(&api, &id, "in_progress").await;
        assert_eq!(running["request_counts"]["total"], 1_200);
        assert_eq!(
            running["request_counts"]["completed"].as_i64().unwrap()
                + running["request_counts"]["failed"].as_i64().unwrap(),
            700
        );
        // Jobs of an unfinished batch outlive the retention of their queue.
        api.db.pass_ms(600_000).await;
        assert_eq!(api.db.store.prune(86_400).await.unwrap().jobs, 0);
        let worker = api.worker("gpu").await;
        run_model_for(&api, &worker, 500).await;
        let ended = batch_in(&api, &id, "completed").await;
        assert_eq!(ended["request_counts"], json!({"total": 1_200, "completed": 1_080, "failed": 120}));
        assert_eq!((&ended["metadata"]["who"], &ended["errors"]), (&json!("me"), &Value::Null));
        assert!(ended["completed_at"].is_i64() && ended["cancelled_at"].is_null());
        let output = content(&api, &ended["output_file_id"]).await;
        assert_eq!(output.len(), 1_080);
        for line in &output {
            let number = &line["response"]["body"]["data"][0]["embedding"][0];
            assert_eq!(line["custom_id"], format!("line-{number}"));
            assert_eq!((&line["response"]["status_code"], &line["error"]), (&json!(200), &Value::Null));
        }
        let errors = content(&api, &ended["error_file_id"]).await;
        assert_eq!((errors.len(), &errors[0]["error"]["code"]), (120, &json!("handler_refused")));
        let listed = api.get("/openai/v1/batches?limit=1").await.json();
        assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&json!(id), &json!(false)));
        let files = api.get("/openai/v1/files?limit=1&purpose=batch_output").await.json();
        assert_eq!((files["data"].as_array().unwrap().len(), &files["has_more"]), (1, &json!(true)));
        let rest = format!("/openai/v1/files?purpose=batch_output&after={}", files["last_id"].as_str().unwrap());
        assert_eq!(api.get(&rest).await.json()["data"].as_array().unwrap().len(), 1);
        // The error file reports the failures. They are not dead letters.
        assert_eq!(api.get("/api/v1/dead-letters/count").await.json()["count"], 0);
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
        other.stop().await;
        // A task may have started pruning.
        while api.db.store.prune(86_400).await.unwrap().jobs > 0 {}
        let in_queue = JobFilter { queue: Some("gpu".into()), ..JobFilter::default() };
        let remaining = api.db.store.list_jobs(TenantId::DEFAULT, in_queue, None, 1_200).await.unwrap().jobs.len();
        assert!(remaining <= 500, "older jobs are pruned after the files are written: {remaining} remain");
    })
    .await;
}

/// Requirement R8.
#[tokio::test]
async fn a_batch_can_be_rejected_canceled_or_expire() {
    on_both(async |db| {
        let api = Api::new(db).await;
        with_model(&api).await;
        let id = batch(&api, &format!("{}\n{{\n{}", line(1), line(1))).await;
        let refused = batch_in(&api, &id, "failed").await;
        assert_eq!(refused["errors"]["data"][0]["code"], "invalid_json_line");
        assert_eq!(refused["errors"]["data"][0]["line"], 2);
        assert_eq!(refused["errors"]["data"][1]["code"], "duplicate_custom_id");

        let lines: Vec<String> = (0..20).map(line).collect();
        let id = batch(&api, &lines.join("\n")).await;
        run_model_for(&api, &api.worker("gpu").await, 5).await;
        let canceled = api.call("POST", &format!("/openai/v1/batches/{id}/cancel")).await.json();
        assert_eq!(canceled["status"], "cancelling");
        let ended = batch_in(&api, &id, "cancelled").await;
        assert_eq!(ended["request_counts"]["completed"], 5);
        assert_eq!(content(&api, &ended["output_file_id"]).await.len(), 5, "completed results are stored");
        let errors = content(&api, &ended["error_file_id"]).await;
        assert_eq!((errors.len(), &errors[0]["error"]["code"]), (15, &json!("batch_cancelled")));
        let again = api.call("POST", &format!("/openai/v1/batches/{id}/cancel")).await;
        assert_eq!((again.status.as_u16(), &again.json()["status"]), (200, &json!("cancelled")));

        let id = batch(&api, &lines.join("\n")).await;
        batch_in(&api, &id, "in_progress").await;
        api.db.pass_ms(25 * 3_600 * 1_000).await;
        let expired = batch_in(&api, &id, "expired").await;
        assert!(expired["expired_at"].is_i64());
        let errors = content(&api, &expired["error_file_id"]).await;
        assert_eq!((errors.len(), &errors[0]["error"]["code"]), (20, &json!("batch_expired")));
        let late = api.call("POST", &format!("/openai/v1/batches/{id}/cancel")).await;
        assert_eq!((late.status.as_u16(), &late.json()["error"]["code"]), (400, &json!("invalid_status")));
        assert_eq!(api.db.store.verify().await.unwrap().findings, []);
    })
    .await;
}

/// Requirement R8.
#[tokio::test(flavor = "multi_thread")]
async fn a_chat_completion_is_a_call_and_errors_have_the_openai_shape() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let worker = with_model(&api).await;
        let models = api.get("/openai/v1/models").await.json();
        assert_eq!((&models["data"][0]["id"], &models["data"][0]["object"]), (&json!("m"), &json!("model")));
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": 4});
        let (response, ()) =
            tokio::join!(api.post("/openai/v1/chat/completions", chat), run_model_for(&api, &worker, 1));
        assert_eq!(response.status, 200, "{:?}", response.body);
        assert_eq!(response.json()["data"][0]["embedding"][0], 4, "the result is returned unchanged");
        assert!(!response.header("x-windlass-job").is_empty());
        // A streamed request returns a complete result as one event.
        let chat = json!({"model": "m", "messages": [], "stream": true, "input": 4});
        let stream = crate::api::json_request("POST", "/openai/v1/chat/completions", &chat);
        let (response, ()) = tokio::join!(api.raw(stream), run_model_for(&api, &worker, 1));
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.starts_with("data: {") && text.ends_with("data: [DONE]\n\n"), "{text}");

        let fault = async |path: &str, body: Value, status: u16, code: &str| {
            let response = api.post(path, body).await;
            assert_eq!(response.header("content-type"), "application/json");
            let error = response.json()["error"].clone();
            assert_eq!((response.status.as_u16(), error["code"].as_str()), (status, Some(code)), "{error}");
            assert!(error["message"].is_string() && error["type"].is_string());
        };
        fault("/openai/v1/chat/completions", json!({"model": "other"}), 404, "model_not_found").await;
        fault("/openai/v1/chat/completions", json!({"messages": []}), 422, "invalid_field").await;
        fault("/openai/v1/nowhere", json!({}), 404, "no_such_route").await;
        fault("/openai/v1/files", json!({}), 400, "invalid_form").await;
        let endless = json!({"input_file_id": "x", "endpoint": "/v1/embeddings", "completion_window": "soon"});
        fault("/openai/v1/batches", endless, 400, "invalid_completion_window").await;
        let nowhere = json!({"input_file_id": "x", "endpoint": "/v1/embeddings", "completion_window": "24h"});
        fault("/openai/v1/batches", nowhere, 404, "not_found").await;
        let odd = json!({"input_file_id": "x", "endpoint": "/v1/embeddings", "completion_window": "24h", "x": 1});
        fault("/openai/v1/batches", odd, 422, "invalid_field").await;
        for path in ["files/%00", "files/x", "batches/%00", "models/%00", "files?after=x", "files?purpose=%00"] {
            let response = api.get(&format!("/openai/v1/{path}")).await;
            assert!(matches!(response.status.as_u16(), 400 | 404), "{path} {}", response.status);
            assert!(response.json()["error"]["message"].is_string(), "{path}");
        }
        let file = upload(&api, "kept\r\nas it came\n").await;
        let path = format!("/openai/v1/files/{}", file["id"].as_str().unwrap());
        assert_eq!(&api.get(&format!("{path}/content")).await.body[..], b"kept\r\nas it came\n");
        assert_eq!((&file["bytes"], &file["filename"]), (&json!(17), &json!("in.jsonl")));
        assert_eq!(api.call("DELETE", &path).await.json()["deleted"], true);
        assert_eq!(api.get(&path).await.status, 404);
        // A large file is stored in the blob folder and removed from there after its deletion.
        let large = "0123456789abcde\n".repeat(20_000);
        let file = upload(&api, &large).await;
        let path = format!("/openai/v1/files/{}", file["id"].as_str().unwrap());
        assert_eq!(api.get(&format!("{path}/content")).await.body, large.as_bytes());
        assert_eq!(blobs(&api), 1);
        assert_eq!(api.call("DELETE", &path).await.json()["deleted"], true);
        api.db.pass_ms(2 * 3_600_000).await;
        let folder = Blobs::folder(api.blobs.path()).unwrap();
        wait_until("the blob is collected", async || {
            api.db.store.collect_garbage(&folder).await.unwrap();
            blobs(&api) == 0
        })
        .await;
    })
    .await;
}

/// A multipart form with these parts: the head and the content of each.
fn form_of(parts: &[(&str, &str)]) -> Request<Body> {
    let part =
        |(head, content): &(&str, &str)| format!("--b\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n");
    let body = parts.iter().map(part).collect::<String>() + "--b--\r\n";
    let upload = request("POST", "/openai/v1/files").header("content-type", "multipart/form-data; boundary=b");
    upload.body(Body::from(body)).unwrap()
}

/// Requirement R8.
#[tokio::test]
async fn form_parts_may_come_in_any_order_and_a_rejected_upload_stores_nothing() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (file, purpose) = ("name=\"file\"; filename=\"a; b.jsonl\"", "name=\"purpose\"");
        let large = "0123456789abcde\n".repeat(20_000);
        let last = api.send(form_of(&[(file, &large), (purpose, "batch")])).await;
        assert_eq!((last.status.as_u16(), &last.json()["filename"]), (200, &json!("a; b.jsonl")), "{:?}", last.body);
        assert_eq!(blobs(&api), 1);

        let long = "x".repeat(2_000);
        for (parts, code) in [
            (vec![(file, large.as_str())], "invalid_purpose"),
            (vec![(file, large.as_str()), (purpose, "evil")], "invalid_purpose"),
            (vec![(file, large.as_str()), (purpose, long.as_str())], "invalid_form"),
            (vec![(purpose, "batch")], "missing_field"),
            (vec![(file, "x"), (purpose, "batch"), ("name=\"expires_after[seconds]\"", "0")], "invalid_expiry"),
        ] {
            let response = api.send(form_of(&parts)).await;
            assert_eq!((response.status.as_u16(), &response.json()["error"]["code"]), (400, &json!(code)));
            assert_eq!(blobs(&api), 1, "{code}: the rejected upload is deleted");
        }
        for odd in ["", "--b", "--b\r\n\r\n", "--c--", "--b\r\nContent-Disposition: form-data\r\n\r\n\r\n--b--"] {
            let upload = request("POST", "/openai/v1/files").header("content-type", "multipart/form-data; boundary=b");
            let response = api.send(upload.body(Body::from(odd)).unwrap()).await;
            assert_eq!(response.status, 400, "{odd:?} {:?}", response.body);
        }
    })
    .await;
}

/// Returns the number of files in the blob folder.
fn blobs(api: &Api) -> usize {
    let tenants = std::fs::read_dir(api.blobs.path()).unwrap();
    tenants.filter_map(|tenant| std::fs::read_dir(tenant.ok()?.path()).ok()).map(Iterator::count).sum()
}

/// Requirement R8.
#[tokio::test]
async fn a_producer_sees_only_its_own_files_and_batches() {
    on_both(async |db| {
        let api = Api::new(db).await;
        with_model(&api).await;
        let admin = api.caller(json!({"name": "root", "role": "admin"})).await;
        let [one, two] = [json!({"name": "one", "role": "producer"}), json!({"name": "two", "role": "producer"})];
        let (one, two) = (api.caller(one).await, api.caller(two).await);
        let file = one.send(form(&line(1))).await.json()["id"].as_str().unwrap().to_owned();
        let request = json!({"input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h"});
        assert_eq!(two.post("/openai/v1/batches", request.clone()).await.status, 404);
        let batch = one.post("/openai/v1/batches", request).await.json()["id"].as_str().unwrap().to_owned();
        for path in [format!("files/{file}"), format!("files/{file}/content"), format!("batches/{batch}")] {
            let path = format!("/openai/v1/{path}");
            assert_eq!((one.get(&path).await.status.as_u16(), admin.get(&path).await.status.as_u16()), (200, 200));
            assert_eq!(two.get(&path).await.status, 404, "{path}");
        }
        for path in ["/openai/v1/files", "/openai/v1/batches"] {
            assert_eq!(one.get(path).await.json()["data"].as_array().unwrap().len(), 1);
            assert_eq!(two.get(path).await.json()["data"], json!([]));
        }
        assert_eq!(two.delete(&format!("/openai/v1/files/{file}")).await.status, 404);
        // The right to read results does not include payloads or changes.
        let reader = json!({"name": "reader", "role": "producer", "rights": ["read_results"]});
        let reader = api.caller(reader).await;
        assert_eq!(reader.get(&format!("/openai/v1/batches/{batch}")).await.status, 200);
        assert_eq!(reader.get(&format!("/openai/v1/files/{file}/content")).await.status, 403);
        assert_eq!(reader.post(&format!("/openai/v1/batches/{batch}/cancel"), json!({})).await.status, 403);
        assert_eq!(reader.delete(&format!("/openai/v1/files/{file}")).await.status, 403);
        let viewer = api.caller(json!({"name": "eyes", "role": "viewer"})).await;
        let refused = viewer.post("/openai/v1/chat/completions", json!({"model": "m"})).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["type"]), (403, &json!("permission_error")));
        let anonymous = api.get("/openai/v1/models").await;
        assert_eq!(anonymous.json()["error"]["code"], "token_required");
        assert!(!anonymous.header("www-authenticate").is_empty(), "headers are unchanged");
        let elsewhere = api.caller(json!({"name": "narrow", "role": "producer", "queues": ["other"]})).await;
        assert_eq!(elsewhere.get("/openai/v1/models").await.json()["data"], json!([]));
        assert_eq!(elsewhere.post("/openai/v1/embeddings", json!({"model": "m"})).await.status, 404);
    })
    .await;
}

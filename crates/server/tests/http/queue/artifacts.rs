//! Artifacts over HTTP.

use std::path::PathBuf;

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use server::ServerOptions;
use sha2::{Digest, Sha256};
use store::StoreError;
use store::db::tx::{Operation, Tx};
use testkit::eventually::wait_until;
use testkit::on_both;

use crate::api::{Api, members, request};

fn put(job: &str, name: &str, content: &[u8]) -> Request<Body> {
    let builder = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/{name}"));
    builder.header("content-type", "text/html").body(Body::from(content.to_vec())).unwrap()
}

fn with(mut request: Request<Body>, header: &'static str, value: &str) -> Request<Body> {
    request.headers_mut().insert(header, value.parse().unwrap());
    request
}

fn digest(content: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(content)))
}

/// Content above the limit for the database. Its length is prime to every chunk size.
fn large() -> Vec<u8> {
    (0..10_000_019u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// Returns the blob files, which have one folder per tenant. Other files only mark the folder.
fn blob_files(api: &Api) -> Vec<PathBuf> {
    let Ok(all) = std::fs::read_dir(api.blobs.path()) else { return Vec::new() };
    let tenants = all.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    tenants.flat_map(|tenant| std::fs::read_dir(tenant).unwrap()).map(|blob| blob.unwrap().path()).collect()
}

/// Requirement Q9.
#[tokio::test]
async fn small_and_large_artifacts_download_unchanged_with_safe_headers() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        for (name, content) in [("empty", Vec::new()), ("report.html", b"<script>".to_vec()), ("weights.bin", large())]
        {
            let stored = api.send(with(put(&job, name, &content), "repr-digest", &digest(&content))).await;
            assert_eq!(stored.status, 201, "{:?}", stored.body);
            let view = stored.json();
            assert_eq!(members(&view), ["content_type", "created_at", "name", "sha256", "size"]);
            assert_eq!((&view["name"], &view["size"]), (&json!(name), &json!(content.len())));
            let got = api.get(&format!("/api/v1/jobs/{job}/artifacts/{name}")).await;
            assert!(got.body == content, "{name} is unchanged");
            assert_eq!(got.header("content-length"), content.len().to_string());
            assert_eq!(got.header("content-type"), "text/html");
            assert_eq!(got.header("repr-digest"), digest(&content));
            assert!(got.header("content-disposition").starts_with("attachment; filename=\""));
            assert_eq!(got.header("x-content-type-options"), "nosniff");
            assert_eq!(got.header("content-security-policy"), "sandbox; default-src 'none'");
        }
        assert_eq!(blob_files(&api).len(), 1, "only the large artifact is a blob");
        let listed = api.get(&format!("/api/v1/jobs/{job}/artifacts")).await.json();
        let names: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|item| &item["name"]).collect();
        assert_eq!(names, ["empty", "report.html", "weights.bin"]);
        api.get(&format!("/api/v1/jobs/{job}/artifacts/other")).await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn uploading_the_same_content_is_idempotent_and_other_content_conflicts() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        for content in [b"small".to_vec(), large()] {
            let name = format!("a{}", content.len());
            let put = |content: &[u8]| api.send(put(&job, &name, content));
            let first = put(&content).await;
            let again = put(&content).await;
            assert_eq!((first.status.as_u16(), again.status.as_u16()), (201, 200));
            assert_eq!(first.json(), again.json());
            put(&[&content[..], b"!"].concat()).await.problem(409, "artifact_exists", None);
            let got = api.get(&format!("/api/v1/jobs/{job}/artifacts/{name}")).await;
            assert!(got.body == content);
        }
        assert_eq!(blob_files(&api).len(), 1, "a rejected upload is deleted");
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_wrong_digest_stores_nothing() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        for content in [b"small".to_vec(), large()] {
            let wrong = with(put(&job, "a", &content), "repr-digest", &digest(b"other"));
            api.send(wrong).await.problem(422, "digest_mismatch", Some("Repr-Digest"));
        }
        for bad in ["sha-256=abc", "sha-256=:!!:", "md5=:AAAA:", ""] {
            let bad = with(put(&job, "a", b"x"), "repr-digest", bad);
            api.send(bad).await.problem(400, "invalid_header", Some("Repr-Digest"));
        }
        let both = format!("sha-512=:AAAA:, {}", digest(b"x"));
        assert_eq!(api.send(with(put(&job, "b", b"x"), "repr-digest", &both)).await.status, 201);
        let listed = api.get(&format!("/api/v1/jobs/{job}/artifacts")).await.json();
        assert_eq!((listed["items"].as_array().unwrap().len(), blob_files(&api).len()), (1, 0));
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn a_stale_epoch_stores_no_artifact() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (job, worker, epoch) = api.claimed("q").await;
        let at = |epoch: i64, name: &str, content: &[u8]| {
            with(put(&job, name, content), "x-windlass-epoch", &epoch.to_string())
        };
        assert_eq!(api.send(at(epoch, "mine", b"x")).await.status, 201);
        api.send(at(epoch + 1, "a", b"x")).await.problem(409, "claim_lost", None);
        api.send(at(epoch - 1, "a", &large())).await.problem(409, "claim_lost", None);
        api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        api.send(at(epoch, "late", b"x")).await.problem(409, "claim_lost", None);
        let bad = with(put(&job, "a", b"x"), "x-windlass-epoch", "one");
        api.send(bad).await.problem(400, "invalid_header", Some("X-Windlass-Epoch"));
        assert_eq!(api.send(put(&job, "manual", b"x")).await.status, 201, "without an epoch, an ended job accepts one");
        let missing = "00000000-0000-7000-8000-000000000000";
        api.send(put(missing, "a", b"x")).await.problem(404, "not_found", None);
        let listed = api.get(&format!("/api/v1/jobs/{job}/artifacts")).await.json();
        assert_eq!((listed["items"].as_array().unwrap().len(), blob_files(&api).len()), (2, 0));
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn artifact_names_are_validated_and_sizes_are_limited() {
    on_both(async |db| {
        let options = ServerOptions { artifact_bytes: 100_000, ..ServerOptions::default() };
        let api = Api::with(db, options).await;
        let job = api.job("q").await;
        for name in ["a%20b%20%C3%A4.txt", "...", "a%22b", "%F0%9F%92%A5"] {
            assert_eq!(api.send(put(&job, name, b"x")).await.status, 201, "{name}");
            let got = api.get(&format!("/api/v1/jobs/{job}/artifacts/{name}")).await;
            assert_eq!(&got.body[..], b"x");
        }
        for name in ["%2E%2E", "a%2Fb", "%5C", "%00", "%20", "a%E2%80%AEb", &"x".repeat(257)] {
            api.send(put(&job, name, b"x")).await.problem(422, "invalid_field", Some("name"));
        }
        api.send(put(&job, "%FF", b"x")).await.problem(404, "not_found", None);
        api.send(put(&job, "big", &vec![0; 100_001])).await.problem(413, "body_too_large", None);
        let chunks = futures_util::stream::iter((0..20).map(|_| Ok::<_, std::io::Error>(vec![0u8; 10_000])));
        let streamed = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/big")).body(Body::from_stream(chunks));
        api.send(streamed.unwrap()).await.problem(413, "body_too_large", None);
        let broken = [Ok(vec![0u8; 90_000]), Err(std::io::Error::other("gone"))];
        let broken = Body::from_stream(futures_util::stream::iter(broken));
        let broken = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/big")).body(broken).unwrap();
        assert_eq!(api.send(broken).await.status, 400);
        assert_eq!(blob_files(&api).len(), 0, "a rejected upload is deleted");
        api.get(&format!("/api/v1/jobs/{job}/artifacts/big")).await.problem(404, "not_found", None);
    })
    .await;
}

/// Counts the recorded blobs that no artifact references.
struct CountGarbage;

impl Operation for CountGarbage {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        Ok(tx.query_built("select location from blob_garbage", &[]).await?.len())
    }
}

/// Requirement Q9.
#[tokio::test]
async fn garbage_collection_removes_abandoned_blobs_after_an_hour() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        api.send(put(&job, "kept", &large())).await;
        // An upload whose client disconnects in the middle, as if the server had been killed.
        let first = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![0u8; 100_000])]);
        let endless = futures_util::StreamExt::chain(first, futures_util::stream::pending());
        let upload = request("PUT", &format!("/api/v1/jobs/{job}/artifacts/lost")).body(Body::from_stream(endless));
        let garbage = async || api.db.store.read(CountGarbage).await.unwrap();
        tokio::select! {
            response = api.send(upload.unwrap()) => panic!("answered {}", response.status),
            () = wait_until("the blob is recorded", async || garbage().await == 1) => {}
        }
        let collect = async || api.db.store.collect_garbage(&api.state.blobs).await.unwrap();
        assert_eq!((collect().await, garbage().await), (0, 1), "the upload may still be running");
        api.db.clock.advance_ms(3_700_000);
        // The engine's own task may collect it first.
        wait_until("the blob is collected", async || {
            collect().await;
            garbage().await == 0
        })
        .await;
        assert_eq!(collect().await, 0);
        let got = api.get(&format!("/api/v1/jobs/{job}/artifacts/kept")).await;
        assert!(got.body == large());
        api.get(&format!("/api/v1/jobs/{job}/artifacts/lost")).await.problem(404, "not_found", None);
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_damaged_blob_ends_the_download_with_an_error() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        api.send(put(&job, "a", &large())).await;
        let mut content = large();
        content[5_000_000] ^= 1;
        std::fs::write(&blob_files(&api)[0], content).unwrap();
        let name = testkit::label("a");
        let id = domain::JobId::new(job.parse().unwrap());
        let tenant = domain::TenantId::DEFAULT;
        let download = api.db.store.artifact(&api.state.blobs, tenant, id, name).await.unwrap().unwrap();
        let chunks: Vec<_> = futures_util::StreamExt::collect(download.bytes).await;
        assert!(chunks.last().unwrap().is_err());
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_blob_missing_on_this_node_returns_blob_missing() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        api.send(put(&job, "a", &large())).await;
        std::fs::remove_file(&blob_files(&api)[0]).unwrap();
        let response = api.get(&format!("/api/v1/jobs/{job}/artifacts/a")).await;
        response.problem(503, "blob_missing", None);
        let detail = response.json()["detail"].to_string();
        assert!(detail.contains("share one folder") && detail.contains("s3://"), "{detail}");
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn uploading_the_same_content_replaces_a_lost_blob() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        let first = api.send(put(&job, "a", &large())).await.json();
        std::fs::remove_file(&blob_files(&api)[0]).unwrap();
        let again = api.send(put(&job, "a", &large())).await;
        assert_eq!((again.status.as_u16(), again.json()), (200, first));
        let got = api.get(&format!("/api/v1/jobs/{job}/artifacts/a")).await;
        assert!(got.status == 200 && got.body == large(), "{}", got.status);
        assert_eq!(blob_files(&api).len(), 1);
        assert_eq!(api.db.store.read(CountGarbage).await.unwrap(), 1, "the lost blob, in case it reappears");
    })
    .await;
}

/// Requirement X12.
#[tokio::test]
async fn an_unwritable_blob_store_returns_503_and_no_false_success() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        std::fs::remove_dir_all(api.blobs.path()).unwrap();
        std::fs::write(api.blobs.path(), "a file and not a folder").unwrap();
        let refused = api.send(put(&job, "large", &large())).await;
        refused.problem(503, "unavailable", None);
        assert_eq!(refused.header("retry-after"), "1");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains("artifact storage") && !detail.contains("database"), "{detail}");
        assert_eq!(api.send(put(&job, "small", b"x")).await.status, 201);
        std::fs::remove_file(api.blobs.path()).unwrap();
        std::fs::create_dir(api.blobs.path()).unwrap();
        assert_eq!(api.send(put(&job, "large", &large())).await.status, 201, "uploads work again without a restart");
    })
    .await;
}

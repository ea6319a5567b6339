//! Streams of signals as server-sent events.

use axum::body::Body;
use serde_json::{Value, json};
use testkit::eventually::before_timeout;
use testkit::on_both;
use tokio::sync::Notify;

use crate::api::{Api, request};

/// Reads events until `enough` returns true or the stream ends.
pub(crate) async fn events(
    api: &Api,
    request: axum::http::Request<Body>,
    enough: impl Fn(&[Value]) -> bool,
) -> Vec<Value> {
    use http_body_util::BodyExt;
    let response = api.raw(request).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let mut body = response.into_body();
    let (mut text, mut seen) = (String::new(), Vec::new());
    let reading = async {
        while !enough(&seen) {
            let Some(frame) = body.frame().await else { break };
            text.push_str(std::str::from_utf8(frame.unwrap().data_ref().unwrap()).unwrap());
            while let Some((event, rest)) = text.split_once("\n\n") {
                let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let Some(data) = line("data:") {
                    let mut signal: Value = serde_json::from_str(data).unwrap();
                    assert_eq!(line("event:"), Some("signal"));
                    signal["event_id"] = json!(line("id:").unwrap());
                    seen.push(signal);
                }
                text = rest.to_owned();
            }
        }
    };
    before_timeout("the stream sends the events", reading).await;
    seen
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["kind"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

/// Requirement S3.
#[tokio::test]
async fn a_job_stream_follows_the_job_to_its_end_and_resumes_after_a_break() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let job = api.job("q").await;
        let path = format!("/api/v1/jobs/{job}/stream");
        let get = |last: Option<i64>| {
            let request = request("GET", &path);
            let request = match last {
                Some(last) => request.header("last-event-id", last.to_string()),
                None => request,
            };
            request.body(Body::empty()).unwrap()
        };
        let phase_seen = Notify::new();
        let work = async {
            let worker = api.worker("q").await;
            let claim = api.post(&format!("/api/v1/workers/{worker}/claim"), json!({"max": 1})).await.json();
            let epoch = claim["jobs"][0]["epoch"].clone();
            api.put(&format!("/api/v1/jobs/{job}/signal"), json!({"epoch": epoch, "phase": "fetch"})).await;
            // A stream sends the current signal: a phase that ended immediately could be skipped.
            before_timeout("the stream sends the phase", phase_seen.notified()).await;
            api.settle(&worker, json!({"job_id": job, "epoch": epoch, "outcome": "finish"})).await;
        };
        let first = events(&api, get(None), |seen| !seen.is_empty()).await;
        assert_eq!(kinds(&first), ["queued"]);
        let version = first[0]["version"].as_i64().unwrap();
        assert_eq!(first[0]["event_id"], version.to_string());
        let notify = |seen: &[Value]| {
            if kinds(seen).contains(&"phase") {
                phase_seen.notify_one();
            }
            false
        };
        let (seen, ()) = tokio::join!(events(&api, get(Some(version)), notify), work);
        assert_eq!(seen.last().unwrap()["kind"], "succeeded", "the stream ends with the job: {seen:?}");
        assert!(seen.iter().any(|event| event["kind"] == "phase"), "{seen:?}");
        let versions: Vec<i64> = seen.iter().map(|event| event["version"].as_i64().unwrap()).collect();
        assert!(versions.is_sorted(), "versions increase: {versions:?}");
        let again = api.send(get(versions.last().copied())).await;
        assert_eq!(again.status, 204, "the client has the last signal");
        api.get("/api/v1/jobs/01890a5d-ac96-774b-bcce-b302099a8057/stream").await.problem(404, "not_found", None);
        assert_eq!(api.state.streams.open(), 0, "a closed stream is not counted");
    })
    .await;
}

/// Requirement S3.
#[tokio::test]
async fn a_filtered_stream_includes_matching_changes_from_another_node() {
    on_both(async |db| {
        let other_node = db.another_node().await;
        let api = Api::new(db).await;
        let (here, there) = (api.job("q").await, api.job("elsewhere").await);
        let get = request("GET", "/api/v1/stream?queue=q").body(Body::empty()).unwrap();
        let jobs = |seen: &[Value]| seen.iter().map(|event| event["job_id"].clone()).collect::<Vec<_>>();
        let open = Notify::new();
        let push = async {
            before_timeout("the stream is open", open.notified()).await;
            other_node
                .cancel(domain::TenantId::DEFAULT, domain::JobId::new(here.parse().unwrap()), "x".into())
                .await
                .unwrap();
            api.job("q").await
        };
        let enough = |seen: &[Value]| {
            if !seen.is_empty() {
                open.notify_one();
            }
            seen.len() >= 3
        };
        let (seen, new) = tokio::join!(events(&api, get, enough), push);
        assert!(jobs(&seen).contains(&json!(new)) && !jobs(&seen).contains(&json!(there)), "{seen:?}");
        assert!(seen.iter().any(|event| event["job_id"] == here.as_str() && event["kind"] == "canceled"), "{seen:?}");
        api.get("/api/v1/stream?state=odd").await.problem(400, "invalid_query", Some("state"));
        api.get("/api/v1/stream?odd=1").await.problem(400, "invalid_query", Some("odd"));
    })
    .await;
}

fn contains(job: &str) -> impl Fn(&[Value]) -> bool {
    move |seen| seen.iter().any(|event| event["job_id"] == job)
}

/// Requirement S3.
#[tokio::test]
async fn a_filtered_stream_resumes_with_changes_since_the_last_event() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let stream = |last: &str| {
            let request = request("GET", "/api/v1/stream?queue=q").header("last-event-id", last);
            request.body(Body::empty()).unwrap()
        };
        let jobs = |seen: &[Value]| seen.iter().map(|event| event["job_id"].clone()).collect::<Vec<_>>();
        let old = api.job("q").await;
        // Well beyond the overlap that a resumed stream repeats.
        api.db.pass_ms(60_000).await;
        let last = api.job("q").await;
        let first = events(&api, stream("an unknown id"), |seen| seen.len() >= 2).await;
        assert_eq!(jobs(&first), [json!(old), json!(last)], "the oldest first");
        let missed = api.job("q").await;
        let seen = events(&api, stream(first[1]["event_id"].as_str().unwrap()), contains(&missed)).await;
        assert!(!jobs(&seen).contains(&json!(old)), "old events are not repeated: {seen:?}");
        api.db.pass_ms(60_000).await;
        api.call("POST", &format!("/api/v1/jobs/{old}/cancel")).await;
        let event_id = seen.last().unwrap()["event_id"].clone();
        let seen = events(&api, stream(event_id.as_str().unwrap()), contains(&old)).await;
        assert_eq!(seen.last().unwrap()["kind"], "canceled");
    })
    .await;
}

/// Requirement S3.
#[tokio::test]
async fn a_stream_is_in_order_of_change_and_includes_running_jobs_behind_a_backlog() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let (early, late) = (api.claimed("q").await, api.claimed("q").await);
        let waiting: Vec<Value> =
            (0..domain::limits::STREAM_WINDOW + 10).map(|_| json!({"queue": "elsewhere", "kind": "k"})).collect();
        assert!(api.post("/api/v1/jobs/batch", json!({"jobs": waiting})).await.status.is_success());
        // The older job changes last.
        for (job, _, epoch) in [&late, &early] {
            api.db.pass_ms(1_000).await;
            let update = json!({"epoch": epoch, "summary": "half"});
            assert_eq!(api.put(&format!("/api/v1/jobs/{job}/signal"), update).await.status, 200);
        }
        let state = api.get(&format!("/api/v1/jobs/{}", early.0)).await.json()["state"].as_str().unwrap().to_owned();
        let get = request("GET", &format!("/api/v1/stream?state={state}")).body(Body::empty()).unwrap();
        let seen = events(&api, get, |seen| seen.len() >= 2).await;
        let jobs: Vec<&Value> = seen.iter().map(|event| &event["job_id"]).collect();
        let id = |event: &Value| event["event_id"].as_str().unwrap().parse::<i64>().unwrap();
        assert_eq!(jobs, [late.0.as_str(), early.0.as_str()]);
        assert!(id(&seen[0]) < id(&seen[1]), "a stream resumed after the first event sends the second");
    })
    .await;
}

/// Reads the names of events until `count` have arrived.
async fn event_names(api: &Api, path: &str, count: usize) -> Vec<String> {
    use http_body_util::BodyExt;
    let response = api.raw(request("GET", path).body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    let (mut body, mut text) = (response.into_body(), String::new());
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| line.strip_prefix("event:")).map(|name| name.trim().to_owned()).collect()
    };
    let reading = async {
        while names(&text).len() < count {
            let frame = body.frame().await.unwrap().unwrap();
            text.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
        }
    };
    before_timeout("the stream sends the events", reading).await;
    assert!(!text.contains("job_id"), "no content: {text}");
    names(&text)
}

/// Requirement S3.
#[tokio::test]
async fn a_page_stream_reports_changes_without_content() {
    on_both(async |db| {
        let other_node = db.another_node().await;
        let api = Api::new(db).await;
        let path = "/api/v1/stream?only=changes&queue=q";
        let job = api.job("q").await;
        let cancel = async {
            // The change of another node is found by the scan, whenever the stream was opened.
            loop {
                let id = domain::JobId::new(job.parse().unwrap());
                other_node.cancel(domain::TenantId::DEFAULT, id, "x".into()).await.unwrap();
                api.job("q").await;
                tokio::task::yield_now().await;
            }
        };
        let names = tokio::select! {
            names = event_names(&api, path, 3) => names,
            () = cancel => unreachable!("the loop does not end"),
        };
        assert_eq!(names, ["changed", "changed", "changed"]);
        api.get("/api/v1/stream?only=odd").await.problem(400, "invalid_query", Some("only"));
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_token_opens_a_limited_number_of_filtered_streams() {
    on_both(async |db| {
        let api = Api::new(db).await;
        let open = async || api.raw(request("GET", "/api/v1/stream?only=changes").body(Body::empty()).unwrap()).await;
        let mut streams = Vec::new();
        for _ in 0..domain::limits::STREAMS_PER_TOKEN {
            let response = open().await;
            assert_eq!(response.status(), 200);
            streams.push(response);
        }
        assert_eq!(open().await.status(), 429);
        streams.pop();
        assert_eq!(open().await.status(), 200, "a closed stream is not counted");
    })
    .await;
}

//! `windlass bench` (X8): it measures everything without an error, and leaves alone what is in use.

use serde_json::Value;

use crate::support::{Place, on_postgres, on_sqlite, windlass};

/// Errors only: how long it takes is never judged here.
async fn bench(place: Place) {
    let args = ["--output", "json", "bench", "--scale", "1", "--rounds", "1", "--database", &place.url];
    let before = place.path("before.jsonl");
    for mode in ["embedded", "http"] {
        let done = windlass(&[&args[..], &["--mode", mode]].concat()).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        let figures: Vec<Value> =
            done.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is a figure")).collect();
        assert_eq!(figures.len(), 5, "{}", done.stdout);
        assert!(figures.iter().all(|figure| figure["value"].as_f64() > Some(0.0)), "{}", done.stdout);
        std::fs::write(&before, &done.stdout).expect("writes");
    }
    // What takes minutes in full size, beside what was measured above.
    let only = async |mode: &str, metrics: &str| {
        let more = ["--mode", mode, "--only", metrics, "--compare", before.to_str().expect("a path is text")];
        let done = windlass(&[&args[..], &more].concat()).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        let metric = |line: &str| serde_json::from_str::<Value>(line).expect("a line is a figure")["metric"].clone();
        let measured: Vec<Value> = done.stdout.lines().map(metric).collect();
        assert_eq!(measured, metrics.split(',').map(Value::from).collect::<Vec<_>>());
        assert!(!done.stderr.is_empty(), "it says what changed, or that nothing did");
    };
    only("embedded", "drain100k,drain_of_1M,drain_retained1M,drain_parked1M,drain_queues10k,drain_tenants10k").await;
    only("embedded", "verify10M").await;
    let nodes = "drain_nodes2,drain_nodes3";
    if place.url.starts_with("postgres") {
        only("embedded", nodes).await;
    } else {
        let done = windlass(&[&args[..], &["--only", nodes]].concat()).await;
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.stderr.contains("several nodes need PostgreSQL"), "{done:?}");
    }
    only("http", "latency_workers1k,signals1M,streams5k,subjects100k").await;
    let done = windlass(&[&args[..], &["--mode", "http", "--only", "pages"]].concat()).await;
    assert_eq!(done.code, Some(0), "every page answers: {done:?}");
    assert!(done.stdout.lines().count() > 30, "{}", done.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn x8_the_benchmark_measures_everything_without_an_error_on_sqlite() {
    on_sqlite(bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x8_the_benchmark_measures_everything_without_an_error_on_postgres() {
    on_postgres(bench).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x8_the_benchmark_leaves_a_database_alone_that_has_a_schema() {
    on_postgres(async |place| {
        let on = async |args: &[&str]| windlass(&[args, &["--database", &place.url]].concat()).await;
        on(&["migrate", "up"]).await;
        // Without a queue, and not without worth.
        assert_eq!(on(&["tenant", "create", "small"]).await.code, Some(0));
        let bench = on(&["bench", "--only", "bulk", "--mode", "embedded", "--scale", "1", "--rounds", "1"]).await;
        assert_eq!(bench.code, Some(1), "{bench:?}");
        assert!(bench.stderr.contains("must have no schema yet"), "{bench:?}");
        let listed = on(&["tenant", "list"]).await;
        assert!(listed.stdout.contains("small"), "{listed:?}");
    })
    .await;
}

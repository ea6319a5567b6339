//! `windlass bench`: every metric is measured without an error, and a database with a schema is refused.

use serde_json::Value;

use crate::support::{Fixture, on_postgres, on_sqlite, windlass};

/// Runs every metric. Checks only for errors, not for speed.
async fn bench(fixture: Fixture) {
    let args = ["--output", "json", "bench", "--scale", "1", "--rounds", "1", "--database", &fixture.url];
    let before = fixture.path("before.jsonl");
    for mode in ["embedded", "http"] {
        let output = windlass(&[&args[..], &["--mode", mode]].concat()).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let figures: Vec<Value> =
            output.stdout.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
        assert_eq!(figures.len(), 5, "{}", output.stdout);
        assert!(figures.iter().all(|figure| figure["value"].as_f64() > Some(0.0)), "{}", output.stdout);
        std::fs::write(&before, &output.stdout).expect("writes the file");
    }
    // Metrics that take minutes at full scale, compared with the figures measured above.
    let only = async |mode: &str, metrics: &str| {
        let more = ["--mode", mode, "--only", metrics, "--compare", before.to_str().expect("a path is text")];
        let output = windlass(&[&args[..], &more].concat()).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        let metric = |line: &str| serde_json::from_str::<Value>(line).expect("a line is JSON")["metric"].clone();
        let measured: Vec<Value> = output.stdout.lines().map(metric).collect();
        assert_eq!(measured, metrics.split(',').map(Value::from).collect::<Vec<_>>());
        assert!(!output.stderr.is_empty(), "stderr contains the comparison");
    };
    only("embedded", "drain100k,drain_of_1M,drain_retained1M,drain_parked1M,drain_queues10k,drain_tenants10k").await;
    only("embedded", "verify10M").await;
    let nodes = "drain_nodes2,drain_nodes3";
    if fixture.url.starts_with("postgres") {
        only("embedded", nodes).await;
    } else {
        let output = windlass(&[&args[..], &["--only", nodes]].concat()).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("several nodes need PostgreSQL"), "{output:?}");
    }
    only("http", "latency_workers1k,signals1M,streams5k,subjects100k").await;
    let output = windlass(&[&args[..], &["--mode", "http", "--only", "pages"]].concat()).await;
    assert_eq!(output.code, Some(0), "every page is served: {output:?}");
    assert!(output.stdout.lines().count() > 30, "{}", output.stdout);
}

/// Requirement X8.
#[tokio::test(flavor = "multi_thread")]
async fn the_benchmark_completes_without_an_error_on_sqlite() {
    on_sqlite(bench).await;
}

/// Requirement X8.
#[tokio::test(flavor = "multi_thread")]
async fn the_benchmark_completes_without_an_error_on_postgres() {
    on_postgres(bench).await;
}

/// Requirement X8.
#[tokio::test(flavor = "multi_thread")]
async fn the_benchmark_refuses_a_database_that_has_a_schema() {
    on_postgres(async |fixture| {
        let on = async |args: &[&str]| windlass(&[args, &["--database", &fixture.url]].concat()).await;
        on(&["migrate", "up"]).await;
        // A database without a queue may still contain data, here a tenant.
        assert_eq!(on(&["tenant", "create", "small"]).await.code, Some(0));
        let bench = on(&["bench", "--only", "bulk", "--mode", "embedded", "--scale", "1", "--rounds", "1"]).await;
        assert_eq!(bench.code, Some(1), "{bench:?}");
        assert!(bench.stderr.contains("must have no schema yet"), "{bench:?}");
        let listed = on(&["tenant", "list"]).await;
        assert!(listed.stdout.contains("small"), "{listed:?}");
    })
    .await;
}

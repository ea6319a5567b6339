//! `windlass backup` and `windlass restore` of a SQLite database that is in use.

use client::JobFilter;
use serde_json::json;

use crate::support::{Fixture, Load, Serve, Server, ended, on_postgres, push, windlass};

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_made_under_load_is_consistent_and_serves_after_a_restore() {
    let fixture = Fixture::sqlite();
    let server = Server::start(&fixture).await;
    let client = server.client();
    let before = push(&client, "quiet", json!("before the copy")).await;
    let load = Load::start(client);
    load.wait_for_jobs(60).await;
    let copy = fixture.path("copy.db").display().to_string();
    let output = windlass(&["backup", &copy, "--database", &fixture.url]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("all hold"), "{output:?}");
    load.wait_for_jobs(30).await;
    println!("{}", load.finish().await);
    drop(server);

    let again = windlass(&["backup", &copy, "--database", &fixture.url]).await;
    assert_eq!(again.code, Some(1), "an existing copy is not overwritten: {again:?}");

    let restored = Fixture::sqlite();
    let output = windlass(&["restore", &copy, "--database", &restored.url]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stdout.contains("all hold"), "{output:?}");
    let over = windlass(&["restore", &copy, "--database", &restored.url]).await;
    assert_eq!(over.code, Some(1), "an existing database is not overwritten: {over:?}");
    assert!(over.stderr.contains("move it away first"), "{over:?}");

    let server = Serve::on(&restored).start().await;
    let client = server.client();
    assert_eq!(client.job(before).await.expect("the copy contains the job").state, "queued");
    let next = push(&client, "quiet", json!("after")).await;
    let quiet = JobFilter { queue: Some("quiet".into()), ..JobFilter::default() };
    assert_eq!(client.jobs(&quiet).await.expect("jobs are listed").items.len(), 2);
    client.cancel(next).await.expect("the job is canceled");
    assert_eq!(ended(&client, next).await.state, "canceled");
}

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_from_before_an_upgrade_is_restored_by_the_newer_program() {
    let (fixture, restored) = (Fixture::sqlite(), Fixture::sqlite());
    let run = async |args: &[&str]| {
        let output = windlass(args).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        output
    };
    run(&["migrate", "up", "--database", &fixture.url]).await;
    run(&["migrate", "down", "--to", "1", "--yes", "--database", &fixture.url]).await;
    let copy = fixture.path("copy.db").display().to_string();
    let backup = run(&["backup", &copy, "--database", &fixture.url]).await;
    assert!(backup.stderr.contains("pending"), "{backup:?}");
    let restore = run(&["restore", &copy, "--database", &restored.url, "--output", "json"]).await;
    let restore: serde_json::Value = serde_json::from_str(&restore.stdout).expect("stdout is JSON");
    assert!(restore["note"].as_str().is_some_and(|note| note.contains("pending")), "{restore}");
    run(&["migrate", "up", "--database", &restored.url]).await;
    restored.verify().await;
}

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_postgres_is_refused_with_a_hint_at_pg_dump() {
    on_postgres(async |fixture| {
        let output = windlass(&["backup", "copy.db", "--database", &fixture.url]).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.stderr.contains("pg_dump"), "{output:?}");
    })
    .await;
}

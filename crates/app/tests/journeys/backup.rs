//! Copies of a SQLite database while it is in use, and what they are worth (X2, X14).

use client::JobFilter;
use serde_json::json;

use crate::support::{Load, Place, Serve, Server, ended, on_postgres, push, windlass};

#[tokio::test(flavor = "multi_thread")]
async fn x14_a_copy_made_under_load_is_whole_and_serves_when_it_is_put_back() {
    let place = Place::sqlite();
    let server = Server::start(&place).await;
    let client = server.client();
    let before = push(&client, "quiet", json!("before the copy")).await;
    let load = Load::start(client);
    load.more(60).await;
    let copy = place.path("copy.db").display().to_string();
    let done = windlass(&["backup", &copy, "--database", &place.url]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("all hold"), "{done:?}");
    load.more(30).await;
    println!("{}", load.finish().await);
    drop(server);

    let again = windlass(&["backup", &copy, "--database", &place.url]).await;
    assert_eq!(again.code, Some(1), "a copy is not written over: {again:?}");

    let restored = Place::sqlite();
    let done = windlass(&["restore", &copy, "--database", &restored.url]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("all hold"), "{done:?}");
    let over = windlass(&["restore", &copy, "--database", &restored.url]).await;
    assert_eq!(over.code, Some(1), "a database is not written over: {over:?}");
    assert!(over.stderr.contains("move it away first"), "{over:?}");

    let server = Serve::on(&restored).start().await;
    let client = server.client();
    assert_eq!(client.job(before).await.expect("it was there at the copy").state, "queued");
    let next = push(&client, "quiet", json!("after")).await;
    let quiet = JobFilter { queue: Some("quiet".into()), ..JobFilter::default() };
    assert_eq!(client.jobs(&quiet).await.expect("jobs are listed").items.len(), 2);
    client.cancel(next).await.expect("the job is canceled");
    assert_eq!(ended(&client, next).await.state, "canceled");
}

#[tokio::test(flavor = "multi_thread")]
async fn x14_a_copy_from_before_an_upgrade_is_put_back_by_the_program_after_it() {
    let (place, restored) = (Place::sqlite(), Place::sqlite());
    let run = async |args: &[&str]| {
        let done = windlass(args).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        done
    };
    run(&["migrate", "up", "--database", &place.url]).await;
    run(&["migrate", "down", "--to", "1", "--yes", "--database", &place.url]).await;
    let copy = place.path("copy.db").display().to_string();
    let told = run(&["backup", &copy, "--database", &place.url]).await;
    assert!(told.stderr.contains("pending"), "{told:?}");
    let told = run(&["restore", &copy, "--database", &restored.url, "--output", "json"]).await;
    let told: serde_json::Value = serde_json::from_str(&told.stdout).expect("it is JSON");
    assert!(told["note"].as_str().is_some_and(|note| note.contains("pending")), "{told}");
    run(&["migrate", "up", "--database", &restored.url]).await;
    restored.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x14_a_postgres_database_is_left_to_its_own_tools() {
    on_postgres(async |place| {
        let done = windlass(&["backup", "copy.db", "--database", &place.url]).await;
        assert_eq!(done.code, Some(1), "{done:?}");
        assert!(done.stderr.contains("pg_dump"), "{done:?}");
    })
    .await;
}

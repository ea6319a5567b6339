//! `windlass migrate copy`: everything of a SQLite database on PostgreSQL.

use serde_json::{Value, json};

use crate::support::{CommandOutput, Fixture, Server, Work, on_postgres, windlass};

async fn copy(from: &Fixture, to: &Fixture) -> CommandOutput {
    windlass(&["--output", "json", "migrate", "copy", "--from", &from.url, "--to", &to.url]).await
}

fn json_of(output: CommandOutput) -> Value {
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).expect("the output is JSON")
}

async fn on(server: &Server, args: &[&str]) -> Value {
    json_of(windlass(&[&["--url", &server.url, "--output", "json"], args].concat()).await)
}

/// Jobs in several states, and an object of each group.
async fn fill(fixture: &Fixture) -> Vec<Value> {
    let mut server = Server::start(fixture).await;
    let mut work = Work::start(fixture, &server, "done", &[], "cat");
    let payload = r#"{"size": "größe", "nul": "\u0000", "number": 1.50}"#;
    for _ in 0..3 {
        on(&server, &["job", "push", "--queue", "done", "--kind", "k", "--payload", payload, "--wait"]).await;
    }
    on(&server, &["job", "push", "--queue", "later", "--kind", "k", "--in", "1h", "--tag", "t", "--unique-key", "u"])
        .await;
    on(&server, &["queue", "set", "later", "--concurrency", "3", "--rate-per-s", "0.1"]).await;
    let target = r#"{"job": {"queue": "later", "kind": "k"}}"#;
    let trigger = ["trigger", "create", "t", "--source", "http", "--target", target];
    let secret = r#"{"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}"#;
    on(&server, &[&trigger[..], &["--filter", secret]].concat()).await;
    on(&server, &["process", "set", "p", "--selector", r#"{"kind": "none"}"#, "--queue", "later", "--kind", "k"]).await;
    on(&server, &["subject", "set", "box", "os=linux", "up=true"]).await;
    on(&server, &["kv", "set", "c", "key", "[1, 2.5, null]"]).await;
    let state = state(&server).await;
    assert_eq!(work.terminate().await, Some(0));
    assert_eq!(server.program.terminate().await, Some(0));
    state
}

async fn state(server: &Server) -> Vec<Value> {
    let mut all = Vec::new();
    for command in [
        &["job", "list"][..],
        &["queue", "show", "later"],
        &["trigger", "show", "t"],
        &["process", "show", "p"],
        &["subject", "show", "box"],
        &["kv", "list", "c"],
    ] {
        all.push(on(server, command).await);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_database_serves_the_same_objects_and_new_ones() {
    on_postgres(async |to| {
        let from = Fixture::sqlite();
        let before = fill(&from).await;
        let copied = json_of(copy(&from, &to).await);
        assert_eq!(copied["findings"], json!([]), "{copied}");
        let rows = |name: &str| {
            let tables = copied["tables"].as_array().expect("a list");
            tables.iter().find(|table| table["name"] == name).map(|table| table["rows"].clone())
        };
        assert_eq!((rows("jobs"), rows("ended"), rows("triggers")), (Some(json!(1)), Some(json!(3)), Some(json!(1))));
        to.verify().await;
        // A second copy would mix two databases.
        let again = copy(&from, &to).await;
        assert!(again.code == Some(1) && again.stderr.contains("use an empty database"), "{again:?}");

        // The secrets in the database are sealed with the key file, which stays where it is.
        std::fs::create_dir_all(to.path("data")).expect("the folder is created");
        std::fs::copy(from.path("data/secret.key"), to.path("data/secret.key")).expect("the key is copied");
        let server = Server::start(&to).await;
        let after = state(&server).await;
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before, after);
        }
        // Numbers of sequences continue behind the copied ones.
        for queue in ["later", "new"] {
            on(&server, &["job", "push", "--queue", queue, "--kind", "other"]).await;
        }
        on(
            &server,
            &[
                "trigger",
                "create",
                "t2",
                "--source",
                "pubsub",
                "--filter",
                r#"{"topic": "t"}"#,
                "--target",
                r#"{"job": {"queue": "later", "kind": "k"}}"#,
            ],
        )
        .await;
        drop(server);
        to.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_copy_continues_and_one_of_another_database_is_refused() {
    on_postgres(async |to| {
        let from = Fixture::sqlite();
        fill(&from).await;
        let migrated = windlass(&["migrate", "up", "--database", &to.url]).await;
        assert_eq!(migrated.code, Some(0), "{migrated:?}");
        let instance = rusqlite::Connection::open(from.url.trim_start_matches("sqlite:"))
            .and_then(|file| file.query_row("select instance from installation", [], |row| row.get::<_, String>(0)))
            .expect("the installation has a name");
        // The state of a copy that was killed after the table `access` and the first row of `ended`.
        let tables = "select tablename from pg_tables where schemaname = 'windlass' and tablename not in \
                      ('schema_migrations', 'copy_progress')";
        to.sql(&format!(
            "delete from windlass.access; delete from windlass.installation; delete from windlass.service;
             delete from windlass.tenants; delete from windlass.trigger_clock;
             create table windlass.copy_progress (name text primary key, copied bigint not null, source text not null);
             insert into windlass.copy_progress select tablename, 0, 'another' from ({tables}) as t;"
        ))
        .await;
        let other = copy(&from, &to).await;
        assert!(other.code == Some(1) && other.stderr.contains("a copy of another database"), "{other:?}");
        to.sql(&format!("update windlass.copy_progress set source = '{instance}'")).await;
        let copied = json_of(copy(&from, &to).await);
        assert_eq!(copied["findings"], json!([]));
        to.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_needs_two_databases_that_are_not_in_use() {
    on_postgres(async |to| {
        let from = Fixture::sqlite();
        let missing = copy(&from, &to).await;
        assert!(missing.code == Some(1) && missing.stderr.contains("there is no database"), "{missing:?}");
        let wrong = copy(&to, &from).await;
        assert!(wrong.code == Some(2) && wrong.stderr.contains("--from must be a SQLite database"), "{wrong:?}");
        let server = Server::start(&from).await;
        let used = windlass(&["migrate", "copy", "--from", &from.url, "--to", &to.url]).await;
        assert!(used.code == Some(1) && used.stderr.contains("in use by another server"), "{used:?}");
        drop(server);
        let target = Server::start(&to).await;
        windlass(&["migrate", "up", "--database", &from.url]).await;
        let served = copy(&from, &to).await;
        assert!(served.code == Some(1) && served.stderr.contains("nodes are using the target"), "{served:?}");
        drop(target);
    })
    .await;
}

//! Tokens with the real binary: the first one is created on the machine while the server runs, from then on every
//! request needs one, and a revocation applies on every node.

use client::Client;
use serde_json::{Value, json};

use crate::support::{
    CommandOutput, Fixture, Program, Serve, Server, Work, ended, http, on_both, on_postgres, on_sqlite, push, windlass,
};

async fn run_local(fixture: &Fixture, args: &[&str]) -> CommandOutput {
    windlass(&[args, &["--database", &fixture.url, "--output", "json"]].concat()).await
}

async fn token(fixture: &Fixture, args: &[&str]) -> Value {
    let output = run_local(fixture, &[&["token", "create"], args].concat()).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).expect("stdout is JSON")
}

fn client(server: &Server, token: &Value) -> Client {
    let token = token["token"].as_str().expect("the response contains the token");
    Client::builder(&server.url).token(token).build().expect("the address is valid")
}

async fn status(url: &str, path: &str) -> u16 {
    http().get(format!("{url}{path}")).send().await.expect("the server responds").status().as_u16()
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_token_is_created_locally_and_closes_unauthenticated_access() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        push(&server.client(), "before", json!(1)).await;
        let admin = token(&fixture, &["--tenant", "default", "--role", "admin", "--name", "root"]).await;
        for path in ["/api/v1/jobs", "/", "/metrics", "/openapi.json", "/api/v1/nowhere"] {
            assert_eq!(status(&server.url, path).await, 401, "{path}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status(&server.url, path).await, 200, "{path}");
        }
        let admin = client(&server, &admin);
        assert_eq!(admin.queues(None).await.expect("an admin may read").items.len(), 1);

        let worker = token(&fixture, &["--role", "worker", "--name", "w", "--queue", "q"]).await;
        let producer = token(&fixture, &["--role", "producer", "--name", "p"]).await;
        let text = |token: &Value| token["token"].as_str().expect("the response contains the token").to_owned();
        let args = ["work", "--url", &server.url, "--queue", "q", "--", "cat"];
        let id = push(&client(&server, &producer), "q", json!({"a": 1})).await;
        let refused = windlass(&[&["--token", &text(&producer)], &args[..]].concat()).await;
        assert_eq!(refused.code, Some(3), "a producer may not work: {refused:?}");
        let _work = Work::start(&fixture, &server, "q", &["--token", &text(&worker)], "cat");
        let job = ended(&client(&server, &producer), id).await;
        assert_eq!(job.result.expect("the producer reads the result").get(), r#"{"a":1}"#);

        let listed = run_local(&fixture, &["token", "list"]).await;
        assert_eq!(listed.stdout.matches("\"role\"").count(), 3, "{listed:?}");
        assert!(!listed.stdout.contains("windlass_"), "a token is shown only once: {listed:?}");
        let id = producer["id"].as_str().expect("a token has an id");
        let missing = uuid::Uuid::nil().to_string();
        let revoked = run_local(&fixture, &["token", "revoke", &missing, id]).await;
        assert_eq!(revoked.code, Some(4), "{revoked:?}");
        assert!(revoked.stderr.contains(&missing), "the missing id is reported: {revoked:?}");
        let late = client(&server, &producer).queues(None).await.expect_err("the token was revoked");
        assert_eq!(late.status(), Some(401));
        fixture.verify().await;
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_revocation_on_one_node_applies_on_all_nodes() {
    on_postgres(async |fixture| {
        let nodes = [Server::start(&fixture).await, Server::start(&fixture).await];
        let admin = token(&fixture, &["--role", "admin", "--name", "root"]).await;
        for _ in 0..10 {
            let viewer = token(&fixture, &["--role", "viewer", "--name", "v"]).await;
            for node in &nodes {
                client(node, &viewer).queues(None).await.expect("a viewer may read");
            }
            let id = viewer["id"].as_str().and_then(|id| id.parse().ok()).expect("a token has an id");
            client(&nodes[0], &admin).revoke_token(id).await.expect("an admin may revoke");
            for node in &nodes {
                let error = client(node, &viewer).queues(None).await.expect_err("the token was revoked");
                assert_eq!(error.status(), Some(401));
            }
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn token_commands_create_no_database_and_require_an_explicit_target() {
    on_sqlite(async |fixture| {
        let create = ["token", "create", "--role", "admin", "--name", "root"];
        let missing = uuid::Uuid::nil().to_string();
        let commands: [&[&str]; 3] = [&create, &["token", "list"], &["token", "revoke", &missing]];
        for command in commands {
            let output = run_local(&fixture, command).await;
            assert_eq!(output.code, Some(1), "{output:?}");
            assert!(output.stderr.contains("there is no database at"), "{output:?}");
            let output = windlass(&[command, &["--url", "http://127.0.0.1:1"]].concat()).await;
            assert_eq!(output.code, Some(2), "{output:?}");
            assert!(
                output.stderr.contains("WINDLASS_TOKEN") && output.stderr.contains("--database"),
                "the error names both ways: {output:?}"
            );
        }
        assert_eq!(std::fs::read_dir(fixture.folder()).expect("the folder exists").count(), 0, "nothing was created");
        let mut here = Program::windlass(&fixture, create);
        assert_eq!(here.ended().await.code(), Some(1), "{}", here.stderr());
        assert!(!fixture.path("windlass.db").exists());
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_token_is_created_once() {
    on_both(async |fixture| {
        let file = fixture.path("bootstrap-token");
        let generated = windlass(&["token", "generate"]).await;
        std::fs::write(&file, &generated.stdout).expect("the folder is writable");
        let serve = || Serve::on(&fixture).env("WINDLASS_BOOTSTRAP_TOKEN_FILE", &file).start();
        let mut server = serve().await;
        assert_eq!(status(&server.url, "/api/v1/jobs").await, 401, "the server has a token");
        let admin = client(&server, &json!({ "token": generated.stdout.trim() }));
        let tokens = admin.tokens(None, None).await.expect("an admin may list tokens").items;
        assert_eq!(
            tokens.iter().map(|token| (&*token.name, &*token.role)).collect::<Vec<_>>(),
            [("bootstrap", "admin")]
        );
        admin.revoke_token(tokens[0].id).await.expect("an admin may revoke tokens");
        server.program.terminate().await;

        // A restart must not bring a revoked token back.
        let server = serve().await;
        assert_eq!(
            client(&server, &json!({ "token": generated.stdout.trim() }))
                .queues(None)
                .await
                .expect_err("revoked")
                .status(),
            Some(401)
        );
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_a_token_prevents_the_start() {
    on_sqlite(async |fixture| {
        let file = fixture.path("bootstrap-token");
        std::fs::write(&file, "hunter2").expect("the folder is writable");
        let ended = Serve::on(&fixture).env("WINDLASS_BOOTSTRAP_TOKEN_FILE", &file).try_start().await;
        let stderr = ended.err().expect("the server does not start").stderr();
        assert!(stderr.contains("windlass token generate") && !stderr.contains("hunter2"), "{stderr}");
    })
    .await;
}

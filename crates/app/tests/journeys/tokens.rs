//! X7 with the real program: the first token is made on the machine, beside a running server; from then on nothing is
//! answered without one, and a revocation is heard by every node.

use client::Client;
use serde_json::{Value, json};

use crate::support::{
    Done, Place, Program, Server, Work, ended, http, on_both, on_postgres, on_sqlite, push, windlass,
};

async fn machine(place: &Place, args: &[&str]) -> Done {
    windlass(&[args, &["--database", &place.url, "--output", "json"]].concat()).await
}

async fn token(place: &Place, args: &[&str]) -> Value {
    let done = machine(place, &[&["token", "create"], args].concat()).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("the answer is JSON")
}

fn client(server: &Server, token: &Value) -> Client {
    let token = token["token"].as_str().expect("the text is shown");
    Client::builder(&server.url).token(token).build().expect("the address is valid")
}

async fn status(url: &str, path: &str) -> u16 {
    http().get(format!("{url}{path}")).send().await.expect("an answer comes").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_the_first_token_comes_from_the_machine_and_shuts_every_door() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        push(&server.client(), "before", json!(1)).await;
        let admin = token(&place, &["--tenant", "default", "--role", "admin", "--name", "root"]).await;
        for path in ["/api/v1/jobs", "/", "/metrics", "/openapi.json", "/api/v1/nowhere"] {
            assert_eq!(status(&server.url, path).await, 401, "{path}");
        }
        for path in ["/healthz", "/readyz"] {
            assert_eq!(status(&server.url, path).await, 200, "{path}");
        }
        let admin = client(&server, &admin);
        assert_eq!(admin.queues(None).await.expect("an admin looks").items.len(), 1);

        let worker = token(&place, &["--role", "worker", "--name", "w", "--queue", "q"]).await;
        let producer = token(&place, &["--role", "producer", "--name", "p"]).await;
        let text = |token: &Value| token["token"].as_str().expect("the text is shown").to_owned();
        let args = ["work", "--url", &server.url, "--queue", "q", "--", "cat"];
        let id = push(&client(&server, &producer), "q", json!({"a": 1})).await;
        let refused = windlass(&[&["--token", &text(&producer)], &args[..]].concat()).await;
        assert_eq!(refused.code, Some(3), "a producer does not work: {refused:?}");
        let _work = Work::start(&place, &server, "q", &["--token", &text(&worker)], "cat");
        let job = ended(&client(&server, &producer), id).await;
        assert_eq!(job.result.expect("its maker reads the result").get(), r#"{"a":1}"#);

        let listed = machine(&place, &["token", "list"]).await;
        assert_eq!(listed.stdout.matches("\"role\"").count(), 3, "{listed:?}");
        assert!(!listed.stdout.contains("windlass_"), "a text is shown once: {listed:?}");
        let id = producer["id"].as_str().expect("a token has an id");
        let nobody = uuid::Uuid::nil().to_string();
        let revoked = machine(&place, &["token", "revoke", &nobody, id]).await;
        assert_eq!(revoked.code, Some(4), "{revoked:?}");
        assert!(revoked.stderr.contains(&nobody), "the one that is not there is named: {revoked:?}");
        let late = client(&server, &producer).queues(None).await.expect_err("it was revoked");
        assert_eq!(late.status(), Some(401));
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_a_revocation_through_one_node_is_heard_by_the_others() {
    on_postgres(async |place| {
        let nodes = [Server::start(&place).await, Server::start(&place).await];
        let admin = token(&place, &["--role", "admin", "--name", "root"]).await;
        for _ in 0..10 {
            let viewer = token(&place, &["--role", "viewer", "--name", "v"]).await;
            for node in &nodes {
                client(node, &viewer).queues(None).await.expect("a viewer looks");
            }
            let id = viewer["id"].as_str().and_then(|id| id.parse().ok()).expect("a token has an id");
            client(&nodes[0], &admin).revoke_token(id).await.expect("an admin revokes");
            for node in &nodes {
                let error = client(node, &viewer).queues(None).await.expect_err("it was revoked");
                assert_eq!(error.status(), Some(401));
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_a_token_makes_no_database_and_is_not_made_in_another_than_was_meant() {
    on_sqlite(async |place| {
        let create = ["token", "create", "--role", "admin", "--name", "root"];
        let nobody = uuid::Uuid::nil().to_string();
        let commands: [&[&str]; 3] = [&create, &["token", "list"], &["token", "revoke", &nobody]];
        for command in commands {
            let done = machine(&place, command).await;
            assert_eq!(done.code, Some(1), "{done:?}");
            assert!(done.stderr.contains("there is no database at"), "{done:?}");
            let done = windlass(&[command, &["--url", "http://127.0.0.1:1"]].concat()).await;
            assert_eq!(done.code, Some(2), "{done:?}");
            assert!(
                done.stderr.contains("WINDLASS_TOKEN") && done.stderr.contains("--database"),
                "both ways: {done:?}"
            );
        }
        assert_eq!(std::fs::read_dir(place.folder()).expect("the folder is there").count(), 0, "nothing was made");
        let mut here = Program::windlass(&place, create);
        assert_eq!(here.ended().await.code(), Some(1), "{}", here.stderr());
        assert!(!place.path("windlass.db").exists());
    })
    .await;
}

//! The command line as people and scripts use it: answers, exit codes, and the commands that open a database themselves.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{Done, Place, Server, Work, on_both, on_postgres, on_sqlite, windlass};

struct Cli<'a>(&'a Server);

impl Cli<'_> {
    async fn run(&self, args: &[&str]) -> Done {
        windlass(&[&["--url", &self.0.url], args].concat()).await
    }

    /// The answer of a command that succeeds, as JSON.
    async fn json(&self, args: &[&str]) -> Value {
        json_of(self.run(&[&["--output", "json"], args].concat()).await)
    }
}

fn json_of(done: Done) -> Value {
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {}", done.stdout))
}

#[tokio::test(flavor = "multi_thread")]
async fn q5_push_and_wait_prints_the_result_and_nothing_else() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let cli = Cli(&server);
        let _work = Work::start(&place, &server, "q", &[], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--payload", r#"{"a":[1]}"#, "--wait"];
        let done = cli.run(&push).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(serde_json::from_str::<Value>(&done.stdout).ok(), Some(json!({ "a": [1] })), "{done:?}");
        let job = cli.json(&push).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q5_exit_codes_tell_a_script_what_happened() {
    on_both(async |place| {
        let mut server = Server::start(&place).await;
        let _work = Work::start(&place, &server, "fails", &[], "echo 'no good' >&2; exit 65");
        let _work = Work::start(&place, &server, "works", &[], "echo 1");
        let nobody = Uuid::nil().to_string();
        let push = |queue| ["job", "push", "--queue", queue, "--kind", "k", "--wait"];
        let cli = Cli(&server);

        let failed = cli.run(&push("fails")).await;
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.contains("exit_65: no good"), "{failed:?}");
        assert_eq!(cli.run(&["job", "push", "--queue", "q", "--kind", "k", "--payload", "{"]).await.code, Some(2));
        assert_eq!(cli.run(&["job", "push", "--queue", "no spaces", "--kind", "k"]).await.code, Some(3));
        let succeeded = cli.json(&push("works")).await;
        let id = succeeded["id"].as_str().expect("a job has an id");
        assert_eq!(cli.run(&["job", "cancel", id]).await.code, Some(3), "it has ended");
        assert_eq!(cli.run(&["job", "get", &nobody]).await.code, Some(4));
        let late = cli.run(&[&push("nobody-works-here")[..], &["--wait-timeout", "1s"]].concat()).await;
        assert_eq!(late.code, Some(6), "{late:?}");

        assert_eq!(server.program.terminate().await, Some(0));
        let down = Cli(&server).run(&["job", "get", id]).await;
        assert_eq!(down.code, Some(5), "{down:?}");
        assert_eq!(down.stderr.lines().count(), 1, "one sentence: {}", down.stderr);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q13_every_answer_is_there_as_json_and_as_a_table() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let cli = Cli(&server);
        let _work = Work::start(&place, &server, "q", &["--name", "a-worker"], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--payload", "7", "--wait"];
        let done = cli.json(&push).await;
        let done = done["id"].as_str().expect("a job has an id");
        let waiting = cli.json(&["job", "push", "--queue", "later", "--kind", "k", "--in", "1h"]).await;
        let waiting = waiting["id"].as_str().expect("a job has an id");

        assert_eq!(cli.json(&["job", "get", done]).await["result"], json!(7));
        assert_eq!(cli.json(&["job", "list", "--queue", "q"]).await["items"][0]["id"], json!(done));
        assert_eq!(cli.json(&["job", "why", waiting]).await["reason"], json!("not_due"));
        assert_eq!(cli.json(&["job", "watch", done]).await["state"], json!("succeeded"));
        let history = cli.json(&["job", "history", done]).await;
        let events: Vec<_> = history["items"].as_array().expect("a list").iter().map(|item| &item["event"]).collect();
        assert_eq!((events.first(), events.last()), (Some(&&json!("enqueued")), Some(&&json!("finished"))));
        assert_eq!(cli.json(&["worker", "list"]).await["items"][0]["name"], json!("a-worker"));
        let queues = cli.json(&["queue", "list"]).await;
        assert_eq!(queues["items"].as_array().expect("a list").len(), 2, "{queues}");
        assert_eq!(cli.json(&["queue", "pause", "q", "--reason", "tea"]).await["paused_reason"], json!("tea"));
        assert_eq!(cli.json(&["queue", "resume", "q"]).await["paused"], json!(false));
        let retried = cli.json(&["job", "retry", done]).await;
        let retried = retried["id"].as_str().expect("a job has an id");
        assert_eq!(cli.json(&["job", "watch", retried]).await["parent"], json!(done));
        assert_eq!(cli.json(&["job", "cancel", waiting]).await["state"], json!("canceled"));

        let tables: [&[&str]; 7] = [
            &["job", "get", done],
            &["job", "list"],
            &["job", "why", done],
            &["job", "history", done],
            &["job", "artifacts", done],
            &["queue", "list"],
            &["worker", "list"],
        ];
        for command in tables {
            let done = cli.run(command).await;
            assert_eq!(done.code, Some(0), "{done:?}");
            assert!(!done.stdout.contains('\u{1b}'), "no colour where nobody sees it: {done:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x14_verify_doctor_and_migrate_speak_of_a_live_and_of_a_stopped_database() {
    on_both(async |place: Place| {
        let mut server = Server::start(&place).await;
        let work = Work::start(&place, &server, "q", &[], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--wait"];
        assert_eq!(Cli(&server).run(&push).await.code, Some(0));
        for state in ["live", "stopped"] {
            let with = |command: &[&'static str]| {
                let mut args: Vec<String> =
                    ["--output", "json"].iter().chain(command).map(ToString::to_string).collect();
                args.extend(["--database".into(), place.url.clone()]);
                args
            };
            let verdict = json_of(windlass(&with(&["verify"])).await);
            assert_eq!(verdict["findings"], json!([]), "{state}");
            assert!(verdict["checks"].as_u64() >= Some(10), "{state}: {verdict}");
            let migrations = json_of(windlass(&with(&["migrate", "status"])).await);
            assert!(migrations[0]["applied_at"].is_string(), "{state}: {migrations}");
            let advice = windlass(&with(&["doctor"])).await;
            let advice: Value = serde_json::from_str(&advice.stdout).expect("advice is JSON");
            let schema = advice.as_array().expect("a list").iter().find(|item| item["about"] == "schema");
            assert_eq!(schema.expect("the schema is looked at")["level"], json!("ok"), "{state}: {advice}");
            let looked_at = if place.is_postgres() {
                &["clock", "transactions", "xmin", "size", "WAL"][..]
            } else {
                &["disk", "WAL"]
            };
            for about in looked_at {
                assert!(
                    advice.as_array().expect("a list").iter().any(|item| item["about"] == *about),
                    "{about}: {advice}"
                );
            }
            if state == "live" {
                assert_eq!(server.program.terminate().await, Some(0));
            }
        }
        drop(work);

        // A promise that is broken is told, with the row that breaks it.
        let table = if place.is_postgres() { "windlass.ended" } else { "ended" };
        place.sql(&format!("update {table} set worker = null")).await;
        let broken = windlass(&["verify", "--database", &place.url]).await;
        assert_eq!(broken.code, Some(1), "{broken:?}");
        assert!(broken.stdout.contains("BROKEN: an ended job is final and complete (1 rows)"), "{broken:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_the_schema_goes_down_and_up_again() {
    on_both(async |place| {
        let migrate = async |args: &[&str]| windlass(&[&["migrate"], args, &["--database", &place.url]].concat()).await;
        let up = migrate(&["up"]).await;
        assert!(up.stdout.starts_with("Applied migration 1"), "{up:?}");
        assert!(migrate(&["up"]).await.stdout.contains("up to date"));
        assert_eq!(migrate(&["down", "--to", "0"]).await.code, Some(2), "not without --yes");
        let down = migrate(&["down", "--to", "0", "--yes"]).await;
        assert!(down.stdout.starts_with("Undid migration"), "{down:?}");
        let server = Server::start(&place).await;
        crate::support::push(&server.client(), "q", json!(1)).await;
    })
    .await;
}

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
    only("embedded", "drain100k,drain_of_1M,drain_retained1M,drain_parked1M").await;
    only("http", "signals1M,streams5k,subjects100k").await;
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
async fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let done = windlass(&["completions", shell]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout.contains("windlass"), "{shell}");
    }
}

//! The command line: output, exit codes, and commands that open a database themselves.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    CommandOutput, Fixture, Serve, Server, Work, eventually, failed_start, free_port, on_both, on_postgres, on_sqlite,
    windlass, windlass_with, windlass_with_open_stdin,
};

struct Cli<'a>(&'a Server);

impl Cli<'_> {
    async fn run(&self, args: &[&str]) -> CommandOutput {
        windlass(&[&["--url", &self.0.url], args].concat()).await
    }

    /// Runs a command that must succeed, and returns its JSON output.
    async fn json(&self, args: &[&str]) -> Value {
        json_of(self.run(&[&["--output", "json"], args].concat()).await)
    }
}

fn json_of(output: CommandOutput) -> Value {
    assert_eq!(output.code, Some(0), "{output:?}");
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
}

/// Requirement Q5.
#[tokio::test(flavor = "multi_thread")]
async fn push_with_wait_prints_only_the_result() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let cli = Cli(&server);
        let _work = Work::start(&fixture, &server, "q", &[], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--payload", r#"{"a":[1]}"#, "--wait"];
        let output = cli.run(&push).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        assert_eq!(serde_json::from_str::<Value>(&output.stdout).ok(), Some(json!({ "a": [1] })), "{output:?}");
        let job = cli.json(&push).await;
        assert_eq!((&job["state"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    })
    .await;
}

/// Requirement Q5.
#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_distinguish_failures_rejections_and_outages() {
    on_both(async |fixture| {
        // A port that no other program gets after the server stops.
        let mut server = Serve::on(&fixture).port(free_port()).start().await;
        let _work = Work::start(&fixture, &server, "fails", &[], "echo 'no good' >&2; exit 65");
        let _work = Work::start(&fixture, &server, "works", &[], "echo 1");
        let missing = Uuid::nil().to_string();
        let push = |queue| ["job", "push", "--queue", queue, "--kind", "k", "--wait"];
        let cli = Cli(&server);

        let failed = cli.run(&push("fails")).await;
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.contains("exit_65: no good"), "{failed:?}");
        assert_eq!(cli.run(&["job", "push", "--queue", "q", "--kind", "k", "--payload", "{"]).await.code, Some(2));
        assert_eq!(cli.run(&["job", "push", "--queue", "no spaces", "--kind", "k"]).await.code, Some(3));
        let succeeded = cli.json(&push("works")).await;
        let id = succeeded["id"].as_str().expect("a job has an id");
        assert_eq!(cli.run(&["job", "cancel", id]).await.code, Some(3), "the job has ended");
        assert_eq!(cli.run(&["job", "get", &missing]).await.code, Some(4));
        for verb in ["show", "disable", "delete", "fire"] {
            for trigger in ["no-such-trigger", &missing] {
                assert_eq!(cli.run(&["trigger", verb, trigger]).await.code, Some(4), "{verb} {trigger}");
            }
        }
        // A missing id does not stop the command for the others, and each missing id is reported.
        let other = Uuid::from_u128(7).to_string();
        for command in [["job", "cancel"], ["worker", "drain"], ["worker", "remove"], ["delivery", "redeliver"]] {
            let not_found = cli.run(&[&command[..], &[missing.as_str(), other.as_str()]].concat()).await;
            assert_eq!((not_found.code, not_found.stderr.lines().count()), (Some(4), 2), "{not_found:?}");
            assert!(not_found.stderr.contains(&missing) && not_found.stderr.contains(&other), "{not_found:?}");
        }
        let elsewhere = format!("{}/elsewhere", server.url);
        let wrong_url = windlass(&["--url", &elsewhere, "job", "get", &missing]).await;
        assert_eq!(wrong_url.code, Some(2), "the URL is wrong, not the id: {wrong_url:?}");
        let late = cli.run(&[&push("no-worker-here")[..], &["--wait-timeout", "1s"]].concat()).await;
        assert_eq!(late.code, Some(6), "{late:?}");

        assert_eq!(server.program.terminate().await, Some(0));
        let down = Cli(&server).run(&["job", "get", id]).await;
        assert_eq!(down.code, Some(5), "{down:?}");
        assert_eq!(down.stderr.lines().count(), 1, "one sentence: {}", down.stderr);
    })
    .await;
}

/// Requirement X10.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_numbers_are_rejected_before_any_request() {
    for command in [
        &["queue", "set", "q", "--rate-per-s", "nan"][..],
        &["queue", "set", "q", "--rate-per-s", "inf"],
        &["job", "push", "--queue", "q", "--kind", "k", "--retry-exponent", "nan"],
        &["signature", "create", "--kind", "k", "--confidence", "nan"],
        &["serve", "--trigger-retry-jitter", "nan"],
        &["work", "--queue", "q", "--concurrency", "0", "--", "cat"],
    ] {
        let refused = windlass(command).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains("invalid value"), "{refused:?}");
    }
}

/// Requirement Q9.
#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_upload_does_not_wait_for_the_end_of_stdin() {
    on_sqlite(async |fixture| {
        let server = Server::start(&fixture).await;
        let missing = Uuid::nil().to_string();
        let put = ["job", "artifact", "put", "--url", &server.url, &missing, "report"];
        let refused = windlass_with_open_stdin(&put).await;
        assert_eq!(refused.code, Some(4), "{refused:?}");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_secret_in_the_environment_is_ignored_without_a_webhook() {
    on_sqlite(async |fixture| {
        let server = Server::start(&fixture).await;
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
        let env = [("WINDLASS_WEBHOOK_SECRET", secret), ("WINDLASS_URL", server.url.as_str())];
        let push = ["job", "push", "--queue", "q", "--kind", "k"];
        let pushed = windlass_with(&env, &push).await;
        assert_eq!(pushed.code, Some(0), "{pushed:?}");
        let set = windlass_with(&env, &["queue", "set", "q", "--concurrency", "2"]).await;
        assert_eq!(set.code, Some(0), "{set:?}");
        for command in [&push[..], &["queue", "set", "q"]] {
            let alone = Cli(&server).run(&[command, &["--webhook-secret", secret]].concat()).await;
            assert_eq!(alone.code, Some(2), "{alone:?}");
            assert!(alone.stderr.contains("--webhook URL"), "the error says what to do: {alone:?}");
        }
    })
    .await;
}

/// Requirement Q12.
#[tokio::test(flavor = "multi_thread")]
async fn pausing_a_missing_queue_reports_that_it_was_created() {
    on_sqlite(async |fixture| {
        let server = Server::start(&fixture).await;
        let cli = Cli(&server);
        let made = cli.run(&["queue", "pause", "maill"]).await;
        assert_eq!((made.code, made.stderr.trim()), (Some(0), "Created queue maill."));
        let again = cli.run(&["queue", "pause", "maill"]).await;
        assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_environment_variable_counts_as_unset() {
    on_sqlite(async |fixture| {
        let serve = Serve::on(&fixture).env("WINDLASS_TLS_CERT", "").env("WINDLASS_ALLOW_PRIVATE", "");
        let server = serve.env("WINDLASS_ENGINE_SLOTS", "").env("WINDLASS_CONFIG", "").start().await;
        let list = ["--url", &server.url, "queue", "list"];
        let output = windlass_with(&[("WINDLASS_TOKEN", ""), ("WINDLASS_CA", "")], &list).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        // A required setting is reported as missing.
        let agent = windlass_with(&[("WINDLASS_DATABASE", "")], &["agent"]).await;
        assert!(agent.code == Some(2) && agent.stderr.contains("--database"), "{agent:?}");
    })
    .await;
}

/// Requirement Q13.
#[tokio::test(flavor = "multi_thread")]
async fn every_command_prints_json_and_a_table() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let cli = Cli(&server);
        let _work = Work::start(&fixture, &server, "q", &["--name", "a-worker"], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--payload", "7", "--wait"];
        let ended = cli.json(&push).await;
        let ended = ended["id"].as_str().expect("a job has an id");
        let waiting = cli.json(&["job", "push", "--queue", "later", "--kind", "k", "--in", "1h"]).await;
        let waiting = waiting["id"].as_str().expect("a job has an id");

        assert_eq!(cli.json(&["job", "get", ended]).await["result"], json!(7));
        assert_eq!(cli.json(&["job", "list", "--queue", "q"]).await["items"][0]["id"], json!(ended));
        assert_eq!(cli.json(&["job", "why", waiting]).await["reason"], json!("not_due"));
        assert_eq!(cli.json(&["job", "watch", ended]).await["state"], json!("succeeded"));
        let history = cli.json(&["job", "history", ended]).await;
        let events: Vec<_> = history["items"].as_array().expect("a list").iter().map(|item| &item["event"]).collect();
        assert_eq!((events.first(), events.last()), (Some(&&json!("enqueued")), Some(&&json!("finished"))));
        assert_eq!(cli.json(&["worker", "list"]).await["items"][0]["name"], json!("a-worker"));
        let queues = cli.json(&["queue", "list"]).await;
        assert_eq!(queues["items"].as_array().expect("a list").len(), 2, "{queues}");
        assert_eq!(cli.json(&["queue", "pause", "q", "--reason", "tea"]).await["paused_reason"], json!("tea"));
        assert_eq!(cli.json(&["queue", "resume", "q"]).await["paused"], json!(false));
        let retried = cli.json(&["job", "retry", ended]).await;
        let retried = retried["id"].as_str().expect("a job has an id");
        assert_eq!(cli.json(&["job", "watch", retried]).await["parent"], json!(ended));
        assert_eq!(cli.json(&["job", "cancel", waiting]).await["state"], json!("canceled"));

        let selector = r#"{"all": [{"fact": "os", "exists": true}]}"#;
        cli.json(&["process", "set", "patch", "--selector", selector, "--queue", "q", "--kind", "k"]).await;
        assert_eq!(cli.json(&["process", "delete", "patch"]).await, json!({"name": "patch", "deleted": true}));
        cli.json(&["subject", "set", "box", "os=linux"]).await;
        cli.json(&["subject", "lockout", "box", "--cause", "tea"]).await;
        let released = json!({"subject": "box", "process": "*", "released": true});
        assert_eq!(cli.json(&["subject", "release", "box"]).await, released);
        let credential = cli.json(&["subject", "credential", "box"]).await;
        let token = credential["token"].as_str().expect("a credential is a token");
        let reported = cli.json(&["--token", token, "subject", "report", "box", "os=bsd", "up=true"]).await;
        assert_eq!(reported, json!({"id": "box", "reported": ["os", "up"]}));
        assert_eq!(cli.json(&["subject", "delete", "box"]).await, json!({"id": "box", "deleted": true}));
        let target = r#"{"job": {"queue": "later", "kind": "k"}}"#;
        let create =
            ["trigger", "create", "t", "--source", "pubsub", "--filter", r#"{"topic": "t"}"#, "--target", target];
        let made = cli.json(&create).await;
        let deleted = json!({"id": made["id"], "name": "t", "deleted": true});
        assert_eq!(cli.json(&["trigger", "delete", "t"]).await, deleted);

        let tables: [&[&str]; 7] = [
            &["job", "get", ended],
            &["job", "list"],
            &["job", "why", ended],
            &["job", "history", ended],
            &["job", "artifacts", ended],
            &["queue", "list"],
            &["worker", "list"],
        ];
        for command in tables {
            let output = cli.run(command).await;
            assert_eq!(output.code, Some(0), "{output:?}");
            assert!(!output.stdout.contains('\u{1b}'), "no colors without a terminal: {output:?}");
        }
    })
    .await;
}

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn verify_doctor_and_migrate_work_on_a_live_and_a_stopped_database() {
    on_both(async |fixture: Fixture| {
        let mut server = Server::start(&fixture).await;
        let work = Work::start(&fixture, &server, "q", &[], "cat");
        let push = ["job", "push", "--queue", "q", "--kind", "k", "--wait"];
        assert_eq!(Cli(&server).run(&push).await.code, Some(0));
        for state in ["live", "stopped"] {
            let with = |command: &[&'static str]| {
                let mut args: Vec<String> =
                    ["--output", "json"].iter().chain(command).map(ToString::to_string).collect();
                args.extend(["--database".into(), fixture.url.clone()]);
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
            assert_eq!(schema.expect("the schema is checked")["level"], json!("ok"), "{state}: {advice}");
            let checked = if fixture.is_postgres() {
                // The role of the tests is a superuser.
                assert!(advice.to_string().contains("bypasses row-level security"), "{advice}");
                &["clock", "transactions", "xmin", "size", "WAL"][..]
            } else {
                &["disk", "WAL"]
            };
            for about in checked {
                assert!(
                    advice.as_array().expect("a list").iter().any(|item| item["about"] == *about),
                    "{about}: {advice}"
                );
            }
            if state == "live" {
                if !fixture.is_postgres() {
                    let up = windlass(&with(&["migrate", "up"])).await;
                    assert_eq!(up.code, Some(1), "{up:?}");
                    assert!(up.stderr.contains("in use by another server"), "{up:?}");
                }
                assert_eq!(server.program.terminate().await, Some(0));
            }
        }
        drop(work);

        // `verify` reports a violated invariant with the row that violates it.
        let table = if fixture.is_postgres() { "windlass.ended" } else { "ended" };
        fixture.sql(&format!("update {table} set worker = null")).await;
        let broken = windlass(&["verify", "--database", &fixture.url]).await;
        assert_eq!(broken.code, Some(1), "{broken:?}");
        assert!(broken.stdout.contains("BROKEN: an ended job is final and complete (1 row)"), "{broken:?}");
    })
    .await;
}

/// Requirement Q12.
#[tokio::test(flavor = "multi_thread")]
async fn an_unnamed_tenant_limit_is_unchanged_and_listed() {
    on_both(async |fixture| {
        let on = async |args: &[&str]| {
            json_of(windlass(&[args, &["--database", &fixture.url, "--output", "json"]].concat()).await)
        };
        windlass(&["migrate", "up", "--database", &fixture.url]).await;
        assert_eq!(on(&["tenant", "create", "small"]).await["weight"], json!(1));
        on(&["tenant", "set", "small", "--waiting-jobs", "10", "--jobs-per-s", "2.5"]).await;
        let set = on(&["tenant", "set", "small", "--weight", "3", "--unset", "jobs_per_s"]).await;
        let limits = |tenant: &Value| json!([tenant["waiting_jobs"], tenant["jobs_per_s"], tenant["weight"]]);
        assert_eq!(limits(&set), json!([10, null, 3]));
        let listed = on(&["tenant", "list"]).await;
        let small = listed["items"].as_array().expect("a list").iter().find(|tenant| tenant["name"] == "small");
        assert_eq!(small, Some(&set));
        let table = windlass(&["tenant", "list", "--database", &fixture.url]).await;
        let line = table.stdout.lines().find(|line| line.starts_with("small")).expect("the tenant is listed");
        assert_eq!(
            line.split_whitespace().rev().take(6).collect::<Vec<_>>(),
            ["3", "none", "none", "none", "none", "10"]
        );
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_or_reset_of_the_secret_key_is_reported_as_json() {
    on_both(async |fixture| {
        let folder = fixture.folder().display().to_string();
        let on = async |args: &[&str]| {
            let database = ["--database", &fixture.url, "--data-dir", &folder, "--output", "json"];
            json_of(windlass(&[args, &database].concat()).await)
        };
        windlass(&["migrate", "up", "--database", &fixture.url]).await;
        let rotated = on(&["secret", "rotate"]).await;
        assert_eq!(rotated["rotated"], json!(true));
        assert!(rotated["tenant_keys"].is_u64(), "{rotated}");
        let reset = on(&["secret", "reset", "--yes"]).await;
        assert_eq!(reset["reset"], json!(true));
        assert!(reset["tenant_keys"].is_u64(), "{reset}");
    })
    .await;
}

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn read_commands_do_not_create_a_missing_database() {
    on_sqlite(async |fixture| {
        let copy = fixture.path("copy.db").display().to_string();
        let commands: [&[&str]; 6] = [
            &["verify"],
            &["doctor"],
            &["backup", &copy],
            &["migrate", "status"],
            &["tenant", "list"],
            &["secret", "rotate"],
        ];
        for command in commands {
            let output = windlass(&[command, &["--database", &fixture.url]].concat()).await;
            assert_eq!(output.code, Some(1), "{output:?}");
            let text = format!("{}{}", output.stdout, output.stderr);
            assert!(text.contains("there is no database at"), "{command:?}: {text}");
        }
        assert_eq!(std::fs::read_dir(fixture.folder()).expect("the folder exists").count(), 0, "nothing was created");
    })
    .await;
}

/// Requirement X14.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_without_its_schema_is_reported_in_one_sentence() {
    on_both(async |fixture| {
        let on = async |args: &[&str]| windlass(&[args, &["--database", &fixture.url]].concat()).await;
        let create = ["token", "create", "--role", "admin", "--name", "root"];
        assert_eq!(on(&["migrate", "up"]).await.code, Some(0));
        for (version, sentence) in [("1", "migrations are pending"), ("0", "the database has no schema yet")] {
            let down = on(&["migrate", "down", "--yes", "--to", version]).await;
            assert_eq!(down.code, Some(0), "{down:?}");
            // The first token can be created before the first start. All other commands wait for the migration.
            let token = if version == "1" { &create[..] } else { &["token", "list"] };
            for command in [&["verify"][..], &["tenant", "list"], &["token", "list"], token] {
                let refused = on(command).await;
                assert_eq!((refused.code, refused.stderr.lines().count()), (Some(1), 1), "{command:?} {refused:?}");
                assert!(refused.stderr.contains(sentence), "{command:?} {refused:?}");
            }
            if fixture.is_postgres() {
                continue;
            }
            // A backup before an upgrade is made, with the note that it was not verified. An empty database has no
            // backup.
            let copy = fixture.path(&format!("copy-{version}.db"));
            let output = on(&["backup", &copy.display().to_string()]).await;
            assert!(output.stderr.contains(sentence), "{output:?}");
            assert_eq!((output.code == Some(0), copy.exists()), (version == "1", version == "1"), "{output:?}");
        }
        assert_eq!(on(&create).await.code, Some(0));
        fixture.verify().await;
    })
    .await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn only_serve_refuses_a_database_that_is_not_durable() {
    on_postgres(async |fixture| {
        fixture.admin_sql("alter database $database set synchronous_commit to off").await;
        let on = async |args: &[&str]| windlass(&[args, &["--database", &fixture.url]].concat()).await;
        let commands: [&[&str]; 5] =
            [&["migrate", "up"], &["migrate", "status"], &["verify"], &["tenant", "list"], &["token", "list"]];
        for command in commands {
            let output = on(command).await;
            assert_eq!(output.code, Some(0), "{command:?} {output:?}");
        }
        let advice = on(&["doctor"]).await;
        assert_eq!(advice.code, Some(1), "{advice:?}");
        assert!(advice.stdout.contains("synchronous_commit is off"), "{advice:?}");
        let serve = failed_start(fixture.folder(), &["--listen", "127.0.0.1:0", "--database", &fixture.url]).await;
        assert!(serve.code == Some(1) && serve.stderr.contains("--unsafe"), "{serve:?}");
    })
    .await;
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_migrates_down_and_up_again() {
    on_both(async |fixture| {
        let migrate =
            async |args: &[&str]| windlass(&[&["migrate"], args, &["--database", &fixture.url]].concat()).await;
        let up = migrate(&["up"]).await;
        assert!(up.stdout.starts_with("Applied migration 1"), "{up:?}");
        assert!(migrate(&["up"]).await.stdout.contains("up to date"));
        assert_eq!(migrate(&["down", "--to", "0"]).await.code, Some(2), "--yes is required");
        let down = migrate(&["down", "--to", "0", "--yes"]).await;
        assert!(down.stdout.starts_with("Reverted migration"), "{down:?}");
        let server = Server::start(&fixture).await;
        crate::support::push(&server.client(), "q", json!(1)).await;
    })
    .await;
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn the_schema_does_not_migrate_down_under_a_running_server() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        if fixture.is_postgres() {
            // `migrate down` finds running servers by their heartbeats, and a new server has sent none yet.
            eventually("the server sends a heartbeat", async || {
                let running = fixture.count("select count(*) from windlass.service where beat_at > since").await;
                (running > 0).then_some(())
            })
            .await;
        }
        let down = windlass(&["migrate", "down", "--to", "0", "--yes", "--database", &fixture.url]).await;
        assert_eq!(down.code, Some(1), "{down:?}");
        assert!(!fixture.is_postgres() || down.stderr.contains("stop all of them"), "{down:?}");
        crate::support::push(&server.client(), "q", json!(1)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_shell_has_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = windlass(&["completions", shell]).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        assert!(output.stdout.contains("windlass"), "{shell}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ping_reports_whether_the_server_is_ready() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let ready = windlass(&["ping", "--url", &server.url, "--output", "json"]).await;
        assert_eq!(json_of(ready), json!({ "ready": true }));
    })
    .await;
    let down = windlass(&["ping", "--url", "http://127.0.0.1:1", "--wait", "300ms"]).await;
    assert_eq!(down.code, Some(5), "{down:?}");
    assert!(down.stderr.contains("cannot reach http://127.0.0.1:1"), "{down:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_has_a_manual_page() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = windlass(&["man", directory.path().to_str().expect("a UTF-8 path")]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    let page = std::fs::read_to_string(directory.path().join("windlass-job-push.1")).expect("the page of job push");
    assert!(page.contains("windlass\\-job\\-push") && page.contains("\\-\\-payload"), "{page}");
}

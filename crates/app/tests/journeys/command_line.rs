//! The command line as people and scripts use it: answers, exit codes, and the commands that open a database themselves.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::{
    Done, Place, Serve, Server, Work, free_port, on_both, on_postgres, on_sqlite, refused, windlass,
    windlass_at_a_terminal, windlass_with,
};

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
        // On a port that nobody else gets once it is gone.
        let mut server = Serve::on(&place).port(free_port()).start().await;
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
        for verb in ["show", "disable", "delete", "fire"] {
            for trigger in ["no-such-trigger", &nobody] {
                assert_eq!(cli.run(&["trigger", verb, trigger]).await.code, Some(4), "{verb} {trigger}");
            }
        }
        // One that is not there keeps none of the others back, and each is named.
        let other = Uuid::from_u128(7).to_string();
        for command in [["job", "cancel"], ["worker", "remove"], ["delivery", "redeliver"]] {
            let lost = cli.run(&[&command[..], &[nobody.as_str(), other.as_str()]].concat()).await;
            assert_eq!((lost.code, lost.stderr.lines().count()), (Some(4), 2), "{lost:?}");
            assert!(lost.stderr.contains(&nobody) && lost.stderr.contains(&other), "{lost:?}");
        }
        let elsewhere = format!("{}/elsewhere", server.url);
        let lost = windlass(&["--url", &elsewhere, "job", "get", &nobody]).await;
        assert_eq!(lost.code, Some(2), "the address is wrong, not the id: {lost:?}");
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
async fn x10_numbers_that_are_none_are_refused_before_anything_is_asked() {
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

#[tokio::test(flavor = "multi_thread")]
async fn q9_an_upload_that_is_refused_does_not_wait_for_the_end_of_stdin() {
    on_sqlite(async |place| {
        let server = Server::start(&place).await;
        let nobody = Uuid::nil().to_string();
        let put = ["job", "artifact", "put", "--url", &server.url, &nobody, "report"];
        let refused = windlass_at_a_terminal(&put).await;
        assert_eq!(refused.code, Some(4), "{refused:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q10_a_webhook_secret_in_the_environment_means_nothing_without_a_webhook() {
    on_sqlite(async |place| {
        let server = Server::start(&place).await;
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
            assert!(alone.stderr.contains("--webhook URL"), "it says what to do: {alone:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q12_who_pauses_a_queue_that_is_not_there_is_told_that_it_was_made() {
    on_sqlite(async |place| {
        let server = Server::start(&place).await;
        let cli = Cli(&server);
        let made = cli.run(&["queue", "pause", "maill"]).await;
        assert_eq!((made.code, made.stderr.trim()), (Some(0), "maill was not there and was made."));
        let again = cli.run(&["queue", "pause", "maill"]).await;
        assert_eq!((again.code, again.stderr.as_str()), (Some(0), ""));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_that_is_empty_is_not_given() {
    on_sqlite(async |place| {
        let serve = Serve::on(&place).env("WINDLASS_TLS_CERT", "").env("WINDLASS_ALLOW_PRIVATE", "");
        let server = serve.env("WINDLASS_ENGINE_SLOTS", "").env("WINDLASS_CONFIG", "").start().await;
        let list = ["--url", &server.url, "queue", "list"];
        let done = windlass_with(&[("WINDLASS_TOKEN", ""), ("WINDLASS_CA", "")], &list).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        // One that must be given is told as such.
        let agent = windlass_with(&[("WINDLASS_DATABASE", "")], &["agent"]).await;
        assert!(agent.code == Some(2) && agent.stderr.contains("--database"), "{agent:?}");
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
                // The tests' own role is a superuser.
                assert!(advice.to_string().contains("row-level security does not wall in"), "{advice}");
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
                if !place.is_postgres() {
                    let up = windlass(&with(&["migrate", "up"])).await;
                    assert_eq!(up.code, Some(1), "{up:?}");
                    assert!(up.stderr.contains("in use by another server"), "{up:?}");
                }
                assert_eq!(server.program.terminate().await, Some(0));
            }
        }
        drop(work);

        // A promise that is broken is told, with the row that breaks it.
        let table = if place.is_postgres() { "windlass.ended" } else { "ended" };
        place.sql(&format!("update {table} set worker = null")).await;
        let broken = windlass(&["verify", "--database", &place.url]).await;
        assert_eq!(broken.code, Some(1), "{broken:?}");
        assert!(broken.stdout.contains("BROKEN: an ended job is final and complete (1 row)"), "{broken:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q12_a_limit_of_a_tenant_stays_until_it_is_named_again_and_is_listed() {
    on_both(async |place| {
        let on = async |args: &[&str]| {
            json_of(windlass(&[args, &["--database", &place.url, "--output", "json"]].concat()).await)
        };
        windlass(&["migrate", "up", "--database", &place.url]).await;
        assert_eq!(on(&["tenant", "create", "small"]).await["weight"], json!(1));
        on(&["tenant", "set", "small", "--waiting-jobs", "10", "--jobs-per-s", "2.5"]).await;
        let set = on(&["tenant", "set", "small", "--weight", "3", "--unset", "jobs_per_s"]).await;
        let limits = |tenant: &Value| json!([tenant["waiting_jobs"], tenant["jobs_per_s"], tenant["weight"]]);
        assert_eq!(limits(&set), json!([10, null, 3]));
        let listed = on(&["tenant", "list"]).await;
        let small = listed["items"].as_array().expect("a list").iter().find(|tenant| tenant["name"] == "small");
        assert_eq!(small, Some(&set));
        let table = windlass(&["tenant", "list", "--database", &place.url]).await;
        let line = table.stdout.lines().find(|line| line.starts_with("small")).expect("it is listed");
        assert_eq!(line.split_whitespace().rev().take(5).collect::<Vec<_>>(), ["3", "none", "none", "none", "10"]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x7_a_change_of_the_secret_key_is_told_as_json_too() {
    on_both(async |place| {
        let folder = place.folder().display().to_string();
        let on = async |args: &[&str]| {
            let place = ["--database", &place.url, "--data-dir", &folder, "--output", "json"];
            json_of(windlass(&[args, &place].concat()).await)
        };
        windlass(&["migrate", "up", "--database", &place.url]).await;
        let rotated = on(&["secret", "rotate"]).await;
        assert_eq!(rotated["rotated"], json!(true));
        assert!(rotated["tenant_keys"].is_u64(), "{rotated}");
        let reset = on(&["secret", "reset", "--yes"]).await;
        assert_eq!(reset["reset"], json!(true));
        assert!(reset["tenant_keys"].is_u64(), "{reset}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x14_whoever_looks_at_a_database_that_is_not_there_makes_none() {
    on_sqlite(async |place| {
        let copy = place.path("copy.db").display().to_string();
        let commands: [&[&str]; 6] = [
            &["verify"],
            &["doctor"],
            &["backup", &copy],
            &["migrate", "status"],
            &["tenant", "list"],
            &["secret", "rotate"],
        ];
        for command in commands {
            let done = windlass(&[command, &["--database", &place.url]].concat()).await;
            assert_eq!(done.code, Some(1), "{done:?}");
            let told = format!("{}{}", done.stdout, done.stderr);
            assert!(told.contains("there is no database at"), "{command:?}: {told}");
        }
        assert_eq!(std::fs::read_dir(place.folder()).expect("the folder is there").count(), 0, "nothing was made");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x14_a_database_without_its_schema_is_told_in_one_sentence() {
    on_both(async |place| {
        let on = async |args: &[&str]| windlass(&[args, &["--database", &place.url]].concat()).await;
        let create = ["token", "create", "--role", "admin", "--name", "root"];
        assert_eq!(on(&["migrate", "up"]).await.code, Some(0));
        for (version, sentence) in [("1", "migrations are pending"), ("0", "the database has no schema yet")] {
            let down = on(&["migrate", "down", "--yes", "--to", version]).await;
            assert_eq!(down.code, Some(0), "{down:?}");
            // The first token may be made before the first start; any other waits for whoever changes the schema.
            let token = if version == "1" { &create[..] } else { &["token", "list"] };
            for command in [&["verify"][..], &["tenant", "list"], &["token", "list"], token] {
                let refused = on(command).await;
                assert_eq!((refused.code, refused.stderr.lines().count()), (Some(1), 1), "{command:?} {refused:?}");
                assert!(refused.stderr.contains(sentence), "{command:?} {refused:?}");
            }
            if place.is_postgres() {
                continue;
            }
            // Before an upgrade a copy is made, and said to be unchecked; a copy of nothing is none.
            let copy = place.path(&format!("copy-{version}.db"));
            let done = on(&["backup", &copy.display().to_string()]).await;
            assert!(done.stderr.contains(sentence), "{done:?}");
            assert_eq!((done.code == Some(0), copy.exists()), (version == "1", version == "1"), "{done:?}");
        }
        assert_eq!(on(&create).await.code, Some(0));
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_only_who_serves_judges_how_durable_a_database_is() {
    on_postgres(async |place| {
        place.sql_beside("alter database $database set synchronous_commit to off").await;
        let on = async |args: &[&str]| windlass(&[args, &["--database", &place.url]].concat()).await;
        let commands: [&[&str]; 5] =
            [&["migrate", "up"], &["migrate", "status"], &["verify"], &["tenant", "list"], &["token", "list"]];
        for command in commands {
            let done = on(command).await;
            assert_eq!(done.code, Some(0), "{command:?} {done:?}");
        }
        let advice = on(&["doctor"]).await;
        assert_eq!(advice.code, Some(1), "{advice:?}");
        assert!(advice.stdout.contains("synchronous_commit is off"), "{advice:?}");
        let serve = refused(place.folder(), &["--listen", "127.0.0.1:0", "--database", &place.url]).await;
        assert!(serve.code == Some(1) && serve.stderr.contains("--unsafe"), "{serve:?}");
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

#[tokio::test(flavor = "multi_thread")]
async fn x9_the_schema_does_not_go_down_under_a_server() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        if place.is_postgres() {
            // In a database that was just made nobody has beaten.
            while place.count("select count(*) from windlass.service where beat_at > since").await == 0 {}
        }
        let down = windlass(&["migrate", "down", "--to", "0", "--yes", "--database", &place.url]).await;
        assert_eq!(down.code, Some(1), "{down:?}");
        assert!(!place.is_postgres() || down.stderr.contains("stop all of them"), "{down:?}");
        crate::support::push(&server.client(), "q", json!(1)).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let done = windlass(&["completions", shell]).await;
        assert_eq!(done.code, Some(0), "{done:?}");
        assert!(done.stdout.contains("windlass"), "{shell}");
    }
}

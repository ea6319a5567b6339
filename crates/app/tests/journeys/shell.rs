//! The command line as people use it in a shell: short ids, completion, remedies in errors, and changes of many objects.

use serde_json::{Value, json};

use crate::support::{CommandOutput, Fixture, Server, failed_start, on_both, on_sqlite, windlass, windlass_with};

struct Shell<'a>(&'a Server);

impl Shell<'_> {
    async fn run(&self, args: &[&str]) -> CommandOutput {
        windlass(&[&["--url", &self.0.url], args].concat()).await
    }

    async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
        output.stdout.trim().to_owned()
    }

    async fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[&["--output", "json"], args].concat()).await).expect("the output is JSON")
    }

    async fn push(&self, queue: &str) -> String {
        self.ok(&["job", "push", "--queue", queue, "--kind", "k"]).await
    }

    async fn state(&self, id: &str) -> Value {
        self.json(&["job", "get", id]).await["state"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_named_by_a_part_of_its_id_or_as_the_last_one() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let (first, second) = (shell.push("q").await, shell.push("q").await);
        let get = async |id: &str| shell.json(&["job", "get", id]).await["id"].clone();
        assert_eq!(get(&first[30..]).await, json!(first), "the last six digits");
        assert_eq!(get(&first[..28]).await, json!(first), "the first digits, with dashes");
        assert_eq!(get("@last").await, json!(second));
        // Ids begin with the time, so both jobs have the same first digits.
        let ambiguous = shell.run(&["job", "cancel", &first[..6]]).await;
        assert_eq!(ambiguous.code, Some(2), "{ambiguous:?}");
        assert!(ambiguous.stderr.contains(&first) && ambiguous.stderr.contains(&second), "{ambiguous:?}");
        assert_eq!(shell.state(&first).await, json!("queued"), "nothing was canceled");
        let missing = shell.run(&["job", "get", "000000"]).await;
        assert_eq!(missing.code, Some(4), "{missing:?}");
        let invalid = shell.run(&["job", "get", "12345"]).await;
        assert_eq!(invalid.code, Some(2), "{invalid:?}");
        shell.ok(&["job", "cancel", &first[24..]]).await;
        assert_eq!(shell.state(&first).await, json!("canceled"));
        assert_eq!(shell.state(&second).await, json!("queued"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_job_is_the_newest_of_the_own_token() {
    on_sqlite(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let token = async |name: &str| {
            let create = ["token", "create", "--name", name, "--role", "admin", "--database", &fixture.url];
            shell.ok(&create).await
        };
        let (ann, bob) = (token("ann").await, token("bob").await);
        let push =
            async |token: &str| shell.ok(&["--token", token, "job", "push", "--queue", "q", "--kind", "k"]).await;
        let of_ann = push(&ann).await;
        push(&bob).await;
        let last = shell.json(&["--token", &ann, "job", "get", "@last"]).await;
        assert_eq!(last["id"], json!(of_ann));
        let mine = shell.json(&["--token", &ann, "job", "list", "--mine"]).await;
        assert_eq!(mine["items"].as_array().map(Vec::len), Some(1), "{mine}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_completes_ids_and_names_from_the_server() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let job = shell.push("mail/outgoing").await;
        let target = r#"{"job": {"queue": "mail/outgoing", "kind": "k"}}"#;
        let create = ["trigger", "create", "nightly", "--source", "pubsub", "--filter", r#"{"topic": "t"}"#];
        shell.ok(&[&create[..], &["--target", target]].concat()).await;
        let complete = async |words: &[&str]| {
            let line = [&["--", "windlass", "--url", &server.url], words].concat();
            let output = windlass_with(&[("COMPLETE", "fish")], &line).await;
            assert_eq!(output.code, Some(0), "{output:?}");
            output.stdout
        };
        let jobs = complete(&["job", "show", ""]).await;
        assert!(jobs.contains(&job) && jobs.contains("@last") && jobs.contains("k in mail/outgoing, queued"), "{jobs}");
        let by_suffix = complete(&["job", "cancel", &job[28..]]).await;
        assert!(by_suffix.contains(&job), "{by_suffix}");
        assert!(complete(&["queue", "pause", "ma"]).await.contains("mail/outgoing"));
        assert!(!complete(&["queue", "pause", "x"]).await.contains("mail/outgoing"));
        assert!(complete(&["job", "list", "--kind", ""]).await.contains('k'));
        assert!(complete(&["trigger", "fire", ""]).await.contains("nightly"));
        // Without a server the shell gets no names and no error.
        let words = ["--", "windlass", "--url", "http://127.0.0.1:1", "queue", "show", ""];
        let down = windlass_with(&[("COMPLETE", "fish")], &words).await;
        assert_eq!((down.code, down.stderr.as_str()), (Some(0), ""), "{down:?}");
        for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
            let script = windlass(&["completions", name]).await;
            assert!(script.code == Some(0) && script.stdout.contains("COMPLETE"), "{script:?}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_names_the_value_and_the_remedy() {
    on_sqlite(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let host = server.url.trim_start_matches("http://");
        let check = async |args: &[&str], code: i32, part: &str| {
            let output = windlass(args).await;
            assert_eq!(output.code, Some(code), "{args:?}: {output:?}");
            assert!(output.stderr.contains(part), "{args:?}: {part}: {}", output.stderr);
            assert_eq!(output.stdout, "");
        };
        check(&["--url", host, "queue", "list"], 2, &format!("--url {host} has no scheme; use http://{host}")).await;
        let tls = format!("https://{host}");
        check(&["--url", &tls, "queue", "list"], 5, &format!("{tls} does not speak TLS; use http://{host}")).await;
        let down = "cannot reach http://127.0.0.1:1: connection refused; is `windlass serve` running?";
        check(&["--url", "http://127.0.0.1:1", "queue", "list"], 5, down).await;
        check(&["push", "--queue", "q"], 2, "did you mean `windlass job push`?").await;
        let push = ["--url", &server.url, "job", "push", "--queue", "q", "--kind", "k"];
        check(&[&push[..], &["--run-at", "tomorrow"]].concat(), 2, "'2026-12-01 10:00' for the local time").await;
        check(&[&push[..], &["--in", "30"]].concat(), 2, "\"30\" has no unit; write 30s").await;
        check(&[&push[..], &["--timeout-s", "soon"]].concat(), 2, "a duration like 5m").await;
        let year = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).year() + 1;
        let time = format!("{year}-12-01 10:00");
        let local = [&push[..], &["--run-at", &time, "--timeout-s", "5m"]].concat();
        let pushed = windlass_with(&[("TZ", "America/New_York")], &local).await;
        let job = shell.json(&["job", "get", pushed.stdout.trim()]).await;
        assert_eq!((&job["run_at"], &job["timeout_s"]), (&json!(format!("{year}-12-01T15:00:00Z")), &json!(300)));
        let filter = r#"{"schedule": "0 25 * * *"}"#;
        let target = r#"{"job": {"queue": "q", "kind": "k"}}"#;
        let create = ["--url", &server.url, "trigger", "create", "t", "--source", "cron", "--filter", filter];
        check(&[&create[..], &["--target", target]].concat(), 3, "invalid hour `25`").await;
        // A port without a host stands for all addresses, which need a token.
        let open = failed_start(fixture.folder(), &["--listen", ":0", "--database", "sqlite:other.db"]).await;
        assert!(open.stderr.contains("no tokens exist"), "{open:?}");
        let wrong = failed_start(fixture.folder(), &["--listen", "somewhere"]).await;
        assert!(wrong.stderr.contains("use 127.0.0.1:7717, or :7717"), "{wrong:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_retry_flag_leaves_the_other_members_at_their_level() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let retry = async |queue: &str| {
            let push = ["job", "push", "--queue", queue, "--kind", "k", "--retry-initial-s", "9"];
            let id = shell.ok(&push).await;
            shell.json(&["job", "get", &id]).await["retry"].clone()
        };
        let default = json!({"initial_s": 9, "maximum_s": 3600, "exponent": 2.0, "jitter": 0.1});
        assert_eq!(retry("new").await, default);
        shell.ok(&["queue", "set", "mail", "--retry-exponent", "3", "--retry-maximum-s", "1h"]).await;
        let queue = shell.json(&["queue", "set", "mail", "--retry-jitter", "0.5"]).await;
        let expected = json!({"initial_s": 5, "maximum_s": 3600, "exponent": 3.0, "jitter": 0.5});
        assert_eq!(queue["settings"]["retry"], expected);
        assert_eq!(retry("mail").await, json!({"initial_s": 9, "maximum_s": 3600, "exponent": 3.0, "jitter": 0.5}));
        let set = ["process", "set", "patch", "--selector", "{}", "--queue", "mail", "--kind", "k"];
        let process = shell.json(&[&set[..], &["--backoff-initial-s", "10m"]].concat()).await;
        assert_eq!(process["backoff"], json!({"initial_s": 600, "maximum_s": 3600, "exponent": 3.0, "jitter": 0.5}));
        let process = shell.json(&["process", "set", "patch", "--backoff-jitter", "0"]).await;
        assert_eq!(process["backoff"], json!({"initial_s": 600, "maximum_s": 3600, "exponent": 3.0, "jitter": 0.0}));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_canceled_and_retried_by_a_filter_after_a_dry_run() {
    on_both(async |fixture: Fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        for queue in ["a", "a", "a", "b"] {
            shell.push(queue).await;
        }
        let counts = async |queue: &str| shell.json(&["queue", "show", queue]).await["counts"].clone();
        let cancel = ["job", "cancel", "--where", "queue=a"];
        let planned = shell.json(&[&cancel[..], &["--dry-run"]].concat()).await;
        assert_eq!((&planned["matched"], &planned["dry_run"]), (&json!(3), &json!(true)));
        assert_eq!(counts("a").await["queued"], 3, "a dry run changes nothing");
        assert_eq!(shell.ok(&cancel).await, "3 jobs canceled.");
        assert_eq!((&counts("a").await["canceled"], &counts("b").await["queued"]), (&json!(3), &json!(1)));
        assert_eq!(shell.ok(&["job", "retry", "--where", "queue=a"]).await, "0 jobs retried.", "none has failed");
        let retried = shell.json(&["job", "retry", "--where", "queue=a", "--where", "state=canceled"]).await;
        assert_eq!((&retried["matched"], retried["retried"].as_array().map(Vec::len)), (&json!(3), Some(3)));
        assert_eq!(counts("a").await["queued"], 3);

        let delete = shell.run(&["queue", "delete", "a"]).await;
        assert!(delete.code == Some(2) && delete.stderr.contains("3 unfinished jobs"), "{delete:?}");
        let unconfirmed = shell.run(&["queue", "purge", "a"]).await;
        assert_eq!(unconfirmed.code, Some(2), "{unconfirmed:?}");
        assert_eq!(shell.ok(&["queue", "purge", "a", "--yes"]).await, "3 jobs canceled.");
        let unconfirmed = shell.run(&["queue", "delete", "a"]).await;
        assert!(unconfirmed.code == Some(2) && unconfirmed.stderr.contains("--yes"), "{unconfirmed:?}");
        let deleted = shell.json(&["queue", "delete", "a", "--yes"]).await;
        assert_eq!(deleted, json!({"name": "a", "deleted": true, "pruned": 6}));
        let names = shell.json(&["queue", "list"]).await;
        assert_eq!(names["items"].as_array().map(Vec::len), Some(1), "{names}");
        assert_eq!(shell.run(&["queue", "delete", "a", "--yes"]).await.code, Some(4));
        fixture.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_is_created_once_and_then_changed_by_the_same_command() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let target = r#"{"job": {"queue": "q", "kind": "k"}}"#;
        let set = ["trigger", "set", "t", "--source", "pubsub", "--filter", r#"{"topic": "a"}"#, "--target", target];
        let made = shell.json(&set).await;
        let changed = shell.json(&["trigger", "set", "t", "--filter", r#"{"topic": "b"}"#, "--enabled", "false"]).await;
        assert_eq!((&changed["id"], &changed["filter"]), (&made["id"], &json!({"topic": "b"})));
        assert_eq!((&changed["enabled"], &changed["target"]), (&json!(false), &made["target"]));
        let retry = shell.json(&["trigger", "set", "t", "--retry", r#"{"jitter": 0.5}"#]).await["retry"].clone();
        assert_eq!((&retry["jitter"], &retry["initial_s"]), (&json!(0.5), &made["retry"]["initial_s"]));
        assert_eq!(shell.run(&["trigger", "set", "new", "--source", "cron"]).await.code, Some(2));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_shown_with_its_signal_and_piped_output_has_no_control_characters() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let shell = Shell(&server);
        let id = shell.push("q").await;
        let shown = shell.json(&["job", "show", &id]).await;
        assert_eq!((&shown["id"], &shown["signal"]["job_id"]), (&json!(id), &json!(id)));
        let text = shell.run(&["job", "show", &id]).await;
        let summary = shown["signal"]["summary"].as_str().expect("a summary");
        let first = summary.split([';', ',']).next().expect("a summary has words");
        assert!(text.stdout.contains("signal") && text.stdout.contains(first), "{text:?} {summary}");
        shell.ok(&["job", "cancel", &id]).await;
        let watched = shell.run(&["job", "watch", &id]).await;
        for output in [&text.stdout, &text.stderr, &watched.stdout, &watched.stderr] {
            assert!(!output.contains('\u{1b}') && !output.contains('\r'), "{output:?}");
        }
    })
    .await;
}

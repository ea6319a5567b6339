//! `windlass work`: any program is a worker. Its input, its output, its signals and its cancellation.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use client::wire::{JobRequest, RetrySettings};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

use crate::support::{
    Fixture, Program, Server, Work, ended, eventually, in_state, job, on_both, push, value, windlass,
};

async fn artifact(server: &Server, id: uuid::Uuid, name: &str) -> String {
    let output = windlass(&["job", "artifact", "get", "--url", &server.url, &id.to_string(), name]).await;
    assert_eq!(output.code, Some(0), "{output:?}");
    output.stdout
}

/// Requirement Q1.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_the_payload_and_its_output_is_the_result() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let _json = Work::start(&fixture, &server, "json", &[], r#"printf '{"got": %s}' "$(cat)""#);
        let _text = Work::start(&fixture, &server, "text", &[], "cat > /dev/null; echo all well");
        let _none = Work::start(&fixture, &server, "none", &[], "true");
        let payload = json!({ "image": "registry/api:1", "sizes": [1, 2.5], "ünï": null });
        let cases = [("json", json!({ "got": payload })), ("text", json!("all well")), ("none", Value::Null)];
        for (queue, expected) in cases {
            let job = ended(&client, push(&client, queue, payload.clone()).await).await;
            assert_eq!((job.state.as_str(), value(job.result.as_deref())), ("succeeded", expected), "{queue}");
        }
    })
    .await;
}

/// Requirement Q8.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_start_uses_up_no_attempt() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let typo = windlass(&["work", "--url", &server.url, "--queue", "q", "--", "./typo"]).await;
        assert_eq!(typo.code, Some(2), "{typo:?}");
        assert!(typo.stderr.contains("program ./typo not found"), "{typo:?}");

        let program = fixture.path("program");
        std::fs::write(&program, "#!/bin/sh\n").expect("writes the file");
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("changes the permissions");
        let mut work = Program::windlass(&fixture, ["work", "--url", &server.url, "--queue", "q", "--", "./program"]);
        eventually("the worker is registered", async || {
            client.workers(None).await.expect("workers are listed").items.pop()
        })
        .await;
        std::fs::remove_file(&program).expect("removes the file");
        let id = push(&client, "q", json!(1)).await;
        let waiting = in_state(&client, id, &["scheduled"]).await;
        assert_eq!((waiting.attempt, waiting.error), (0, None));
        assert!(work.stderr().contains("the program cannot be started"), "{}", work.stderr());
        assert_eq!(work.terminate().await, Some(0));
    })
    .await;
}

/// Requirement Q1.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_receives_its_job_in_environment_variables() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"printf '"%s|%s|%s|%s|%s|%s|%s"' "$WINDLASS_JOB_ID" "$WINDLASS_JOB_KIND" "$WINDLASS_QUEUE" \
            "$WINDLASS_ATTEMPT" "$WINDLASS_AFFINITY" "$WINDLASS_SUBJECT" "$WINDLASS_SIGNAL_FD""#;
        let _work = Work::start(&fixture, &server, "q", &[], script);
        let mut request = job("q", json!(1));
        (request.affinity, request.subject) = (Some("llama3".into()), Some("machine-7".into()));
        let id = client.enqueue(&request).await.expect("the job is accepted").id;
        let job = ended(&client, id).await;
        let expected = format!("{id}|journey|q|1|llama3|machine-7|3");
        assert_eq!(value(job.result.as_deref()), json!(expected));
    })
    .await;
}

/// Requirement S1.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_log_is_reported_while_the_program_runs() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let gate = tempfile::tempdir().expect("a folder");
        let script = format!("echo begun >&2; while [ ! -e {}/gate ]; do sleep 0.1; done", gate.path().display());
        let _work = Work::start(&fixture, &server, "q", &[], &script);
        let id = push(&client, "q", json!(1)).await;
        eventually("the log is reported", async || {
            let signal = client.signal(id).await.expect("the server responds").expect("the job has a signal");
            (value(Some(&signal.diagnostics))["log"] == "begun").then_some(())
        })
        .await;
        std::fs::write(gate.path().join("gate"), "").expect("writes the file");
        assert_eq!(ended(&client, id).await.state, "succeeded");
        assert_eq!(artifact(&server, id, "log").await, "begun\n");
    })
    .await;
}

/// Requirement Q8.
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_decides_whether_to_retry() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"echo "attempt $WINDLASS_ATTEMPT" >&2; echo "trouble" >&2
            [ "$(cat)" = 65 ] && exit 65; [ "$WINDLASS_ATTEMPT" -ge 2 ] && echo '"in the end"' && exit 0; exit 7"#;
        let _work = Work::start(&fixture, &server, "q", &[], script);

        let permanent = ended(&client, push(&client, "q", json!(65)).await).await;
        let error = permanent.error.expect("a failed job has an error");
        assert_eq!((permanent.state.as_str(), permanent.attempt), ("failed", 1));
        assert_eq!((error.code.as_str(), error.retryable), ("exit_65", false));
        assert_eq!(error.message, "trouble\nattempt 1", "the message is the end of stderr, its last line first");
        assert_eq!(artifact(&server, permanent.id, "log").await, "attempt 1\ntrouble\n");

        // The first job's retry delay is long enough to observe the delay. The second job's is short.
        let fails_once = async |initial_s: u64| {
            let retry = Some(RetrySettings { initial_s: Some(initial_s), ..RetrySettings::default() });
            let request = JobRequest { retry, ..job("q", json!(7)) };
            client.enqueue(&request).await.expect("the job is accepted").id
        };
        let waiting = in_state(&client, fails_once(3_600).await, &["scheduled"]).await;
        let error = waiting.error.expect("a failed attempt has an error");
        assert_eq!((error.code.as_str(), error.retryable, waiting.attempt), ("exit_7", true, 1));
        let id = fails_once(1).await;
        let retried = ended(&client, id).await;
        assert_eq!((retried.state.as_str(), retried.attempt), ("succeeded", 2));
        assert_eq!(value(retried.result.as_deref()), json!("in the end"));
        assert_eq!(artifact(&server, id, "log").await, "attempt 1\ntrouble\n");
        assert_eq!(artifact(&server, id, "log-2").await, "attempt 2\ntrouble\n");
    })
    .await;
}

/// Requirement S1.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_sends_signals_on_file_descriptor_3() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"echo '{"phase": "fetch", "progress": 0.25}' >&3; echo 'nonsense' >&3
            echo '{"progress": 0.5, "summary": "half way"}' >&3; echo '{"progress": 7}' >&3; wait_for seen; echo 1"#;
        let work = Work::start(&fixture, &server, "q", &[], script);
        let id = push(&client, "q", json!(1)).await;
        let job = eventually("phase and progress are reported", async || {
            let job = client.job(id).await.expect("the job exists");
            (job.progress == Some(0.5)).then_some(job)
        })
        .await;
        assert_eq!((job.state.as_str(), job.phase.as_deref()), ("working", Some("fetch")));
        let signal = client.signal(id).await.expect("the server responds").expect("the job has a signal");
        assert_eq!((signal.phase.as_str(), signal.summary.as_str()), ("fetch", "half way"));
        std::fs::write(fixture.path("seen"), "").expect("writes the file");
        assert_eq!(ended(&client, id).await.state, "succeeded", "an invalid signal line is ignored");
        let log = work.stderr();
        assert_eq!(
            log.matches("invalid line on the signal descriptor").count(),
            1,
            "only the first invalid line is logged: {log}"
        );
    })
    .await;
}

fn is_running(fixture: &Fixture, file: &str) -> bool {
    let id = std::fs::read_to_string(fixture.path(file)).expect("the program wrote its id");
    let id = Pid::from_raw(id.trim().parse().expect("a number")).expect("an id");
    // A zombie still has a process id.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    let zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
    test_kill_process(id).is_ok() && !zombie
}

/// Requirement Q11.
#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_job_ends_its_program_and_the_child_processes() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        // The child receives SIGTERM because the worker signals the whole process group.
        let script = r#"sh -c 'trap "" HUP; echo $$ > "$DIR/child"; while [ -d "$DIR" ]; do sleep 0.05; done' &
            trap 'mark terminated; exit 143' TERM
            until [ -s "$DIR/child" ]; do sleep 0.05; done; mark running; wait"#;
        let mut work = Work::start(&fixture, &server, "q", &["--grace", "30s"], script);
        let id = push(&client, "q", json!(1)).await;
        eventually("the program runs", async || fixture.path("running").exists().then_some(())).await;
        assert!(is_running(&fixture, "child"));
        assert_eq!(client.cancel(id).await.expect("the job is canceled").state, "canceled");
        eventually("the program receives SIGTERM", async || fixture.path("terminated").exists().then_some(())).await;
        eventually("the child exits", async || (!is_running(&fixture, "child")).then_some(())).await;
        let job = client.job(id).await.expect("the job exists");
        assert_eq!((job.state.as_str(), job.attempt), ("canceled", 1), "the late outcome is rejected");
        assert_eq!(work.terminate().await, Some(0));
        assert!(work.stderr().contains("1 canceled"), "{}", work.stderr());
    })
    .await;
}

/// Requirement Q11.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_sigterm_is_killed_after_the_grace_period() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"trap '' TERM; echo $$ > "$DIR/program"; mark running; wait_for never"#;
        let mut work = Work::start(&fixture, &server, "q", &["--grace", "1s"], script);
        let id = push(&client, "q", json!(1)).await;
        eventually("the program runs", async || fixture.path("running").exists().then_some(())).await;
        client.cancel(id).await.expect("the job is canceled");
        eventually("the program exits", async || (!is_running(&fixture, "program")).then_some(())).await;
        assert_eq!(work.terminate().await, Some(0));
        assert_eq!(client.job(id).await.expect("the job exists").state, "canceled");
    })
    .await;
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_does_not_inherit_the_workers_credentials() {
    let fixture = Fixture::sqlite();
    let server = Server::start(&fixture).await;
    let script = r#"printf '%s|%s|%s|%s' "$WINDLASS_TOKEN" "$WINDLASS_WEBHOOK_SECRET" "$WINDLASS_URL" "$OTHER""#;
    let with_password = server.url.replace("://", "://ann:secret@");
    let variables = [
        ("WINDLASS_TOKEN", "windlass_secret"),
        ("WINDLASS_WEBHOOK_SECRET", "whsec_c2VjcmV0"),
        ("WINDLASS_URL", &with_password),
        ("OTHER", "inherited"),
    ];
    let args = ["work", "--url", &server.url, "--queue", "q", "--", "sh", "-c", script];
    let _work = Program::windlass_with(&fixture, args, &variables);
    let client = server.client();
    let job = ended(&client, push(&client, "q", json!(1)).await).await;
    assert_eq!(job.state, "succeeded", "{:?}", job.error);
    assert_eq!(value(job.result.as_deref()), json!(format!("||{}|inherited", server.url)));
}

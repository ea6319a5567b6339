//! `windlass work`: any program is a worker. What goes in, what comes out, and how it is called off.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use client::wire::{JobRequest, RetrySettings};
use rustix::process::{Pid, test_kill_process};
use serde_json::{Value, json};

use crate::support::{Place, Program, Server, Work, ended, in_state, job, on_both, push, until, value, windlass};

async fn artifact(server: &Server, id: uuid::Uuid, name: &str) -> String {
    let done = windlass(&["job", "artifact", "get", "--url", &server.url, &id.to_string(), name]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    done.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn q1_a_program_gets_the_payload_and_its_output_is_the_result() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let _json = Work::start(&place, &server, "json", &[], r#"printf '{"got": %s}' "$(cat)""#);
        let _text = Work::start(&place, &server, "text", &[], "cat > /dev/null; echo all well");
        let _none = Work::start(&place, &server, "none", &[], "true");
        let payload = json!({ "image": "registry/api:1", "sizes": [1, 2.5], "ünï": null });
        let cases = [("json", json!({ "got": payload })), ("text", json!("all well")), ("none", Value::Null)];
        for (queue, expected) in cases {
            let job = ended(&client, push(&client, queue, payload.clone()).await).await;
            assert_eq!((job.state.as_str(), value(job.result.as_deref())), ("succeeded", expected), "{queue}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q8_a_program_that_cannot_be_started_costs_no_job_an_attempt() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let typo = windlass(&["work", "--url", &server.url, "--queue", "q", "--", "./typo"]).await;
        assert_eq!(typo.code, Some(2), "{typo:?}");
        assert!(typo.stderr.contains("there is no program ./typo"), "{typo:?}");

        let program = place.path("program");
        std::fs::write(&program, "#!/bin/sh\n").expect("the folder takes files");
        std::fs::set_permissions(&program, Permissions::from_mode(0o755)).expect("it is ours");
        let mut work = Program::windlass(&place, ["work", "--url", &server.url, "--queue", "q", "--", "./program"]);
        until("the worker is there", async || client.workers(None).await.expect("they are listed").items.pop()).await;
        std::fs::remove_file(&program).expect("it is ours");
        let id = push(&client, "q", json!(1)).await;
        let waiting = in_state(&client, id, &["scheduled"]).await;
        assert_eq!((waiting.attempt, waiting.error), (0, None));
        assert!(work.stderr().contains("the program cannot be started"), "{}", work.stderr());
        assert_eq!(work.terminate().await, Some(0));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q1_a_program_finds_its_job_in_the_environment() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let script = r#"printf '"%s|%s|%s|%s|%s|%s|%s"' "$WINDLASS_JOB_ID" "$WINDLASS_JOB_KIND" "$WINDLASS_QUEUE" \
            "$WINDLASS_ATTEMPT" "$WINDLASS_AFFINITY" "$WINDLASS_SUBJECT" "$WINDLASS_SIGNAL_FD""#;
        let _work = Work::start(&place, &server, "q", &[], script);
        let mut request = job("q", json!(1));
        (request.affinity, request.subject) = (Some("llama3".into()), Some("machine-7".into()));
        let id = client.enqueue(&request).await.expect("the job is accepted").id;
        let job = ended(&client, id).await;
        let expected = format!("{id}|journey|q|1|llama3|machine-7|3");
        assert_eq!(value(job.result.as_deref()), json!(expected));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_the_end_of_the_log_is_told_while_the_program_runs() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let gate = tempfile::tempdir().expect("a folder");
        let script = format!("echo begun >&2; while [ ! -e {}/gate ]; do sleep 0.1; done", gate.path().display());
        let _work = Work::start(&place, &server, "q", &[], &script);
        let id = push(&client, "q", json!(1)).await;
        until("the log is told", async || {
            let signal = client.signal(id).await.expect("the server answers").expect("there is one");
            (value(Some(&signal.diagnostics))["log"] == "begun").then_some(())
        })
        .await;
        std::fs::write(gate.path().join("gate"), "").expect("the gate opens");
        assert_eq!(ended(&client, id).await.state, "succeeded");
        assert_eq!(artifact(&server, id, "log").await, "begun\n");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q8_an_exit_code_says_whether_to_try_again() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let script = r#"echo "attempt $WINDLASS_ATTEMPT" >&2; echo "trouble" >&2
            [ "$(cat)" = 65 ] && exit 65; [ "$WINDLASS_ATTEMPT" -ge 2 ] && echo '"in the end"' && exit 0; exit 7"#;
        let _work = Work::start(&place, &server, "q", &[], script);

        let permanent = ended(&client, push(&client, "q", json!(65)).await).await;
        let error = permanent.error.expect("a failed job has an error");
        assert_eq!((permanent.state.as_str(), permanent.attempt), ("failed", 1));
        assert_eq!((error.code.as_str(), error.retryable), ("exit_65", false));
        assert_eq!(error.message, "trouble\nattempt 1", "the end of stderr is the message, its last line first");
        assert_eq!(artifact(&server, permanent.id, "log").await, "attempt 1\ntrouble\n");

        // One that waits until it was seen, and one that does not wait long.
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

#[tokio::test(flavor = "multi_thread")]
async fn s1_what_a_program_writes_on_descriptor_3_is_seen_while_it_runs() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let script = r#"echo '{"phase": "fetch", "progress": 0.25}' >&3; echo 'nonsense' >&3
            echo '{"progress": 0.5, "summary": "half way"}' >&3; echo '{"progress": 7}' >&3; wait_for seen; echo 1"#;
        let work = Work::start(&place, &server, "q", &[], script);
        let id = push(&client, "q", json!(1)).await;
        let job = until("phase and progress are seen", async || {
            let job = client.job(id).await.expect("the job is there");
            (job.progress == Some(0.5)).then_some(job)
        })
        .await;
        assert_eq!((job.state.as_str(), job.phase.as_deref()), ("working", Some("fetch")));
        let signal = client.signal(id).await.expect("the signal is there").expect("something is known");
        assert_eq!((signal.phase.as_str(), signal.summary.as_str()), ("fetch", "half way"));
        std::fs::write(place.path("seen"), "").expect("the folder takes files");
        assert_eq!(ended(&client, id).await.state, "succeeded", "a line that is no signal does no harm");
        let log = work.stderr();
        assert_eq!(log.matches("is not a signal").count(), 1, "and is told, once: {log}");
    })
    .await;
}

fn lives(place: &Place, file: &str) -> bool {
    let id = std::fs::read_to_string(place.path(file)).expect("the program wrote its id");
    let id = Pid::from_raw(id.trim().parse().expect("a number")).expect("an id");
    // A process that nobody waited for yet is dead too.
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.as_raw_nonzero())).unwrap_or_default();
    let zombie = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'));
    test_kill_process(id).is_ok() && !zombie
}

#[tokio::test(flavor = "multi_thread")]
async fn q11_a_canceled_job_ends_its_program_and_the_children_of_it() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        // The child hears SIGTERM because the whole group does.
        let script = r#"sh -c 'trap "" HUP; echo $$ > "$DIR/child"; while [ -d "$DIR" ]; do sleep 0.05; done' &
            trap 'mark heard; exit 143' TERM
            until [ -s "$DIR/child" ]; do sleep 0.05; done; mark running; wait"#;
        let mut work = Work::start(&place, &server, "q", &["--grace", "30s"], script);
        let id = push(&client, "q", json!(1)).await;
        until("the program runs", async || place.path("running").exists().then_some(())).await;
        assert!(lives(&place, "child"));
        assert_eq!(client.cancel(id).await.expect("the job is canceled").state, "canceled");
        until("the program heard SIGTERM", async || place.path("heard").exists().then_some(())).await;
        until("its child is gone", async || (!lives(&place, "child")).then_some(())).await;
        let job = client.job(id).await.expect("the job is there");
        assert_eq!((job.state.as_str(), job.attempt), ("canceled", 1), "what the program said late is refused");
        assert_eq!(work.terminate().await, Some(0));
        assert!(work.stderr().contains("1 canceled"), "{}", work.stderr());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q11_a_program_that_will_not_stop_is_killed_after_its_grace() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let client = server.client();
        let script = r#"trap '' TERM; echo $$ > "$DIR/program"; mark running; wait_for never"#;
        let mut work = Work::start(&place, &server, "q", &["--grace", "1s"], script);
        let id = push(&client, "q", json!(1)).await;
        until("the program runs", async || place.path("running").exists().then_some(())).await;
        client.cancel(id).await.expect("the job is canceled");
        until("the program is gone", async || (!lives(&place, "program")).then_some(())).await;
        assert_eq!(work.terminate().await, Some(0));
        assert_eq!(client.job(id).await.expect("the job is there").state, "canceled");
    })
    .await;
}

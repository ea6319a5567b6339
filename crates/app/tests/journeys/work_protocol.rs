//! `windlass work`: steps, facts, artifacts and errors of a program, and programs that stay.

use client::wire::{JobRequest, RetrySettings};
use serde_json::json;

use crate::support::{Program, Server, Work, ended, eventually, job, on_both, push, value, windlass};

/// Looks a step up, and runs a command and records its output if the step is not recorded.
const STEP: &str = r#"
step() {
    key=$1; shift
    printf '{"step": "%s"}\n' "$key" >&3; IFS= read -r answer <&5
    case $answer in *'"recorded":false'*)
        printf '{"step": "%s", "result": %s}\n' "$key" "$("$@")" >&3; IFS= read -r answer <&5;;
    esac
    printf '%s' "${answer##*'"result":'}" | sed 's/}$//'
}
"#;

fn with_quick_retry(request: JobRequest) -> JobRequest {
    let retry = RetrySettings { initial_s: Some(0), ..RetrySettings::default() };
    JobRequest { retry: Some(retry), ..request }
}

/// Requirement W3.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_records_steps_and_skips_them_in_the_next_attempt() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = format!(
            r#"{STEP}
            charge() {{ echo charged >> "$DIR/charges"; echo '{{"id": 7}}'; }}
            charge=$(step charge charge); printf '{{"step": "nothing", "result": null}}\n' >&3; read -r nothing <&5
            [ "$WINDLASS_ATTEMPT" -ge 2 ] || exit 1
            printf '{{"charge": %s, "nothing": %s}}' "$charge" "$nothing""#
        );
        let _work = Work::start(&fixture, &server, "q", &[], &script);
        let id = client.enqueue(&with_quick_retry(job("q", json!(1)))).await.expect("the job is accepted").id;
        let done = ended(&client, id).await;
        let nothing = json!({"step": "nothing", "recorded": true, "result": null});
        assert_eq!(value(done.result.as_deref()), json!({"charge": {"id": 7}, "nothing": nothing}));
        assert_eq!(done.attempt, 2);
        let charges = std::fs::read_to_string(fixture.path("charges")).expect("the program wrote the file");
        assert_eq!(charges, "charged\n", "the step ran once");
        let journal = client.job_journal(id, None).await.expect("the job has a journal");
        let keys: Vec<&str> = journal.items.iter().map(|entry| entry.key.as_str()).collect();
        assert_eq!(keys, ["charge", "nothing"]);
    })
    .await;
}

/// Requirement Q1.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_sets_facts_stores_artifacts_and_names_its_error() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"echo '{"error": {"code": "disk_full", "message": "No space.", "retryable": false}}' >&3
            [ "$(cat)" = 1 ] && exit 1
            echo report > report.txt
            echo '{"facts": {"size": 12}, "artifact": {"name": "report", "path": "report.txt"}}' >&3
            read -r answer <&5; printf '%s' "$answer""#;
        let _work = Work::start(&fixture, &server, "q", &[], script);
        let failed = ended(&client, push(&client, "q", json!(1)).await).await;
        let error = failed.error.expect("a failed job has an error");
        assert_eq!((error.code.as_str(), error.message.as_str(), failed.attempt), ("disk_full", "No space.", 1));

        let request = JobRequest { subject: Some("machine-7".into()), ..job("q", json!(2)) };
        let id = client.enqueue(&request).await.expect("the job is accepted").id;
        let done = ended(&client, id).await;
        assert_eq!(value(done.result.as_deref()), json!({"artifact": "report"}), "{:?}", done.error);
        let output = windlass(&["job", "artifact", "get", "--url", &server.url, &id.to_string(), "report"]).await;
        assert_eq!(output.stdout, "report\n");
        let subject = client.subject("machine-7").await.expect("the subject exists");
        assert!(serde_json::to_string(&subject).expect("JSON").contains("\"size\""), "{subject:?}");
    })
    .await;
}

/// Requirement Q1.
#[tokio::test(flavor = "multi_thread")]
async fn a_persistent_program_runs_many_jobs_and_is_started_again_after_its_end() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"echo started >> "$DIR/starts"
            while IFS= read -r line; do
                case $line in
                *'"payload":"exit"'*) echo gone >&2; exit 3 ;;
                *'"payload":"fail"'*) echo '{"error": {"code": "no", "retryable": false}}' ;;
                *'"payload":"step"'*) echo '{"step": "a", "result": 5}' >&3; read -r answer <&5; echo "{\"result\": $answer}" ;;
                *) echo noted >&2; echo '{"result": "done"}' ;;
                esac
            done"#;
        let _work = Work::start(&fixture, &server, "q", &["--persistent"], script);
        for _ in 0..5 {
            let done = ended(&client, push(&client, "q", json!("x")).await).await;
            assert_eq!(value(done.result.as_deref()), json!("done"), "{:?}", done.error);
        }
        let step = ended(&client, push(&client, "q", json!("step")).await).await;
        assert_eq!(value(step.result.as_deref())["result"], json!(5), "{:?}", step.error);
        let failed = ended(&client, push(&client, "q", json!("fail")).await).await;
        assert_eq!(failed.error.expect("an error").code, "no");
        let starts = || std::fs::read_to_string(fixture.path("starts")).expect("the program wrote the file");
        assert_eq!(starts().lines().count(), 1, "one process ran all jobs");
        let exits = JobRequest { max_attempts: Some(1), ..job("q", json!("exit")) };
        let exits = client.enqueue(&exits).await.expect("the job is accepted").id;
        let error = ended(&client, exits).await.error.expect("an error");
        assert_eq!((error.code.as_str(), error.message.as_str()), ("exit_3", "gone"));
        ended(&client, push(&client, "q", json!("x")).await).await;
        assert_eq!(starts().lines().count(), 2);
    })
    .await;
}

/// Requirement Q11.
#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_job_ends_its_persistent_program() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let script = r#"trap 'mark terminated; exit 1' TERM
            while IFS= read -r line; do mark running; wait_for never & wait; done"#;
        let mut work = Work::start(&fixture, &server, "q", &["--persistent"], script);
        let id = push(&client, "q", json!(1)).await;
        eventually("the program runs", async || fixture.path("running").exists().then_some(())).await;
        client.cancel(id).await.expect("the job is canceled");
        eventually("the program receives SIGTERM", async || fixture.path("terminated").exists().then_some(())).await;
        assert_eq!(work.terminate().await, Some(0));
        assert!(work.stderr().contains("1 canceled"), "{}", work.stderr());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_for_people_are_printed_on_a_terminal_only() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let client = server.client();
        let command = format!("{} work --url {} --queue q -- sh -c 'cat; echo bad >&2; exit 65'", BINARY, server.url);
        let terminal = |command: &str| {
            let mut script = std::process::Command::new("script");
            script.args(["--quiet", "--flush", "--return", "--command", command, "/dev/null"]);
            Program::start(fixture.folder(), &mut script)
        };
        let work = terminal(&command);
        let id = push(&client, "q", json!(1)).await;
        ended(&client, id).await;
        eventually("the job is reported", async || work.stdout().contains(&id.to_string()).then_some(())).await;
        let printed = work.stdout();
        assert!(printed.contains("Working on q with sh, 1 job at a time."), "{printed}");
        assert!(printed.contains("journey ended with exit_65: bad (attempt 1,"), "{printed}");
        drop(work);

        let mut quiet = Work::start(&fixture, &server, "q", &["--quiet"], "true");
        ended(&client, push(&client, "q", json!(1)).await).await;
        quiet.terminate().await;
        assert!(!quiet.stderr().contains("Working on"), "{}", quiet.stderr());
    })
    .await;
}

const BINARY: &str = env!("CARGO_BIN_EXE_windlass");

//! Triggers with the real binary: kills during dispatch, loops, schedules, the command line and mail. `commits.rs`
//! kills the server at each commit.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use client::wire::{JobView, TriggerRequest};
use client::{Client, JobFilter};
use serde_json::{Value, json};
use testkit::receiver::{Behavior, Receiver};

use crate::support::{Fixture, Serve, Work, eventually, free_port, on_both, on_postgres, on_sqlite, value, windlass};

const KILLS: usize = 4;
const EVENTS_BETWEEN_KILLS: usize = 40;

pub(crate) async fn create(
    client: &Client,
    name: &str,
    source: &str,
    filter: Value,
    target: Value,
) -> client::wire::TriggerView {
    let trigger = json!({"name": name, "source": source, "filter": filter, "target": target});
    let request: TriggerRequest = serde_json::from_value(trigger).expect("a trigger");
    client.create_trigger(&request).await.expect("the trigger is created")
}

pub(crate) async fn jobs(client: &Client, queue: &str) -> Vec<JobView> {
    let mut filter = JobFilter { queue: Some(queue.into()), limit: Some(500), ..JobFilter::default() };
    let mut all = Vec::new();
    loop {
        let Ok(page) = client.jobs(&filter).await else { return Vec::new() };
        all.extend(page.items);
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            return all;
        }
    }
}

/// Returns how many jobs each event created.
pub(crate) fn by_event(jobs: &[JobView]) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        let payload = value(Some(&job.payload));
        *counts.entry(payload["data"]["n"].as_i64().expect("a number")).or_default() += 1;
    }
    counts
}

/// Requirement T3.
#[tokio::test(flavor = "multi_thread")]
async fn each_acknowledged_event_creates_one_job_per_trigger_across_server_kills() {
    on_both(async |fixture: Fixture| {
        let port = free_port();
        let mut server = Serve::on(&fixture).port(port).start().await;
        let client = server.client();
        create(&client, "one", "pubsub", json!({"topic": "t"}), json!({"job": {"queue": "one", "kind": "k"}})).await;
        create(&client, "two", "pubsub", json!({"topic": "*"}), json!({"job": {"queue": "two", "kind": "k"}})).await;
        let script = r#"enqueue(#{queue: "three", kind: "k", payload: #{data: data}})"#;
        create(&client, "three", "pubsub", json!({"topic": "t"}), json!({"script": script})).await;
        let mut acknowledged = Vec::new();
        let mut n = 0;
        for kill in 1..=KILLS {
            let publishing = async {
                let mut acknowledged = Vec::new();
                loop {
                    n += 1;
                    match client.publish("t", &json!({"n": n})).await {
                        Ok(_) => acknowledged.push(n),
                        // The server was killed before it acknowledged the event.
                        Err(_) => return acknowledged,
                    }
                }
            };
            let killing = async {
                eventually("events have created jobs", async || {
                    (jobs(&client, "one").await.len() >= kill * EVENTS_BETWEEN_KILLS).then_some(())
                })
                .await;
                server.program.kill().await;
            };
            let (published, ()) = tokio::join!(publishing, killing);
            acknowledged.extend(published);
            server = Serve::on(&fixture).port(port).start().await;
        }
        for queue in ["one", "two", "three"] {
            let counts = eventually("every event has created its job", async || {
                let counts = by_event(&jobs(&client, queue).await);
                acknowledged.iter().all(|n| counts.contains_key(n)).then_some(counts)
            })
            .await;
            assert!(counts.values().all(|count| *count == 1), "{queue}: {counts:?}");
        }
        println!("kills={KILLS} acknowledged={} lost=0 doubled=0", acknowledged.len());
        server.program.kill().await;
        fixture.verify().await;
    })
    .await;
}

/// Requirement T4.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_interrupted_by_a_kill_has_no_effects_and_runs_again() {
    on_both(async |fixture: Fixture| {
        let receiver = Receiver::start(Behavior::Hang).await;
        let mut server = Serve::on(&fixture).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = server.client();
        let source = format!(
            r#"enqueue(#{{queue: "made", kind: "k", payload: #{{data: data}}}}); kv_set("c", "k", 1); http(#{{url: "{}"}})"#,
            receiver.url()
        );
        create(&client, "script", "pubsub", json!({"topic": "t"}), json!({"script": source})).await;
        client.publish("t", &json!({"n": 1})).await.expect("the event is published");
        receiver.wait_for(1).await;
        // The outbox row is claimed and the script has made its calls, but the transaction is open.
        server.program.kill().await;
        let again = Serve::on(&fixture).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = again.client();
        // Also true later: a second run of the script hangs like the first.
        assert_eq!(jobs(&client, "made").await.len(), 0);
        client.kv("c", "k").await.expect_err("the value was not set");
        receiver.set_behavior(Behavior::Respond(200));
        receiver.wait_for(2).await;
        let made = eventually("the script has run again", async || {
            let made = jobs(&client, "made").await;
            (!made.is_empty()).then_some(made)
        })
        .await;
        assert_eq!(by_event(&made), BTreeMap::from([(1, 1)]));
        drop(again);
        fixture.verify().await;
    })
    .await;
}

/// Requirement T5.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_loop_to_the_server_itself_ends_at_the_depth_limit() {
    on_both(async |fixture: Fixture| {
        let server = Serve::on(&fixture).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = server.client();
        let hook = create(&client, "hook", "http", json!({}), json!({"job": {"queue": "seen", "kind": "k"}})).await;
        let path = hook.hook.clone().expect("the trigger has a hook");
        let call = json!({"http": {"url": format!("{}{path}", server.url)}});
        // Each canceled job calls the hook, which creates the next job.
        create(&client, "again", "job", json!({"queue": "seen", "states": ["canceled"]}), call).await;
        client.fire_trigger(hook.id, &client::wire::FireRequest::default()).await.expect("the trigger is fired");
        let canceling = async {
            loop {
                for job in jobs(&client, "seen").await.iter().filter(|job| job.state == "queued") {
                    let _ = client.cancel(job.id).await;
                }
                // Paces the requests of this loop, which is not a wait.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // A call with a late response is repeated, so the loop may be stopped more than once.
        let stopped = eventually("the loop is stopped", async || {
            let page = client.triggers(None).await.ok()?;
            page.items.iter().any(|trigger| trigger.loops_stopped > 0).then_some(())
        });
        tokio::select! {
            _ = canceling => unreachable!("the loop has no end"),
            () = stopped => {}
        };
        let depths: Vec<i64> = jobs(&client, "seen").await.iter().map(|job| job.depth).collect();
        assert!(depths.iter().all(|depth| *depth <= 16), "{depths:?}");
        assert!(depths.iter().any(|depth| *depth >= 15), "{depths:?}");
        let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("dead letters are listed");
        assert_eq!(letters.items.len(), 0, "a stopped loop creates no dead letter");
    })
    .await;
}

/// Requirement T5.
#[tokio::test(flavor = "multi_thread")]
async fn two_triggers_that_start_each_other_end_at_the_depth_limit() {
    on_both(async |fixture: Fixture| {
        let server = Serve::on(&fixture).env("WINDLASS_MAX_TRIGGER_DEPTH", "5").start().await;
        let client = server.client();
        let script = |to: &str| json!({"script": format!(r#"kv_set("steps", `${{event.depth}}`, "{to}"); publish("{to}", data)"#)});
        create(&client, "a", "pubsub", json!({"topic": "a"}), script("b")).await;
        create(&client, "b", "pubsub", json!({"topic": "b"}), script("a")).await;
        client.publish("a", &json!({"n": 1})).await.expect("the event is published");
        let stopped = eventually("the loop is stopped", async || {
            let page = client.triggers(None).await.ok()?;
            page.items.into_iter().find(|trigger| trigger.loops_stopped > 0)
        })
        .await;
        assert_eq!((stopped.name.as_str(), stopped.loops_stopped), ("b", 1), "a b a b a, and then the limit");
        let fired: i64 = client.triggers(None).await.expect("triggers are listed").items.iter().map(|trigger| trigger.fired).sum();
        assert_eq!(fired, 5);
        let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("dead letters are listed");
        assert_eq!(letters.items.len(), 0, "a stopped loop creates no dead letter");
    })
    .await;
}

/// Requirement T10.
#[tokio::test(flavor = "multi_thread")]
async fn no_schedule_slot_fires_twice_when_nodes_are_killed() {
    on_postgres(async |fixture: Fixture| {
        let ports = [free_port(), free_port()];
        let mut nodes =
            [Serve::on(&fixture).port(ports[0]).start().await, Serve::on(&fixture).port(ports[1]).start().await];
        let clients = [nodes[0].client(), nodes[1].client()];
        let every_second = json!({"schedule": "* * * * * *", "missed": "catch_up"});
        create(&clients[0], "ticks", "cron", every_second, json!({"job": {"queue": "ticks", "kind": "k"}})).await;
        let slots = |jobs: &[JobView]| -> Vec<String> {
            let slot = |job: &JobView| value(Some(&job.payload))["data"]["slot"].as_str().map(str::to_owned);
            jobs.iter().filter_map(slot).collect()
        };
        for kill in 0..KILLS {
            let (killed, other) = (kill % 2, 1 - kill % 2);
            let before = slots(&jobs(&clients[other], "ticks").await).len();
            eventually("a slot has fired", async || {
                (slots(&jobs(&clients[other], "ticks").await).len() > before).then_some(())
            })
            .await;
            nodes[killed].program.kill().await;
            nodes[killed] = Serve::on(&fixture).port(ports[killed]).start().await;
        }
        let fired = eventually("slots have fired", async || {
            Some(slots(&jobs(&clients[0], "ticks").await)).filter(|fired| fired.len() >= KILLS)
        })
        .await;
        let once: std::collections::BTreeSet<&String> = fired.iter().collect();
        println!("kills={KILLS} slots={} twice=0", fired.len());
        assert_eq!(once.len(), fired.len(), "each slot fired once: {fired:?}");
    })
    .await;
}

/// Requirement T2, T7.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_tests_fires_and_replays_with_a_count_first() {
    on_sqlite(async |fixture: Fixture| {
        let server = Serve::on(&fixture).start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url];
            all.extend(args);
            let output = windlass(&all).await;
            assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
            output.stdout
        };
        let target = r#"{"job": {"queue": "q", "kind": "k", "payload": {"n": "{{ data.n }}"}, "max_attempts": 1}}"#;
        run(&["trigger", "create", "t", "--source", "pubsub", "--filter", r#"{"topic": "t"}"#, "--target", target])
            .await;
        let tried =
            run(&["trigger", "test", "t", "--op", "publish", "--attribute", "topic=t", "--data", r#"{"n": 3}"#]).await;
        assert!(tried.contains("yes") && tried.contains("\"n\": 3"), "{tried}");
        let tried = run(&["trigger", "test", "t", "--op", "publish", "--attribute", "topic=other"]).await;
        assert!(tried.contains("no") && tried.contains("does not match"), "{tried}");
        let client = server.client();
        assert_eq!(jobs(&client, "q").await.len(), 0, "a test creates no job");
        for n in ["1", "2"] {
            run(&["trigger", "fire", "t", "--data", &format!(r#"{{"n": {n}}}"#)]).await;
        }
        eventually("both events have created their jobs", async || (jobs(&client, "q").await.len() == 2).then_some(()))
            .await;
        let mut worker = Work::start(&fixture, &server, "q", &[], "exit 3");
        let count = async || run(&["dead-letter", "count", "--where", "queue=q"]).await;
        eventually("both jobs have failed", async || count().await.contains('2').then_some(())).await;
        // It deregisters, so that the server assigns it no further job.
        assert_eq!(worker.terminate().await, Some(0), "{}", worker.stderr());
        let replay = ["dead-letter", "replay", "--where", "queue=q", "--where", "kind=k"];
        let counted = run(&[&replay[..], &["--dry-run"]].concat()).await;
        assert!(counted.contains('2'), "{counted}");
        assert_eq!(jobs(&client, "q").await.iter().filter(|job| job.state == "queued").count(), 0, "a dry run");
        run(&replay).await;
        assert_eq!(jobs(&client, "q").await.iter().filter(|job| job.state == "queued").count(), 2);
        let again = run(&[&replay[..], &["--dry-run"]].concat()).await;
        assert!(again.contains('0'), "each dead letter is replayed once: {again}");
    })
    .await;
}

/// Requirement T1.
#[tokio::test(flavor = "multi_thread")]
async fn mail_from_swaks_creates_a_job() {
    on_sqlite(async |fixture: Fixture| {
        let port = free_port();
        let server = Serve::on(&fixture).env("WINDLASS_SMTP_LISTEN", format!("127.0.0.1:{port}")).start().await;
        let client = server.client();
        let target = json!({"job": {"queue": "mail", "kind": "k"}});
        create(&client, "mail", "email", json!({"to": "orders@windlass.example"}), target).await;
        let send = |to: &'static str| {
            tokio::task::spawn_blocking(move || {
                let mut command = Command::new("swaks");
                command.args([
                    "--server",
                    "127.0.0.1",
                    "--port",
                    &port.to_string(),
                    "--from",
                    "ann@b.example",
                    "--to",
                    to,
                ]);
                command
                    .args(["--header", "Subject: two boxes", "--body", "Please."])
                    .output()
                    .expect("swaks is installed")
            })
        };
        let output = send("Orders@windlass.example").await.expect("swaks runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let made = eventually("the mail has created a job", async || {
            let made = jobs(&client, "mail").await;
            (!made.is_empty()).then_some(made)
        })
        .await;
        let payload = value(Some(&made[0].payload));
        assert_eq!(
            (&payload["data"]["subject"], &payload["data"]["from"]),
            (&json!("two boxes"), &json!("ann@b.example"))
        );
        assert_eq!(payload["event"]["to"], "orders@windlass.example");
        let refused = send("unknown@windlass.example").await.expect("swaks runs");
        assert!(!refused.status.success(), "no trigger accepts that address");
        assert_eq!(jobs(&client, "mail").await.len(), 1);
    })
    .await;
}

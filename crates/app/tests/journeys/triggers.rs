//! Triggers through the real program: killed in the middle of dispatching, leading to themselves, and taking mail in (T1,
//! T3–T5). `commits.rs` kills it at each commit.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use client::wire::{JobView, TriggerRequest};
use client::{Client, JobFilter};
use serde_json::{Value, json};
use testkit::receiver::{Manner, Receiver};

use crate::support::{Place, Serve, Work, free_port, on_both, on_postgres, on_sqlite, until, value, windlass};

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
    client.create_trigger(&request).await.expect("the trigger is made")
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

/// How often each event made a job of the queue.
pub(crate) fn by_event(jobs: &[JobView]) -> BTreeMap<i64, usize> {
    let mut counts = BTreeMap::new();
    for job in jobs {
        let payload = value(Some(&job.payload));
        *counts.entry(payload["data"]["n"].as_i64().expect("a number")).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_every_acknowledged_event_makes_one_job_per_trigger_however_often_the_server_is_killed() {
    on_both(async |place: Place| {
        let port = free_port();
        let mut server = Serve::on(&place).port(port).start().await;
        let client = server.client();
        create(&client, "one", "pubsub", json!({"topic": "t"}), json!({"job": {"queue": "one", "kind": "k"}})).await;
        create(&client, "two", "pubsub", json!({"topic": "*"}), json!({"job": {"queue": "two", "kind": "k"}})).await;
        let script = r#"enqueue(#{queue: "three", kind: "k", payload: #{data: data}})"#;
        create(&client, "three", "pubsub", json!({"topic": "t"}), json!({"script": script})).await;
        let mut acknowledged = Vec::new();
        let mut n = 0;
        for kill in 1..=KILLS {
            let publishing = async {
                let mut done = Vec::new();
                loop {
                    n += 1;
                    match client.publish("t", &json!({"n": n})).await {
                        Ok(_) => done.push(n),
                        // Killed in the middle: nobody said that it is safe.
                        Err(_) => return done,
                    }
                }
            };
            let killing = async {
                until("events have made jobs", async || {
                    (jobs(&client, "one").await.len() >= kill * EVENTS_BETWEEN_KILLS).then_some(())
                })
                .await;
                server.program.kill().await;
            };
            let (done, ()) = tokio::join!(publishing, killing);
            acknowledged.extend(done);
            server = Serve::on(&place).port(port).start().await;
        }
        for queue in ["one", "two", "three"] {
            let counts = until("every event has made its job", async || {
                let counts = by_event(&jobs(&client, queue).await);
                acknowledged.iter().all(|n| counts.contains_key(n)).then_some(counts)
            })
            .await;
            assert!(counts.values().all(|count| *count == 1), "{queue}: {counts:?}");
        }
        println!("kills={KILLS} acknowledged={} lost=0 doubled=0", acknowledged.len());
        server.program.kill().await;
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t4_a_script_whose_node_is_killed_has_done_nothing_and_is_run_again() {
    on_both(async |place: Place| {
        let receiver = Receiver::start(Manner::Hang).await;
        let mut server = Serve::on(&place).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = server.client();
        let source = format!(
            r#"enqueue(#{{queue: "made", kind: "k", payload: #{{data: data}}}}); kv_set("c", "k", 1); http(#{{url: "{}"}})"#,
            receiver.url()
        );
        create(&client, "script", "pubsub", json!({"topic": "t"}), json!({"script": source})).await;
        client.publish("t", &json!({"n": 1})).await.expect("it is published");
        receiver.saw(1).await;
        // Its row is taken and the script has done what it wanted, but nothing is closed.
        server.program.kill().await;
        let again = Serve::on(&place).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = again.client();
        // However late it is: a script that was run again by now hangs like the first.
        assert_eq!(jobs(&client, "made").await.len(), 0);
        client.kv("c", "k").await.expect_err("nothing was set");
        receiver.behave(Manner::Answer(200));
        receiver.saw(2).await;
        let made = until("the script has run again", async || {
            let made = jobs(&client, "made").await;
            (!made.is_empty()).then_some(made)
        })
        .await;
        assert_eq!(by_event(&made), BTreeMap::from([(1, 1)]));
        drop(again);
        place.verify().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_a_webhook_to_ourselves_ends_at_the_depth_limit() {
    on_both(async |place: Place| {
        let server = Serve::on(&place).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = server.client();
        let hook = create(&client, "hook", "http", json!({}), json!({"job": {"queue": "seen", "kind": "k"}})).await;
        let path = hook.hook.clone().expect("a hook has an address");
        let call = json!({"http": {"url": format!("{}{path}", server.url)}});
        // The hook calls itself, and tells a queue each time.
        create(&client, "again", "job", json!({"queue": "seen", "states": ["canceled"]}), call).await;
        client.fire_trigger(hook.id, &client::wire::FireRequest::default()).await.expect("it is fired");
        let canceling = async {
            loop {
                for job in jobs(&client, "seen").await.iter().filter(|job| job.state == "queued") {
                    let _ = client.cancel(job.id).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        // More than one may be: a call whose answer was late is made again.
        let stopped = until("the loop is stopped", async || {
            let page = client.triggers(None).await.ok()?;
            page.items.iter().any(|trigger| trigger.loops_stopped > 0).then_some(())
        });
        tokio::select! {
            _ = canceling => unreachable!("it never ends"),
            () = stopped => {}
        };
        let depths: Vec<i64> = jobs(&client, "seen").await.iter().map(|job| job.depth).collect();
        assert!(depths.iter().all(|depth| *depth <= 16), "{depths:?}");
        assert!(depths.iter().any(|depth| *depth >= 15), "{depths:?}");
        let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("they are listed");
        assert_eq!(letters.items.len(), 0, "a loop is no dead letter");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t5_two_triggers_that_lead_to_each_other_end_at_the_depth_limit() {
    on_both(async |place: Place| {
        let server = Serve::on(&place).env("WINDLASS_MAX_TRIGGER_DEPTH", "5").start().await;
        let client = server.client();
        let script = |to: &str| json!({"script": format!(r#"kv_set("steps", `${{event.depth}}`, "{to}"); publish("{to}", data)"#)});
        create(&client, "a", "pubsub", json!({"topic": "a"}), script("b")).await;
        create(&client, "b", "pubsub", json!({"topic": "b"}), script("a")).await;
        client.publish("a", &json!({"n": 1})).await.expect("it is published");
        let stopped = until("the loop is stopped", async || {
            let page = client.triggers(None).await.ok()?;
            page.items.into_iter().find(|trigger| trigger.loops_stopped > 0)
        })
        .await;
        assert_eq!((stopped.name.as_str(), stopped.loops_stopped), ("b", 1), "a b a b a, and no further");
        let fired: i64 = client.triggers(None).await.expect("listed").items.iter().map(|trigger| trigger.fired).sum();
        assert_eq!(fired, 5);
        let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("they are listed");
        assert_eq!(letters.items.len(), 0, "a loop is no dead letter");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t10_no_slot_fires_twice_when_nodes_are_killed_as_it_fires() {
    on_postgres(async |place: Place| {
        let ports = [free_port(), free_port()];
        let mut nodes =
            [Serve::on(&place).port(ports[0]).start().await, Serve::on(&place).port(ports[1]).start().await];
        let clients = [nodes[0].client(), nodes[1].client()];
        let every_second = json!({"schedule": "* * * * * *", "missed": "catch_up"});
        create(&clients[0], "ticks", "cron", every_second, json!({"job": {"queue": "ticks", "kind": "k"}})).await;
        let slots = |jobs: &[JobView]| -> Vec<String> {
            let slot = |job: &JobView| value(Some(&job.payload))["data"]["slot"].as_str().map(str::to_owned);
            jobs.iter().filter_map(slot).collect()
        };
        for kill in 0..KILLS {
            let (dying, living) = (kill % 2, 1 - kill % 2);
            let before = slots(&jobs(&clients[living], "ticks").await).len();
            until("a slot has fired", async || {
                (slots(&jobs(&clients[living], "ticks").await).len() > before).then_some(())
            })
            .await;
            nodes[dying].program.kill().await;
            nodes[dying] = Serve::on(&place).port(ports[dying]).start().await;
        }
        let fired = until("slots have fired all the while", async || {
            Some(slots(&jobs(&clients[0], "ticks").await)).filter(|fired| fired.len() >= KILLS)
        })
        .await;
        let once: std::collections::BTreeSet<&String> = fired.iter().collect();
        println!("kills={KILLS} slots={} twice=0", fired.len());
        assert_eq!(once.len(), fired.len(), "each slot once: {fired:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t2_t7_the_command_line_tries_fires_and_replays_with_a_count_first() {
    on_sqlite(async |place: Place| {
        let server = Serve::on(&place).start().await;
        let run = async |args: &[&str]| {
            let mut all = vec!["--url", &server.url];
            all.extend(args);
            let done = windlass(&all).await;
            assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
            done.stdout
        };
        let target = r#"{"job": {"queue": "q", "kind": "k", "payload": {"n": "{{ data.n }}"}, "max_attempts": 1}}"#;
        run(&["trigger", "create", "t", "--source", "pubsub", "--filter", r#"{"topic": "t"}"#, "--target", target])
            .await;
        let tried =
            run(&["trigger", "test", "t", "--op", "publish", "--attribute", "topic=t", "--data", r#"{"n": 3}"#]).await;
        assert!(tried.contains("yes") && tried.contains("\"n\": 3"), "{tried}");
        let tried = run(&["trigger", "test", "t", "--op", "publish", "--attribute", "topic=other"]).await;
        assert!(tried.contains("no") && tried.contains("do not match"), "{tried}");
        let client = server.client();
        assert_eq!(jobs(&client, "q").await.len(), 0, "nothing was started");
        for n in ["1", "2"] {
            run(&["trigger", "fire", "t", "--data", &format!(r#"{{"n": {n}}}"#)]).await;
        }
        until("both have made their jobs", async || (jobs(&client, "q").await.len() == 2).then_some(())).await;
        let mut worker = Work::start(&place, &server, "q", &[], "exit 3");
        let count = async || run(&["dead-letter", "count", "--where", "queue=q"]).await;
        until("both have failed for good", async || count().await.contains('2').then_some(())).await;
        // It takes its leave: for one that is just gone the server would go on taking jobs until it notices.
        assert_eq!(worker.terminate().await, Some(0), "{}", worker.stderr());
        let replay = ["dead-letter", "replay", "--where", "queue=q", "--where", "kind=k"];
        let told = run(&[&replay[..], &["--dry-run"]].concat()).await;
        assert!(told.contains('2'), "{told}");
        assert_eq!(jobs(&client, "q").await.iter().filter(|job| job.state == "queued").count(), 0, "only counted");
        run(&replay).await;
        assert_eq!(jobs(&client, "q").await.iter().filter(|job| job.state == "queued").count(), 2);
        let again = run(&[&replay[..], &["--dry-run"]].concat()).await;
        assert!(again.contains('0'), "each once: {again}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_mail_from_swaks_starts_work() {
    on_sqlite(async |place: Place| {
        let port = free_port();
        let server = Serve::on(&place).env("WINDLASS_SMTP_LISTEN", format!("127.0.0.1:{port}")).start().await;
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
        let output = send("Orders@windlass.example").await.expect("it ran");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let made = until("the mail has made a job", async || {
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
        let refused = send("nobody@windlass.example").await.expect("it ran");
        assert!(!refused.status.success(), "nobody waits for that address");
        assert_eq!(jobs(&client, "mail").await.len(), 1);
    })
    .await;
}

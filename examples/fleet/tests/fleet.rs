//! Runs the fleet example on both databases and checks the final state and the timeline of every machine.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use client::wire::SubjectView;
use engine::{Engine, EngineOptions};
use fleet::machines::Fleet;
use fleet::{processes, work};
use server::{AppState, ServerOptions, serve};
use store::queue::artifacts::Blobs;
use testkit::eventually::eventually;
use testkit::{Database, on_both};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts a server on a free port with this database.
async fn start(db: &Database, tasks: &TaskTracker, stop: &CancellationToken) -> (String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let engine = Engine::start(db.store.clone(), EngineOptions::default()).await.unwrap();
    let blobs = Blobs::folder(folder.path()).unwrap();
    let state = AppState::new(Arc::new(engine), Arc::new(blobs), ServerOptions::default());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let stop = stop.clone();
    tasks.spawn(async move { serve(listener, state, stop).await });
    (url, folder)
}

fn state(machine: &SubjectView) -> &str {
    machine.facts["state"].value.get().trim_matches('"')
}

fn settled(machine: &SubjectView) -> bool {
    state(machine) == "installed" || machine.backoffs.iter().any(|backoff| backoff.until.is_none())
}

async fn timeline(client: &Client, machine: &str) -> Vec<String> {
    let page = client.subject_history(machine, Some(500), None).await.unwrap();
    let events = page.items.iter().rev().filter(|item| item.process.is_some());
    let events = events.map(|item| {
        let parts = [Some(item.event.as_str()), item.process.as_deref(), item.cause.as_deref()];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    });
    events.filter(|line| !line.starts_with("facts_changed")).collect()
}

/// Asserts that events that begin like those in `expected` occurred in this order, with any other events in between.
fn assert_events(timeline: &[String], expected: &[&str]) {
    let mut rest = timeline.iter();
    for event in expected {
        assert!(rest.any(|line| line.starts_with(event)), "{event} is missing from {timeline:#?}");
    }
}

/// Requirement W1.
#[tokio::test]
async fn a_fleet_is_installed_and_each_timeline_records_the_steps() {
    on_both(async |db| {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let (url, _folder) = start(&db, &tasks, &stop).await;
        let client = Client::new(&url).unwrap();
        let fleet = Fleet::new(8);
        processes::declare(&client, 4).await.unwrap();
        fleet.arrive(&client, &url, Duration::from_millis(250), &tasks, &stop).await.unwrap();
        let worker = work::worker(client.clone(), &fleet).unwrap();
        tasks.spawn({
            let stop = stop.clone();
            async move { worker.run(stop).await }
        });
        let machines = eventually("every machine is settled", async || {
            let machines = client.subjects(Some("machine"), None, None).await.unwrap().items;
            machines.iter().all(settled).then_some(machines)
        })
        .await;
        for machine in &machines {
            let expected = if machine.id == "machine-03" { "started" } else { "installed" };
            assert_eq!(state(machine), expected, "{}", machine.id);
        }
        let plain = ["started start-agent", "finished start-agent", "started install", "finished install"];
        assert_events(&timeline(&client, "machine-00").await, &plain);
        let hard_to_start = [
            "failed start-agent no_power",
            "backed_off start-agent no_power",
            "failed start-agent no_power",
            "backed_off start-agent no_power",
            "finished start-agent",
            "finished install",
        ];
        assert_events(&timeline(&client, "machine-01").await, &hard_to_start);
        let dead_disk = ["finished start-agent", "failed install dead_disk", "backed_off install dead_disk"];
        assert_events(&timeline(&client, "machine-03").await, &dead_disk);
        let lockout = machines[3].backoffs.iter().find(|backoff| backoff.process == "install").unwrap();
        assert_eq!(lockout.until, None);
        assert!(lockout.cause.starts_with("dead_disk: "), "{}", lockout.cause);

        // The silent machine is recovered after `silence_s`, even if it was already installed.
        let events = eventually("machine-02 is recovered", async || {
            let events = timeline(&client, "machine-02").await;
            events.iter().any(|line| line == "finished recover").then_some(events)
        })
        .await;
        assert_events(&events, &["finished start-agent", "started recover", "finished recover"]);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(db.store.verify().await.unwrap().findings, []);
    })
    .await;
}

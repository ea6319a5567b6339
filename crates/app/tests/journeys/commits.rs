//! SIGKILL at each commit of dispatch and delivery: no event is lost, and no event creates two jobs or two requests for
//! one trigger.
//!
//! A server receives a few events and is killed at its first commit, the next server at its second, and so on until a
//! server completes its work. On SQLite the server is killed before a write or a sync. On PostgreSQL it is killed
//! before the commit arrives or after it succeeded. A last server, which is not killed, completes the remaining work.

use std::collections::{BTreeMap, BTreeSet};

use client::{Client, DeliveryFilter};
use serde_json::{Value, json};
use testkit::receiver::{Behavior, Receiver};
use uuid::Uuid;

use crate::support::{CommitKiller, Fixture, KillMoment, Serve, Server, eventually, on_postgres, on_sqlite};
use crate::triggers::{by_event, create, jobs};

const EVENTS_PER_ROUND: usize = 2;
/// Attempts of a delivery. An attempt interrupted by a kill counts, so a lower limit would produce dead letters.
const MAX_ATTEMPTS: usize = 50;
/// A campaign ends when this many servers in a row complete their work: no commit remains to be tested.
const MAX_SURVIVORS: usize = 2;
/// Maximum number of tested commits on PostgreSQL. The work takes a dozen; on a busy machine others come in between.
const COMMITS: usize = 20;

/// The published events and which of them were acknowledged.
#[derive(Default)]
struct Campaign {
    last: usize,
    acknowledged: BTreeSet<i64>,
    kills: usize,
}

fn serve(fixture: &Fixture) -> Serve<'_> {
    allow_private(Serve::on(fixture))
}

fn allow_private(serve: Serve<'_>) -> Serve<'_> {
    serve.env("WINDLASS_ALLOW_PRIVATE", "true")
}

/// Creates a job trigger, an HTTP trigger and a script trigger for the same topic.
async fn create_three_triggers(client: &Client, receiver: &Receiver) {
    create(client, "job", "pubsub", json!({"topic": "t"}), json!({"job": {"queue": "one", "kind": "k"}})).await;
    let call = json!({"name": "call", "source": "pubsub", "filter": {"topic": "t"}, "target": {"http": {"url": receiver.url()}},
                      "retry": {"max_attempts": MAX_ATTEMPTS, "initial_s": 1}});
    let call = serde_json::from_value(call).expect("a trigger");
    client.create_trigger(&call).await.expect("the trigger is created");
    let script = r#"enqueue(#{queue: "two", kind: "k", payload: #{data: data}})"#;
    create(client, "script", "pubsub", json!({"topic": "t"}), json!({"script": script})).await;
}

/// Returns the webhook ids of the received requests by event number.
fn requests(receiver: &Receiver) -> BTreeMap<i64, BTreeSet<String>> {
    let mut by_event: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for request in receiver.requests() {
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        let id = request.header("webhook-id").expect("every request has an id").to_owned();
        by_event.entry(body["data"]["n"].as_i64().expect("a number")).or_default().insert(id);
    }
    by_event
}

/// Publishes events to a server and waits until it is killed or has completed its work. Returns true if it was killed.
async fn publish_until_killed(server: &mut Server, campaign: &mut Campaign) -> bool {
    let client = server.client();
    let mut published = Vec::new();
    for _ in 0..EVENTS_PER_ROUND {
        campaign.last += 1;
        let n = campaign.last as i64;
        // An event without a response was not acknowledged.
        if let Ok(accepted) = client.publish("t", &json!({"n": n})).await {
            campaign.acknowledged.insert(n);
            published.push((n, accepted.event_id));
        }
    }
    eventually("the server is killed or completes its work", async || {
        if server.program.exit_status().is_some() {
            return Some(true);
        }
        // Work of earlier servers is available again when its lease expires. The last server completes it.
        let (one, two) = (by_event(&jobs(&client, "one").await), by_event(&jobs(&client, "two").await));
        let delivered =
            DeliveryFilter { state: Some("delivered".into()), limit: Some(500), ..DeliveryFilter::default() };
        let delivered = client.deliveries(&delivered).await.map_or_else(|_| Vec::new(), |page| page.items);
        let done = |(n, event): &(i64, Uuid)| {
            one.contains_key(n) && two.contains_key(n) && delivered.iter().any(|sent| sent.event_id == Some(*event))
        };
        (published.len() == EVENTS_PER_ROUND && published.iter().all(done)).then_some(false)
    })
    .await
}

/// Starts the last server, waits until it has completed the remaining work, and checks every event.
async fn check(fixture: &Fixture, receiver: &Receiver, campaign: &Campaign) {
    let mut server = serve(fixture).start().await;
    let client = server.client();
    for queue in ["one", "two"] {
        let counts = eventually("every event has created its job", async || {
            let counts = by_event(&jobs(&client, queue).await);
            campaign.acknowledged.iter().all(|n| counts.contains_key(n)).then_some(counts)
        })
        .await;
        assert!(counts.values().all(|count| *count == 1), "{queue}: {counts:?}");
    }
    let sent = eventually("every event has sent its request", async || {
        let sent = requests(receiver);
        campaign.acknowledged.iter().all(|n| sent.contains_key(n)).then_some(sent)
    })
    .await;
    assert!(sent.values().all(|ids| ids.len() == 1), "all requests of an event have one id: {sent:?}");
    let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("dead letters are listed");
    assert!(letters.items.is_empty(), "{:?}", letters.items);
    println!("kills={} acknowledged={} lost=0 doubled=0", campaign.kills, campaign.acknowledged.len());
    server.program.kill().await;
    fixture.verify().await;
}

/// Kills one server at each of these system calls, until [`MAX_SURVIVORS`] servers in a row complete their work.
async fn kill_at_each(fixture: &Fixture, campaign: &mut Campaign, call: &str, numbers: impl Iterator<Item = usize>) {
    let mut survivors = 0;
    for number in numbers {
        let serve = allow_private(Serve::killed_at(fixture, call, number));
        let Ok(mut server) = serve.try_start().await else { continue };
        if publish_until_killed(&mut server, campaign).await {
            campaign.kills += 1;
            survivors = 0;
            continue;
        }
        server.program.kill().await;
        survivors += 1;
        if survivors == MAX_SURVIVORS {
            return;
        }
    }
}

/// Requirement T3.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_each_commit_neither_loses_nor_duplicates_an_event_on_sqlite() {
    on_sqlite(async |fixture: Fixture| {
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let mut first = serve(&fixture).start().await;
        create_three_triggers(&first.client(), &receiver).await;
        first.program.kill().await;
        let mut campaign = Campaign::default();
        // A commit is one sync and several writes.
        kill_at_each(&fixture, &mut campaign, "fsync", 1..=30).await;
        kill_at_each(&fixture, &mut campaign, "pwrite64", (1..=200).step_by(5)).await;
        assert!(campaign.kills >= 10, "only {} servers were killed during their work", campaign.kills);
        check(&fixture, &receiver, &campaign).await;
    })
    .await;
}

/// Requirement T3.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_at_each_commit_neither_loses_nor_duplicates_an_event_on_postgres() {
    on_postgres(async |fixture: Fixture| {
        let receiver = Receiver::start(Behavior::Respond(200)).await;
        let mut first = serve(&fixture).start().await;
        create_three_triggers(&first.client(), &receiver).await;
        first.program.kill().await;
        let proxy = CommitKiller::of(&fixture.url).await;
        let mut campaign = Campaign::default();
        let mut survivors = 0;
        let moments = (1..=COMMITS).flat_map(|n| [(n, KillMoment::BeforeCommit), (n, KillMoment::AfterCommit)]);
        for (number, moment) in moments {
            let mut server = serve(&fixture).database(&proxy.url).start().await;
            proxy.arm(server.program.id(), number, moment);
            if publish_until_killed(&mut server, &mut campaign).await {
                campaign.kills += 1;
                survivors = 0;
                continue;
            }
            proxy.disarm();
            server.program.kill().await;
            survivors += 1;
            if survivors == MAX_SURVIVORS {
                break;
            }
        }
        assert!(campaign.kills >= 10, "only {} servers were killed during their work", campaign.kills);
        check(&fixture, &receiver, &campaign).await;
    })
    .await;
}

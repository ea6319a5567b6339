//! kill -9 at each commit of dispatch and delivery: no event is lost, and none makes two jobs or two requests for one
//! trigger (T3, T4, Q10).
//!
//! A server is started, given a few events and killed at its first commit, the next at its second, and so on, past the last
//! one of its work. On SQLite it dies as it is about to write or to sync; on PostgreSQL the commit does not
//! arrive, or it is done and nobody hears of it. What the dead left is for the last server, which nobody kills.

use std::collections::{BTreeMap, BTreeSet};

use client::{Client, DeliveryFilter};
use serde_json::{Value, json};
use testkit::receiver::{Manner, Receiver};
use uuid::Uuid;

use crate::support::{Commits, Moment, Place, Serve, Server, on_postgres, on_sqlite, until};
use crate::triggers::{by_event, create, jobs};

const EVENTS_A_ROUND: usize = 2;
/// An attempt whose server dies is one that was made: an event that meets so many deaths would be a dead letter otherwise.
const INTERRUPTIONS: usize = 50;
/// Servers that have outlived their work in a row: there is no commit left to be killed at.
const OUTLIVED: usize = 2;
/// Commits at which a server on PostgreSQL is killed at most. Its work takes a dozen; on a busy machine others come in between.
const COMMITS: usize = 20;

/// What was published, and what of it was acknowledged.
#[derive(Default)]
struct Told {
    last: usize,
    acknowledged: BTreeSet<i64>,
    kills: usize,
}

fn serve(place: &Place) -> Serve<'_> {
    open(Serve::on(place))
}

fn open(serve: Serve<'_>) -> Serve<'_> {
    serve.env("WINDLASS_ALLOW_PRIVATE", "true")
}

/// A job, a request and what a script does, for every event.
async fn three_triggers(client: &Client, receiver: &Receiver) {
    create(client, "job", "pubsub", json!({"topic": "t"}), json!({"job": {"queue": "one", "kind": "k"}})).await;
    let call = json!({"name": "call", "source": "pubsub", "filter": {"topic": "t"}, "target": {"http": {"url": receiver.url()}},
                      "retry": {"max_attempts": INTERRUPTIONS, "initial_s": 1}});
    let call = serde_json::from_value(call).expect("a trigger");
    client.create_trigger(&call).await.expect("the trigger is made");
    let script = r#"enqueue(#{queue: "two", kind: "k", payload: #{data: data}})"#;
    create(client, "script", "pubsub", json!({"topic": "t"}), json!({"script": script})).await;
}

/// Requests by the number of their event: the ids under which they came.
fn requests(receiver: &Receiver) -> BTreeMap<i64, BTreeSet<String>> {
    let mut by_event: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
    for seen in receiver.seen() {
        let body: Value = serde_json::from_str(&seen.body).expect("JSON");
        let id = seen.header("webhook-id").expect("every request has an id").to_owned();
        by_event.entry(body["data"]["n"].as_i64().expect("a number")).or_default().insert(id);
    }
    by_event
}

/// Gives events to a server that is to die, and waits until it is dead. Whether it died before its work was done.
async fn until_dead(server: &mut Server, told: &mut Told) -> bool {
    let client = server.client();
    let mut mine = Vec::new();
    for _ in 0..EVENTS_A_ROUND {
        told.last += 1;
        let n = told.last as i64;
        // Without an answer nobody said that it is safe.
        if let Ok(accepted) = client.publish("t", &json!({"n": n})).await {
            told.acknowledged.insert(n);
            mine.push((n, accepted.event_id));
        }
    }
    until("the server is dead, or done", async || {
        if server.program.has_ended().is_some() {
            return Some(true);
        }
        // What those before it left comes back when their leases are over; that is for the last one.
        let (one, two) = (by_event(&jobs(&client, "one").await), by_event(&jobs(&client, "two").await));
        let delivered =
            DeliveryFilter { state: Some("delivered".into()), limit: Some(500), ..DeliveryFilter::default() };
        let delivered = client.deliveries(&delivered).await.map_or_else(|_| Vec::new(), |page| page.items);
        let done = |(n, event): &(i64, Uuid)| {
            one.contains_key(n) && two.contains_key(n) && delivered.iter().any(|sent| sent.event_id == Some(*event))
        };
        (mine.len() == EVENTS_A_ROUND && mine.iter().all(done)).then_some(false)
    })
    .await
}

/// The last server does what is left; then everything is as if nobody had died.
async fn judge(place: &Place, receiver: &Receiver, told: &Told) {
    let mut server = serve(place).start().await;
    let client = server.client();
    for queue in ["one", "two"] {
        let counts = until("every event has made its job", async || {
            let counts = by_event(&jobs(&client, queue).await);
            told.acknowledged.iter().all(|n| counts.contains_key(n)).then_some(counts)
        })
        .await;
        assert!(counts.values().all(|count| *count == 1), "{queue}: {counts:?}");
    }
    let sent = until("every event has made its request", async || {
        let sent = requests(receiver);
        told.acknowledged.iter().all(|n| sent.contains_key(n)).then_some(sent)
    })
    .await;
    assert!(sent.values().all(|ids| ids.len() == 1), "one request each, under one id: {sent:?}");
    let letters = client.dead_letters(&client::DeadLetterPage::default()).await.expect("they are listed");
    assert!(letters.items.is_empty(), "{:?}", letters.items);
    println!("kills={} acknowledged={} lost=0 doubled=0", told.kills, told.acknowledged.len());
    server.program.kill().await;
    place.verify().await;
}

/// At these calls, one each round, until there is nothing left to be killed at.
async fn killed_at_each(place: &Place, told: &mut Told, call: &str, numbers: impl Iterator<Item = usize>) {
    let mut outlived = 0;
    for number in numbers {
        let Ok(mut server) = open(Serve::killed_at(place, call, number)).try_start().await else { continue };
        if until_dead(&mut server, told).await {
            told.kills += 1;
            outlived = 0;
            continue;
        }
        server.program.kill().await;
        outlived += 1;
        if outlived == OUTLIVED {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_a_server_killed_at_each_commit_loses_no_event_and_doubles_none_on_sqlite() {
    on_sqlite(async |place: Place| {
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let mut first = serve(&place).start().await;
        three_triggers(&first.client(), &receiver).await;
        first.program.kill().await;
        let mut told = Told::default();
        // A commit is one sync and several writes.
        killed_at_each(&place, &mut told, "fsync", 1..=30).await;
        killed_at_each(&place, &mut told, "pwrite64", (1..=200).step_by(5)).await;
        assert!(told.kills >= 10, "{} servers died at their work", told.kills);
        judge(&place, &receiver, &told).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_a_server_killed_at_each_commit_loses_no_event_and_doubles_none_on_postgres() {
    on_postgres(async |place: Place| {
        let receiver = Receiver::start(Manner::Answer(200)).await;
        let mut first = serve(&place).start().await;
        three_triggers(&first.client(), &receiver).await;
        first.program.kill().await;
        let commits = Commits::of(&place.url).await;
        let mut told = Told::default();
        let mut outlived = 0;
        let moments = (1..=COMMITS).flat_map(|number| [(number, Moment::Before), (number, Moment::After)]);
        for (number, moment) in moments {
            let mut server = serve(&place).database(&commits.url).start().await;
            commits.kill(server.program.id(), number, moment);
            if until_dead(&mut server, &mut told).await {
                told.kills += 1;
                outlived = 0;
                continue;
            }
            commits.disarm();
            server.program.kill().await;
            outlived += 1;
            if outlived == OUTLIVED {
                break;
            }
        }
        assert!(told.kills >= 10, "{} servers died at their work", told.kills);
        judge(&place, &receiver, &told).await;
    })
    .await;
}

//! The log of a container on another node, on its way through the database (R9).

use bytes::Bytes;
use domain::limits::{LOG_PARTS_AHEAD, LOG_READING_KEPT_S, LOG_SILENCE_S};
use domain::runtime::OperationCode;
use domain::{RuntimeName, TenantId};
use store::Store;
use store::runtimes::logs::read::{LogRead, NewReading, Standing};
use store::runtimes::logs::serve::{Appended, TakenReading};
use store::runtimes::logs::{LogFault, LogReading};
use store::tenants::create::TenantCreated;
use testkit::{Database, name, on_both};

use crate::placement::{BEATEN_AHEAD_MS, beat};
use crate::support::*;

fn new() -> NewReading {
    NewReading {
        tenant: T,
        runtime: RuntimeName::stored("model"),
        container_id: "c".into(),
        node: "a".into(),
        tail: 200,
        follow: true,
    }
}

async fn ask(store: &Store) -> LogReading {
    beat(store, "a", &[], None).await;
    store.ask_for_log(new()).await.expect("asks").expect("its node is there")
}

async fn take(store: &Store, node: &str) -> Vec<TakenReading> {
    store.take_log_readings(node, 10).await.expect("takes")
}

/// One that its node has begun with.
async fn taken(store: &Store) -> LogReading {
    let reading = ask(store).await;
    let taken = take(store, "a").await;
    assert_eq!(taken, [TakenReading { reading, container_id: "c".into(), tail: 200, follow: true }]);
    reading
}

async fn append(store: &Store, reading: LogReading, number: i64, part: &'static str) -> Appended {
    store.append_log(reading, number, Bytes::from(part)).await.expect("answers")
}

async fn read(store: &Store, reading: LogReading) -> (Vec<Bytes>, Standing) {
    let LogRead { parts, standing } = store.read_log(reading).await.expect("reads");
    (parts, standing)
}

/// Whether the node is told that somebody still reads.
async fn is_read(store: &Store, reading: LogReading) -> bool {
    store.keep_serving_log(reading).await.expect("answers")
}

async fn left(store: &Store) -> i64 {
    number(store, "select (select count(*) from log_readings) + (select count(*) from log_parts)").await
}

async fn silence(db: &Database) {
    db.pass_ms((LOG_SILENCE_S + 1) * 1_000).await;
}

#[tokio::test]
async fn r9_a_log_is_read_in_its_order_and_each_part_once() {
    on_both(async |db| {
        let store = &db.store;
        let reading = ask(store).await;
        assert_eq!(read(store, reading).await, (vec![], Standing::Asked));
        assert_eq!(take(store, "b").await, [], "each node takes its own");
        assert_eq!(take(store, "a").await.len(), 1);
        assert_eq!(take(store, "a").await, [], "once");
        for (number, part) in [(1, "two"), (0, "one")] {
            assert_eq!(append(store, reading, number, part).await, Appended::Done);
        }
        assert_eq!(read(store, reading).await, (vec![Bytes::from("one"), Bytes::from("two")], Standing::Open));
        assert_eq!(read(store, reading).await, (vec![], Standing::Open));
        append(store, reading, 2, "three").await;
        store.end_log(reading, None).await.expect("ends");
        assert_eq!(read(store, reading).await, (vec![Bytes::from("three")], Standing::Ended(None)));
        store.close_log(reading).await.expect("closes");
        assert_eq!(left(store).await, 0);
    })
    .await;
}

#[tokio::test]
async fn r9_no_more_of_a_log_waits_than_may() {
    on_both(async |db| {
        let store = &db.store;
        let reading = taken(store).await;
        for number in 0..LOG_PARTS_AHEAD {
            assert_eq!(append(store, reading, number, "part").await, Appended::Done);
        }
        assert_eq!(append(store, reading, LOG_PARTS_AHEAD, "more").await, Appended::Full);
        assert_eq!(read(store, reading).await.0.len(), LOG_PARTS_AHEAD as usize);
        assert_eq!(append(store, reading, LOG_PARTS_AHEAD, "more").await, Appended::Done);
        assert_eq!(read(store, reading).await.0, [Bytes::from("more")]);
    })
    .await;
}

#[tokio::test]
async fn r9_either_side_of_a_log_notices_that_the_other_is_gone() {
    on_both(async |db| {
        let store = &db.store;
        let reading = taken(store).await;
        assert!(is_read(store, reading).await);
        silence(&db).await;
        assert_eq!(read(store, reading).await.1, Standing::Silent);
        assert!(!is_read(store, reading).await);
        store.keep_reading_log(reading).await.expect("says so");
        assert!(is_read(store, reading).await);
        assert_eq!(read(store, reading).await.1, Standing::Open, "both were only slow");
        append(store, reading, 0, "one").await;
        store.close_log(reading).await.expect("closes");
        assert_eq!(left(store).await, 0, "nothing is left of what was not read");
        assert!(!is_read(store, reading).await);
        assert_eq!(append(store, reading, 1, "two").await, Appended::Gone);
        assert_eq!(read(store, reading).await, (vec![], Standing::Silent));
        ask(store).await;
        silence(&db).await;
        assert_eq!(take(store, "a").await, [], "nobody waits for it any more");
    })
    .await;
}

#[tokio::test]
async fn r9_an_engines_refusal_is_told_to_who_reads() {
    on_both(async |db| {
        let store = &db.store;
        let reading = taken(store).await;
        let fault = LogFault { code: OperationCode::NotFound, message: "no such container".into() };
        store.end_log(reading, Some(fault.clone())).await.expect("ends");
        assert_eq!(read(store, reading).await, (vec![], Standing::Ended(Some(fault))));
    })
    .await;
}

#[tokio::test]
async fn r9_a_node_that_is_lost_is_not_asked_for_a_log() {
    on_both(async |db| {
        let store = &db.store;
        assert_eq!(store.ask_for_log(new()).await.expect("answers"), None, "nobody has heard of it");
        beat(store, "a", &[], None).await;
        db.pass_ms(BEATEN_AHEAD_MS + 16_000).await;
        assert_eq!(store.ask_for_log(new()).await.expect("answers"), None, "it is lost");
        assert_eq!(left(store).await, 0);
    })
    .await;
}

#[tokio::test]
async fn r9_a_log_that_both_sides_left_is_forgotten() {
    on_both(async |db| {
        let store = &db.store;
        let reading = taken(store).await;
        append(store, reading, 0, "one").await;
        db.pass_ms((LOG_READING_KEPT_S + 1) * 1_000).await;
        let kept = taken(store).await;
        append(store, kept, 0, "one").await;
        assert_eq!(store.prune_log_readings().await.expect("prunes"), 1);
        assert_eq!(left(store).await, 2);
        assert_eq!(read(store, kept).await.0, [Bytes::from("one")]);
    })
    .await;
}

#[tokio::test]
async fn x6_another_tenant_reads_no_log_and_ends_none() {
    on_both(async |db| {
        let store = &db.store;
        let made = store.create_tenant(name("other")).await.expect("makes it");
        let TenantCreated::Created(other) = made else { panic!("it is new") };
        assert_ne!(other, TenantId::DEFAULT);
        let reading = taken(store).await;
        append(store, reading, 0, "one").await;
        let foreign = LogReading { tenant: other, ..reading };
        assert_eq!(read(store, foreign).await, (vec![], Standing::Silent));
        assert_eq!(append(store, foreign, 1, "two").await, Appended::Gone);
        store.close_log(foreign).await.expect("answers");
        assert_eq!(read(store, reading).await, (vec![Bytes::from("one")], Standing::Open));
    })
    .await;
}

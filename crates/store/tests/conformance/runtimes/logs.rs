//! Container logs of another node, streamed through the database.

use bytes::Bytes;
use domain::limits::{LOG_BUFFERED_CHUNKS, LOG_IDLE_TIMEOUT_S, LOG_READING_RETENTION_S};
use domain::runtimes::OperationCode;
use domain::{RuntimeName, TenantId};
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::runtimes::logs::read::{LogRead, LogStatus, NewReading};
use store::runtimes::logs::serve::{Appended, ClaimedReading};
use store::runtimes::logs::{LogFault, LogReading};
use testkit::{Database, name, on_both};

use crate::runtimes::placement::{BEAT_AHEAD_MS, beat};
use crate::support::*;

fn new_reading() -> NewReading {
    NewReading {
        tenant: T,
        runtime: RuntimeName::stored("model"),
        container_id: "c".into(),
        node: "a".into(),
        tail: 200,
        follow: true,
    }
}

async fn request_log(store: &Store) -> LogReading {
    beat(store, "a", &[], None).await;
    store.request_log(new_reading()).await.expect("answers").expect("the node is alive")
}

async fn claim_readings(store: &Store, node: &str) -> Vec<ClaimedReading> {
    store.claim_log_readings(node, 10).await.expect("claims")
}

/// Returns a reading that its node has claimed.
async fn claimed_reading(store: &Store) -> LogReading {
    let reading = request_log(store).await;
    let claimed = claim_readings(store, "a").await;
    assert_eq!(claimed, [ClaimedReading { reading, container_id: "c".into(), tail: 200, follow: true }]);
    reading
}

async fn append_part(store: &Store, reading: LogReading, number: i64, part: &'static str) -> Appended {
    store.append_log(reading, number, Bytes::from(part)).await.expect("answers")
}

async fn read(store: &Store, reading: LogReading) -> (Vec<Bytes>, LogStatus) {
    let LogRead { parts, status } = store.read_log(reading).await.expect("reads");
    (parts, status)
}

/// Returns true if the node learns that the log still has a reader.
async fn has_reader(store: &Store, reading: LogReading) -> bool {
    store.renew_log_server(reading).await.expect("answers")
}

async fn stored_rows(store: &Store) -> i64 {
    number(store, "select (select count(*) from log_readings) + (select count(*) from log_parts)").await
}

async fn pass_idle_timeout(db: &Database) {
    db.pass_ms((LOG_IDLE_TIMEOUT_S + 1) * 1_000).await;
}

/// Requirement R9.
#[tokio::test]
async fn a_log_is_read_in_order_and_each_chunk_once() {
    on_both(async |db| {
        let store = &db.store;
        let reading = request_log(store).await;
        assert_eq!(read(store, reading).await, (vec![], LogStatus::Requested));
        assert_eq!(claim_readings(store, "b").await, [], "each node claims its own readings");
        assert_eq!(claim_readings(store, "a").await.len(), 1);
        assert_eq!(claim_readings(store, "a").await, [], "once");
        for (number, part) in [(1, "two"), (0, "one")] {
            assert_eq!(append_part(store, reading, number, part).await, Appended::Done);
        }
        assert_eq!(read(store, reading).await, (vec![Bytes::from("one"), Bytes::from("two")], LogStatus::Open));
        assert_eq!(read(store, reading).await, (vec![], LogStatus::Open));
        append_part(store, reading, 2, "three").await;
        store.end_log(reading, None).await.expect("ends");
        assert_eq!(read(store, reading).await, (vec![Bytes::from("three")], LogStatus::Ended(None)));
        store.close_log(reading).await.expect("closes");
        assert_eq!(stored_rows(store).await, 0);
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn the_buffered_chunks_of_a_log_are_limited() {
    on_both(async |db| {
        let store = &db.store;
        let reading = claimed_reading(store).await;
        for number in 0..LOG_BUFFERED_CHUNKS {
            assert_eq!(append_part(store, reading, number, "part").await, Appended::Done);
        }
        assert_eq!(append_part(store, reading, LOG_BUFFERED_CHUNKS, "more").await, Appended::Full);
        assert_eq!(read(store, reading).await.0.len(), LOG_BUFFERED_CHUNKS as usize);
        assert_eq!(append_part(store, reading, LOG_BUFFERED_CHUNKS, "more").await, Appended::Done);
        assert_eq!(read(store, reading).await.0, [Bytes::from("more")]);
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn each_side_of_a_log_detects_that_the_other_disconnected() {
    on_both(async |db| {
        let store = &db.store;
        let reading = claimed_reading(store).await;
        assert!(has_reader(store, reading).await);
        pass_idle_timeout(&db).await;
        assert_eq!(read(store, reading).await.1, LogStatus::Silent);
        assert!(!has_reader(store, reading).await);
        store.renew_log_reader(reading).await.expect("renews");
        assert!(has_reader(store, reading).await);
        assert_eq!(read(store, reading).await.1, LogStatus::Open, "the stream resumes when both sides return");
        append_part(store, reading, 0, "one").await;
        store.close_log(reading).await.expect("closes");
        assert_eq!(stored_rows(store).await, 0, "unread parts are deleted");
        assert!(!has_reader(store, reading).await);
        assert_eq!(append_part(store, reading, 1, "two").await, Appended::Closed);
        assert_eq!(read(store, reading).await, (vec![], LogStatus::Silent));
        request_log(store).await;
        pass_idle_timeout(&db).await;
        assert_eq!(claim_readings(store, "a").await, [], "an abandoned reading is not claimed");
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn a_docker_error_is_returned_to_the_log_reader() {
    on_both(async |db| {
        let store = &db.store;
        let reading = claimed_reading(store).await;
        let fault = LogFault { code: OperationCode::NotFound, message: "no such container".into() };
        store.end_log(reading, Some(fault.clone())).await.expect("ends");
        assert_eq!(read(store, reading).await, (vec![], LogStatus::Ended(Some(fault))));
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn no_log_is_requested_from_a_lost_node() {
    on_both(async |db| {
        let store = &db.store;
        assert_eq!(store.request_log(new_reading()).await.expect("answers"), None, "the node is unknown");
        beat(store, "a", &[], None).await;
        db.pass_ms(BEAT_AHEAD_MS + 16_000).await;
        assert_eq!(store.request_log(new_reading()).await.expect("answers"), None, "the node is lost");
        assert_eq!(stored_rows(store).await, 0);
    })
    .await;
}

/// Requirement R9.
#[tokio::test]
async fn an_abandoned_log_reading_is_pruned() {
    on_both(async |db| {
        let store = &db.store;
        let reading = claimed_reading(store).await;
        append_part(store, reading, 0, "one").await;
        db.pass_ms((LOG_READING_RETENTION_S + 1) * 1_000).await;
        let recent = claimed_reading(store).await;
        append_part(store, recent, 0, "one").await;
        assert_eq!(store.prune_log_readings().await.expect("prunes"), 1);
        assert_eq!(stored_rows(store).await, 2);
        assert_eq!(read(store, recent).await.0, [Bytes::from("one")]);
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn another_tenant_can_neither_read_nor_close_a_log() {
    on_both(async |db| {
        let store = &db.store;
        let created = store.create_tenant(name("other")).await.expect("creates");
        let TenantCreated::Created(other) = created else { panic!("the tenant exists already") };
        assert_ne!(other, TenantId::DEFAULT);
        let reading = claimed_reading(store).await;
        append_part(store, reading, 0, "one").await;
        let foreign = LogReading { tenant: other, ..reading };
        assert_eq!(read(store, foreign).await, (vec![], LogStatus::Silent));
        assert_eq!(append_part(store, foreign, 1, "two").await, Appended::Closed);
        store.close_log(foreign).await.expect("answers");
        assert_eq!(read(store, reading).await, (vec![Bytes::from("one")], LogStatus::Open));
    })
    .await;
}

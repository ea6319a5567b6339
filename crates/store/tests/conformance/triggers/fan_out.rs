//! Fan-out: an event with many triggers or much data stops no other work.

use std::collections::BTreeSet;

use domain::limits::{DISPATCH_BYTES, DISPATCH_LEASE_MS, DISPATCH_ROWS, FAN_OUT_ROWS, SHARED_EVENT_RETENTION_S};
use domain::triggers::trigger::Source;
use domain::{EventId, TenantId, TriggerId};
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::triggers::events::Event;
use store::triggers::outbox::settle::RunVerdict;
use store::triggers::put::TriggerPut;
use testkit::{name, on_both};

use crate::support::*;
use crate::triggers::declarations::{assert_verified, claim_outbox, create, new, settle_all, waiting};

const EVERY_TOPIC: &str = r#"{"topic": "*"}"#;

async fn publish(store: &Store, tenant: TenantId, data: &[String]) {
    let event = |data: &String| {
        Event::new(store.clock().now(), tenant, Source::Pubsub, "publish", 0, data.clone()).with("topic", "a")
    };
    store.publish(data.iter().map(event).collect()).await.expect("publishes");
}

/// JSON text of about this size.
fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes))
}

/// Requirement T1.
#[tokio::test]
async fn conditions_are_left_to_the_dispatcher() {
    on_both(async |db| {
        let when = r#"{"topic": "*", "when": "data.n == 2"}"#;
        let other = create(&db.store, new("other", Source::Pubsub, when)).await;
        publish(&db.store, T, &[r#"{"n": 1}"#.into()]).await;
        assert_eq!(waiting(&db.store).await, [other], "the transaction of the event evaluates nothing");
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_large_event_is_stored_once_for_all_its_triggers() {
    on_both(async |db| {
        for number in 0..20 {
            create(&db.store, new(&format!("t{number}"), Source::Pubsub, EVERY_TOPIC)).await;
        }
        let data = text(100_000);
        publish(&db.store, T, std::slice::from_ref(&data)).await;
        let stored = "select sum(length(cast(data as text))) from outbox";
        assert!(number(&db.store, stored).await < 200, "rows refer to the event");
        assert_eq!(number(&db.store, "select count(*) from outbox_events").await, 1);
        let batch = claim_outbox(&db.store).await;
        assert_eq!(batch.rows.len(), 20);
        assert!(batch.rows.iter().all(|row| row.data == data));
        db.pass_ms(SHARED_EVENT_RETENTION_S * 1_000 + 1).await;
        assert_eq!(db.store.prune_events().await.expect("prunes"), 0, "rows still refer to it");
        let batch = claim_outbox(&db.store).await;
        settle_all(&db.store, batch, |_| RunVerdict::Done).await;
        assert_eq!(db.store.prune_events().await.expect("prunes"), 1);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn runs_beyond_one_part_are_written_by_the_dispatcher() {
    on_both(async |db| {
        let mut triggers = BTreeSet::new();
        for number in 0..40 {
            triggers.insert(create(&db.store, new(&format!("t{number}"), Source::Pubsub, EVERY_TOPIC)).await);
        }
        let data: Vec<String> = (0..60).map(|number| number.to_string()).collect();
        publish(&db.store, T, &data).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, FAN_OUT_ROWS as i64);
        let mut runs: BTreeSet<(TriggerId, EventId)> = BTreeSet::new();
        let mut seen = BTreeSet::new();
        loop {
            let batch = claim_outbox(&db.store).await;
            let may_have_more = batch.may_have_more;
            for row in &batch.rows {
                assert!(runs.insert((row.trigger, row.event)), "each run once");
                seen.insert(row.data.clone());
            }
            settle_all(&db.store, batch, |_| RunVerdict::Done).await;
            if !may_have_more {
                break;
            }
        }
        assert_eq!((runs.len(), seen.len()), (40 * 60, 60));
        assert!(runs.iter().all(|(trigger, _)| triggers.contains(trigger)));
        assert_eq!(number(&db.store, "select count(*) from outbox_fan_outs").await, 0);
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_dispatcher_claims_a_bounded_number_of_bytes() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, EVERY_TOPIC)).await;
        let data: Vec<String> = (0..5).map(|_| text(DISPATCH_BYTES / 3)).collect();
        publish(&db.store, T, &data).await;
        let batch = claim_outbox(&db.store).await;
        assert_eq!((batch.rows.len(), batch.may_have_more), (2, true));
        let batch = claim_outbox(&db.store).await;
        assert_eq!((batch.rows.len(), batch.may_have_more), (2, true));
        let batch = claim_outbox(&db.store).await;
        assert_eq!((batch.rows.len(), batch.may_have_more), (1, false));
        db.pass_ms(DISPATCH_LEASE_MS + 1).await;
        assert_eq!(claim_outbox(&db.store).await.rows.len(), 2, "a claim that died comes back in parts too");
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn every_tenant_has_a_share_of_each_dispatch() {
    on_both(async |db| {
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.expect("creates") else {
            panic!("the tenant exists already")
        };
        create(&db.store, new("t", Source::Pubsub, EVERY_TOPIC)).await;
        let id = db.store.new_trigger_id();
        let created = db.store.create_trigger(other, id, new("t", Source::Pubsub, EVERY_TOPIC), "ann").await;
        assert_eq!(created.expect("answers"), TriggerPut::Done(id));
        let many: Vec<String> = (0..DISPATCH_ROWS + 100).map(|number| number.to_string()).collect();
        publish(&db.store, T, &many).await;
        db.pass_ms(1_000).await;
        publish(&db.store, other, &["1".into()]).await;
        let batch = claim_outbox(&db.store).await;
        let of = |tenant: TenantId| batch.rows.iter().filter(|row| row.tenant == tenant).count();
        assert_eq!((of(T), of(other), batch.may_have_more), (DISPATCH_ROWS / 2, 1, true));
    })
    .await;
}

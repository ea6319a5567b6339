//! Inbound hooks and mail: each message is received once, by the tenant that owns the address.

use domain::limits::{DELIVERY_GIVE_UP_S, MAINTENANCE_ROWS};
use domain::triggers::trigger::Source;
use store::triggers::NewTrigger;
use store::triggers::events::Event;
use store::triggers::events::hook::{Received, SignedMessage};
use store::triggers::outbox::settle::RunVerdict;
use store::triggers::put::TriggerPut;
use testkit::on_both;

use crate::support::*;
use crate::triggers::declarations::{assert_verified, claim_outbox, create, new, settle_all, waiting};

/// A signed message `m` whose body has this hash.
fn signed(hash: u8) -> SignedMessage {
    SignedMessage { id: "m".into(), body_hash: [hash; 32] }
}

/// Requirement T1.
#[tokio::test]
async fn a_hook_accepts_requests_and_deduplicates_signed_messages() {
    on_both(async |db| {
        let id = create(&db.store, new("hook", Source::Http, "{}")).await;
        let event = || vec![Event::new(db.clock.now(), T, Source::Http, "receive", 0, "1".into())];
        let receive =
            async |message: Option<SignedMessage>| db.store.receive_hook(id, event(), message).await.expect("answers");
        let Received::Accepted(first) = receive(Some(signed(1))).await else { panic!("the message is new") };
        db.pass_ms(1_000).await;
        assert_eq!(receive(Some(signed(1))).await, Received::Duplicate(first));
        assert_eq!(receive(Some(signed(2))).await, Received::Replay);
        assert!(matches!(receive(None).await, Received::Accepted(_)));
        assert_eq!(waiting(&db.store).await, [id, id]);
        let off = NewTrigger { enabled: false, ..new("hook", Source::Http, "{}") };
        assert_eq!(db.store.replace_trigger(T, id, off, "ann").await.expect("answers"), TriggerPut::Done(id));
        assert_eq!(receive(None).await, Received::NotFound);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn a_message_signed_again_days_later_is_still_deduplicated() {
    on_both(async |db| {
        let id = create(&db.store, new("hook", Source::Http, "{}")).await;
        let receive = async || {
            let event = Event::new(db.clock.now(), T, Source::Http, "receive", 0, "1".into());
            db.store.receive_hook(id, vec![event], Some(signed(1))).await.expect("answers")
        };
        let Received::Accepted(first) = receive().await else { panic!("the message is new") };
        db.pass_ms(DELIVERY_GIVE_UP_S * 1_000).await;
        assert_eq!(db.store.prune_events().await.expect("prunes"), 0, "the sender may still retry");
        assert_eq!(receive().await, Received::Duplicate(first));
        db.pass_ms(3_600_000).await;
        // One receipt is for the id, the other for the id and body.
        assert_eq!(db.store.prune_events().await.expect("prunes"), 2);
        let pruned = "select count(*) from prunings where kind = 'hook_receipts' and rows_pruned = 2";
        assert_eq!(number(&db.store, pruned).await, 1, "the pruning is logged");
        assert!(matches!(receive().await, Received::Accepted(_)));
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn hook_receipts_are_pruned_in_bounded_batches() {
    on_both(async |db| {
        let (id, at, numbers) = if db.store.is_postgres() {
            ("gen_random_uuid()", "'epoch'::timestamptz", "generate_series(1, MANY) n")
        } else {
            let numbers =
                "(with recursive c(n) as (select 1 union all select n + 1 from c where n < MANY) select n from c)";
            ("randomblob(16)", "0", numbers)
        };
        let many = (MAINTENANCE_ROWS + 200).to_string();
        let text = format!(
            "insert into hook_receipts (trigger_id, message, received_at) select {id}, 'm' || n, {at} from {numbers}"
        );
        run_sql(&db.store, &text.replace("MANY", &many)).await.expect("fills");
        for round in [MAINTENANCE_ROWS as u64, 200, 0] {
            assert_eq!(db.store.prune_events().await.expect("prunes"), round);
        }
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn a_mail_address_stays_with_its_tenant_while_its_trigger_is_disabled() {
    on_both(async |db| {
        let created = db.store.create_tenant(testkit::name("other")).await.expect("creates a tenant");
        let store::access::tenants::create::TenantCreated::Created(other) = created else { panic!("{created:?}") };
        let orders = new("orders", Source::Email, r#"{"to": "orders@example.com"}"#);
        let mine = create(&db.store, orders.clone()).await;
        let all = new("all", Source::Email, r#"{"to": "*"}"#);
        db.store.create_trigger(other, db.store.new_trigger_id(), all, "bob").await.expect("creates a trigger");
        let twice = ["orders@example.com".to_owned(), "Orders@Example.com".to_owned()];
        let receive = async || db.store.receive_mail(&twice, "{}".into()).await.expect("receives");
        assert_eq!(receive().await, 1, "one event per address, even if it appears twice");
        let off = NewTrigger { enabled: false, ..orders };
        assert_eq!(db.store.replace_trigger(T, mine, off, "ann").await.expect("answers"), TriggerPut::Done(mine));
        assert!(!db.store.accepts_mail("orders@example.com").await.expect("looks"));
        assert_eq!(receive().await, 0, "wildcard triggers of other tenants do not match");
        assert_eq!(waiting(&db.store).await, [mine]);
        assert!(db.store.accepts_mail("other@example.com").await.expect("looks"));
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn mail_belongs_to_one_tenant_and_starts_only_its_triggers() {
    on_both(async |db| {
        let created = db.store.create_tenant(testkit::name("other")).await.expect("creates a tenant");
        let store::access::tenants::create::TenantCreated::Created(other) = created else { panic!("{created:?}") };
        let all = create(&db.store, new("all", Source::Email, r#"{"to": "*"}"#)).await;
        let ops = create(&db.store, new("ops", Source::Email, r#"{"to": "Ops@Example.com"}"#)).await;
        let theirs = db.store.new_trigger_id();
        let to = |to: &str| new("theirs", Source::Email, &format!(r#"{{"to": "{to}"}}"#));
        db.store.create_trigger(other, theirs, to("them@example.com"), "bob").await.expect("creates a trigger");
        let receive = async |to: &str| {
            let to = to.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let started = db.store.receive_mail(&to, r#"{"subject": "x"}"#.into()).await.expect("receives");
            let batch = claim_outbox(&db.store).await;
            let mut triggers: Vec<_> = batch.rows.iter().map(|row| (row.trigger, row.tenant == T)).collect();
            triggers.sort_unstable();
            assert_eq!(triggers.len(), started);
            settle_all(&db.store, batch, |_| RunVerdict::Done).await;
            triggers
        };
        assert!(db.store.accepts_mail("OPS@example.com").await.expect("looks"));
        let mut both = [(all, true), (ops, true)];
        both.sort_unstable();
        assert_eq!(receive("OPS@example.com").await, both, "case-insensitive");
        assert_eq!(receive("them@example.com").await, [(theirs, false)], "an exact address excludes wildcards");
        assert_eq!(
            receive("me@example.com you@example.com").await,
            [(all, true), (all, true)],
            "one event per recipient"
        );
        assert!(db.store.delete_trigger(T, all, "ann").await.expect("deletes"));
        assert!(!db.store.accepts_mail("me@example.com").await.expect("looks"));
        assert_verified(&db.store).await;
    })
    .await;
}

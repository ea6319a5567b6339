//! T1, X13: what comes from outside, to a hook or by mail, is taken once and by whom it belongs to.

use domain::limits::{DELIVERY_GIVE_UP_S, MAINTENANCE_ROWS};
use domain::trigger::Source;
use store::events::Event;
use store::events::hook::{Message, Received};
use store::outbox::settle::Verdict;
use store::triggers::NewTrigger;
use store::triggers::put::Put;
use testkit::on_both;

use crate::support::*;
use crate::triggers::{create, holds, new, settle_all, take, waiting};

/// A message `m` whose body has this hash.
fn signed(hash: u8) -> Message {
    Message { id: "m".into(), body_hash: [hash; 32] }
}

#[tokio::test]
async fn t1_a_hook_hears_what_is_sent_to_it_and_a_message_once() {
    on_both(async |db| {
        let id = create(&db.store, new("hook", Source::Http, "{}")).await;
        let event = || vec![Event::new(db.clock.now(), T, Source::Http, "receive", 0, "1".into())];
        let receive =
            async |message: Option<Message>| db.store.receive_hook(id, event(), message).await.expect("answers");
        let Received::Taken(first) = receive(Some(signed(1))).await else { panic!("it is new") };
        db.pass_ms(1_000).await;
        assert_eq!(receive(Some(signed(1))).await, Received::Before(first));
        assert_eq!(receive(Some(signed(2))).await, Received::Replay);
        assert!(matches!(receive(None).await, Received::Taken(_)));
        assert_eq!(waiting(&db.store).await, [id, id]);
        let off = NewTrigger { enabled: false, ..new("hook", Source::Http, "{}") };
        assert_eq!(db.store.replace_trigger(T, id, off, "ann").await.expect("answers"), Put::Done(id));
        assert_eq!(receive(None).await, Received::NotFound);
    })
    .await;
}

#[tokio::test]
async fn t1_a_message_that_is_signed_anew_days_later_is_still_taken_once() {
    on_both(async |db| {
        let id = create(&db.store, new("hook", Source::Http, "{}")).await;
        let receive = async || {
            let event = Event::new(db.clock.now(), T, Source::Http, "receive", 0, "1".into());
            db.store.receive_hook(id, vec![event], Some(signed(1))).await.expect("answers")
        };
        let Received::Taken(first) = receive().await else { panic!("it is new") };
        db.pass_ms(DELIVERY_GIVE_UP_S * 1_000).await;
        assert_eq!(db.store.prune_events().await.expect("prunes"), 0, "its sender may still try");
        assert_eq!(receive().await, Received::Before(first));
        db.pass_ms(3_600_000).await;
        // One says that the id was used, one with which body.
        assert_eq!(db.store.prune_events().await.expect("prunes"), 2);
        let told = "select count(*) from prunings where kind = 'hook_receipts' and rows_pruned = 2";
        assert_eq!(number(&db.store, told).await, 1, "X13: what was pruned is told");
        assert!(matches!(receive().await, Received::Taken(_)));
    })
    .await;
}

#[tokio::test]
async fn x13_receipts_are_forgotten_in_bounded_rounds() {
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

#[tokio::test]
async fn t1_an_address_stays_its_tenants_while_its_trigger_is_off() {
    on_both(async |db| {
        let made = db.store.create_tenant(testkit::name("other")).await.expect("makes a tenant");
        let store::tenants::create::TenantCreated::Created(other) = made else { panic!("{made:?}") };
        let orders = new("orders", Source::Email, r#"{"to": "orders@example.com"}"#);
        let mine = create(&db.store, orders.clone()).await;
        let all = new("all", Source::Email, r#"{"to": "*"}"#);
        db.store.create_trigger(other, db.store.new_trigger_id(), all, "bob").await.expect("makes a trigger");
        let twice = ["orders@example.com".to_owned(), "Orders@Example.com".to_owned()];
        let receive = async || db.store.receive_mail(&twice, "{}".into()).await.expect("receives");
        assert_eq!(receive().await, 1, "one mail to one address, however often it is named");
        let off = NewTrigger { enabled: false, ..orders };
        assert_eq!(db.store.replace_trigger(T, mine, off, "ann").await.expect("answers"), Put::Done(mine));
        assert!(!db.store.awaits_mail("orders@example.com").await.expect("looks"));
        assert_eq!(receive().await, 0, "and not for whoever listens to everything");
        assert_eq!(waiting(&db.store).await, [mine]);
        assert!(db.store.awaits_mail("other@example.com").await.expect("looks"));
    })
    .await;
}

#[tokio::test]
async fn t1_mail_belongs_to_one_tenant_and_starts_work_there() {
    on_both(async |db| {
        let made = db.store.create_tenant(testkit::name("other")).await.expect("makes a tenant");
        let store::tenants::create::TenantCreated::Created(other) = made else { panic!("{made:?}") };
        let all = create(&db.store, new("all", Source::Email, r#"{"to": "*"}"#)).await;
        let ops = create(&db.store, new("ops", Source::Email, r#"{"to": "Ops@Example.com"}"#)).await;
        let theirs = db.store.new_trigger_id();
        let to = |to: &str| new("theirs", Source::Email, &format!(r#"{{"to": "{to}"}}"#));
        db.store.create_trigger(other, theirs, to("them@example.com"), "bob").await.expect("makes a trigger");
        let receive = async |to: &str| {
            let to = to.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let heard = db.store.receive_mail(&to, r#"{"subject": "x"}"#.into()).await.expect("receives");
            let batch = take(&db.store).await;
            let mut triggers: Vec<_> = batch.rows.iter().map(|row| (row.trigger, row.tenant == T)).collect();
            triggers.sort_unstable();
            assert_eq!(triggers.len(), heard);
            settle_all(&db.store, batch, |_| Verdict::Done).await;
            triggers
        };
        assert!(db.store.awaits_mail("OPS@example.com").await.expect("looks"));
        let mut both = [(all, true), (ops, true)];
        both.sort_unstable();
        assert_eq!(receive("OPS@example.com").await, both, "without regard to case");
        assert_eq!(receive("them@example.com").await, [(theirs, false)], "who names it exactly has it alone");
        assert_eq!(
            receive("me@example.com you@example.com").await,
            [(all, true), (all, true)],
            "one for each recipient"
        );
        assert!(db.store.delete_trigger(T, all, "ann").await.expect("deletes"));
        assert!(!db.store.awaits_mail("me@example.com").await.expect("looks"));
        holds(&db.store).await;
    })
    .await;
}

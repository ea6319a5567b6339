//! T3, T4, T11: the rows that events have written are taken, done once and settled, whoever dies meanwhile.

use domain::limits::DISPATCH_LEASE_MS;
use domain::trigger::Source;
use store::Store;
use store::kv::Condition;
use store::kv::seen::Seen;
use store::outbox::Taken;
use store::outbox::deed::Deed;
use store::outbox::settle::{Dispatched, Script, Verdict};
use store::triggers::runs::{Ran, RunOutcome};
use testkit::{job, on_both, on_postgres};

use crate::support::*;
use crate::triggers::{create, holds, made, make_job, new, publish, settle_all, take, waiting};

#[tokio::test]
async fn t3_rows_of_a_dispatcher_that_died_come_back_and_its_late_word_changes_nothing() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let dead = take(&db.store).await;
        assert_eq!((dead.rows.len(), take(&db.store).await.rows.len()), (1, 0), "one dispatcher has it");
        db.pass_ms(DISPATCH_LEASE_MS + 1).await;
        let next = take(&db.store).await;
        assert_eq!(next.rows.len(), 1);
        assert_eq!(settle_all(&db.store, dead, make_job).await, Dispatched::default());
        assert_eq!(made(&db.store).await, 0);
        assert_eq!(settle_all(&db.store, next.clone(), make_job).await.jobs, 1);
        assert_eq!(settle_all(&db.store, next, make_job).await, Dispatched::default(), "T4: once");
        assert_eq!((made(&db.store).await, waiting(&db.store).await.len()), (1, 0));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t3_two_dispatchers_share_the_rows_and_make_each_job_once() {
    on_postgres(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        for _ in 0..50 {
            publish(&db.store, "a").await;
        }
        let (one, other) = (db.another_node().await, db.another_node().await);
        let dispatch = async |store: &Store| -> usize {
            let mut jobs = 0;
            loop {
                let batch = take(store).await;
                if batch.rows.is_empty() {
                    return jobs;
                }
                jobs += settle_all(store, batch, make_job).await.jobs;
            }
        };
        let (a, b) = tokio::join!(dispatch(&one), dispatch(&other));
        assert_eq!((a + b, made(&db.store).await), (50, 50));
        assert_eq!(db.store.trigger(T, trigger).await.expect("reads").expect("there").fired, 50);
        holds(&db.store).await;
    })
    .await;
}

/// Ids follow clocks, and commits follow neither: a row may appear below one that was taken before.
#[tokio::test]
async fn t3_a_row_that_appears_below_one_that_was_taken_is_taken_too() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        db.clock.advance_ms(3_600_000);
        publish(&db.store, "a").await;
        let first = take(&db.store).await;
        db.clock.advance_ms(-3_600_000);
        publish(&db.store, "b").await;
        let late = take(&db.store).await;
        assert_eq!((first.rows.len(), late.rows.len()), (1, 1));
        assert!(late.rows[0].id < first.rows[0].id, "the clock of its node was behind");
        assert_eq!(settle_all(&db.store, first, make_job).await.jobs, 1);
        publish(&db.store, "c").await;
        let later = take(&db.store).await;
        assert_eq!(settle_all(&db.store, late, make_job).await.jobs, 1);
        assert_eq!(settle_all(&db.store, later, make_job).await.jobs, 1);
        assert_eq!((made(&db.store).await, waiting(&db.store).await.len()), (3, 0));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t3_no_room_puts_a_row_off_and_drops_nothing() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        for _ in 0..5 {
            let batch = take(&db.store).await;
            assert_eq!(settle_all(&db.store, batch, |_| Verdict::Later { delay_ms: 30_000 }).await.later, 1);
            assert_eq!(take(&db.store).await.rows.len(), 0, "not before its time");
            db.pass_ms(30_000).await;
        }
        let batch = take(&db.store).await;
        assert_eq!((batch.rows.len(), batch.rows[0].attempts.len()), (1, 0), "and it costs no try");
    })
    .await;
}

#[tokio::test]
async fn t4_what_a_script_did_holds_once_and_only_with_its_row() {
    on_both(async |db| {
        let script = create(&db.store, new("script", Source::Pubsub, r#"{"topic": "a"}"#)).await;
        let hears = create(&db.store, new("hears", Source::Kv, r#"{"collection": "c"}"#)).await;
        publish(&db.store, "a").await;
        let dead = take(&db.store).await;
        db.pass_ms(DISPATCH_LEASE_MS + 1).await;
        let next = take(&db.store).await;
        let id = domain::JobId::new(store::clock::new_uuid(db.clock.now()));
        let ran = Ran { script: uuid::Uuid::nil(), duration_ms: 1, result: Some("1".into()), log: vec!["x".into()] };
        let deeds = vec![
            Deed::Enqueue { id, job: Box::new(job("made")) },
            Deed::Keep { collection: "c".into(), key: "k".into(), value: Some("7".into()), depth: 1 },
        ];
        let verdict =
            |_: &Taken| Verdict::Script(Box::new(Script { ran: ran.clone(), deeds: deeds.clone(), reads: vec![] }));
        assert_eq!(settle_all(&db.store, dead, verdict).await, Dispatched::default(), "its row is another's");
        assert_eq!((made(&db.store).await, db.store.kv(T, "c", "k").await.expect("reads")), (0, None));
        assert_eq!(settle_all(&db.store, next.clone(), verdict).await.done, 1);
        assert_eq!(settle_all(&db.store, next, verdict).await, Dispatched::default(), "once");
        assert_eq!((made(&db.store).await, waiting(&db.store).await), (1, vec![hears]));
        assert!(db.store.job(T, id).await.expect("reads").is_some(), "under the id that the script knows");
        let runs = db.store.trigger_runs(T, script, None, 9).await.expect("lists");
        assert_eq!((runs.len(), runs[0].outcome), (1, RunOutcome::Done));
        db.pass_ms(domain::limits::TRIGGER_RUNS_KEEP_S * 1_000 - 60_000).await;
        assert_eq!(db.store.prune_trigger_runs().await.expect("prunes"), 0, "not before its time");
        db.pass_ms(60_001).await;
        assert_eq!(db.store.prune_trigger_runs().await.expect("prunes"), 1);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t11_a_script_that_read_what_was_changed_since_has_done_nothing_and_keeps_its_row() {
    on_both(async |db| {
        create(&db.store, new("script", Source::Pubsub, r#"{"topic": "a"}"#)).await;
        publish(&db.store, "a").await;
        let batch = take(&db.store).await;
        let set = async |value: &str| {
            db.store.set_kv(T, ("c", "k"), value.into(), Condition::Always, 0).await.expect("sets");
        };
        let kept = async || db.store.kv(T, "c", "k").await.expect("reads");
        let settle = async |seen: &Seen, deeds: Vec<Deed>| {
            let ran = Ran { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: vec![] };
            let script = Script { ran, deeds, reads: vec![seen.clone()] };
            settle_all(&db.store, batch.clone(), |_| Verdict::Script(Box::new(script.clone()))).await
        };
        let conflict = Dispatched { conflicts: 1, ..Dispatched::default() };
        let keep = |key: &str| vec![Deed::Keep { collection: "c".into(), key: key.into(), value: None, depth: 1 }];
        let absent = Seen::new("c", "k", None);
        set("1").await;
        // Also when what it does is done to another key.
        assert_eq!(settle(&absent, keep("k")).await, conflict);
        assert_eq!(settle(&absent, keep("other")).await, conflict);
        assert_eq!(kept().await.map(|entry| entry.value).as_deref(), Some("1"));
        let first = Seen::new("c", "k", kept().await.as_ref());
        db.store.delete_kv(T, ("c", "k"), Condition::Always, 0).await.expect("deletes");
        assert_eq!(settle(&first, keep("k")).await, conflict, "it is gone");
        db.pass_ms(1).await;
        set("2").await;
        assert_eq!(settle(&first, keep("k")).await, conflict, "it is there again, as another");
        assert_eq!(waiting(&db.store).await.len(), 1);
        let second = Seen::new("c", "k", kept().await.as_ref());
        assert_eq!(settle(&second, keep("k")).await.done, 1);
        assert_eq!((kept().await, waiting(&db.store).await.len()), (None, 0));
        publish(&db.store, "a").await;
        let next = take(&db.store).await;
        let ran = Ran { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: vec![] };
        let looks = Script { ran, deeds: vec![], reads: vec![second] };
        let looked = settle_all(&db.store, next, |_| Verdict::Script(Box::new(looks.clone()))).await;
        assert_eq!(looked.done, 1, "what only looks is never too late");
    })
    .await;
}

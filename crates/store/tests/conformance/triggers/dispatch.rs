//! Dispatch: outbox rows are claimed, executed once and settled, even if dispatchers die.

use domain::limits::DISPATCH_LEASE_MS;
use domain::triggers::trigger::Source;
use store::Store;
use store::triggers::kv::Condition;
use store::triggers::kv::observed_keys::ObservedKey;
use store::triggers::outbox::OutboxRow;
use store::triggers::outbox::script_effect::ScriptEffect;
use store::triggers::outbox::settle::{CompletedScript, Dispatched, RunVerdict};
use store::triggers::runs::{RunOutcome, ScriptRun};
use testkit::{job, on_both, on_postgres};

use crate::support::*;
use crate::triggers::declarations::{
    assert_verified, claim_outbox, create, created_jobs, make_job, new, publish, settle_all, waiting,
};

/// Requirement T3.
#[tokio::test]
async fn outbox_rows_of_a_dead_dispatcher_are_reclaimed_and_its_late_settle_is_ignored() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let dead = claim_outbox(&db.store).await;
        assert_eq!(
            (dead.rows.len(), claim_outbox(&db.store).await.rows.len()),
            (1, 0),
            "one dispatcher has claimed it"
        );
        db.pass_ms(DISPATCH_LEASE_MS + 1).await;
        let next = claim_outbox(&db.store).await;
        assert_eq!(next.rows.len(), 1);
        assert_eq!(settle_all(&db.store, dead, make_job).await, Dispatched::default());
        assert_eq!(created_jobs(&db.store).await, 0);
        assert_eq!(settle_all(&db.store, next.clone(), make_job).await.jobs, 1);
        assert_eq!(settle_all(&db.store, next, make_job).await, Dispatched::default(), "T4: once");
        assert_eq!((created_jobs(&db.store).await, waiting(&db.store).await.len()), (1, 0));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T3.
#[tokio::test]
async fn two_dispatchers_share_outbox_rows_and_create_each_job_once() {
    on_postgres(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        for _ in 0..50 {
            publish(&db.store, "a").await;
        }
        let (one, other) = (db.another_node().await, db.another_node().await);
        let dispatch = async |store: &Store| -> usize {
            let mut jobs = 0;
            loop {
                let batch = claim_outbox(store).await;
                if batch.rows.is_empty() {
                    return jobs;
                }
                jobs += settle_all(store, batch, make_job).await.jobs;
            }
        };
        let (a, b) = tokio::join!(dispatch(&one), dispatch(&other));
        assert_eq!((a + b, created_jobs(&db.store).await), (50, 50));
        assert_eq!(db.store.trigger(T, trigger).await.expect("reads").expect("there").fired, 50);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Ids follow clocks, and the order of commits follows neither. A row may appear below one that was claimed before.
/// Requirement T3.
#[tokio::test]
async fn an_outbox_row_that_appears_below_a_claimed_one_is_claimed_too() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        db.clock.advance_ms(3_600_000);
        publish(&db.store, "a").await;
        let first = claim_outbox(&db.store).await;
        db.clock.advance_ms(-3_600_000);
        publish(&db.store, "b").await;
        let late = claim_outbox(&db.store).await;
        assert_eq!((first.rows.len(), late.rows.len()), (1, 1));
        assert!(late.rows[0].id < first.rows[0].id, "the clock of its node is behind");
        assert_eq!(settle_all(&db.store, first, make_job).await.jobs, 1);
        publish(&db.store, "c").await;
        let later = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, late, make_job).await.jobs, 1);
        assert_eq!(settle_all(&db.store, later, make_job).await.jobs, 1);
        assert_eq!((created_jobs(&db.store).await, waiting(&db.store).await.len()), (3, 0));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T3.
#[tokio::test]
async fn a_deferred_outbox_row_is_retried_without_counting_an_attempt() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        for _ in 0..5 {
            let batch = claim_outbox(&db.store).await;
            assert_eq!(settle_all(&db.store, batch, |_| RunVerdict::Deferred { delay_ms: 30_000 }).await.deferred, 1);
            assert_eq!(claim_outbox(&db.store).await.rows.len(), 0, "not before it is due");
            db.pass_ms(30_000).await;
        }
        let batch = claim_outbox(&db.store).await;
        assert_eq!((batch.rows.len(), batch.rows[0].attempts.len()), (1, 0), "and no attempt is counted");
    })
    .await;
}

/// Requirement T4.
#[tokio::test]
async fn script_effects_apply_once_and_only_with_their_outbox_row() {
    on_both(async |db| {
        let script = create(&db.store, new("script", Source::Pubsub, r#"{"topic": "a"}"#)).await;
        let trigger_id = create(&db.store, new("hears", Source::Kv, r#"{"collection": "c"}"#)).await;
        publish(&db.store, "a").await;
        let dead = claim_outbox(&db.store).await;
        db.pass_ms(DISPATCH_LEASE_MS + 1).await;
        let next = claim_outbox(&db.store).await;
        let id = domain::JobId::new(store::db::clock::new_uuid(db.clock.now()));
        let ran =
            ScriptRun { script: uuid::Uuid::nil(), duration_ms: 1, result: Some("1".into()), log: vec!["x".into()] };
        let script_effects = vec![
            ScriptEffect::Enqueue { id, job: Box::new(job("made")) },
            ScriptEffect::ChangeKv { collection: "c".into(), key: "k".into(), value: Some("7".into()), depth: 1 },
        ];
        let verdict = |_: &OutboxRow| {
            RunVerdict::Script(Box::new(CompletedScript {
                ran: ran.clone(),
                script_effects: script_effects.clone(),
                reads: vec![],
            }))
        };
        assert_eq!(settle_all(&db.store, dead, verdict).await, Dispatched::default(), "another dispatcher has its row");
        assert_eq!((created_jobs(&db.store).await, db.store.kv(T, "c", "k").await.expect("reads")), (0, None));
        assert_eq!(settle_all(&db.store, next.clone(), verdict).await.done, 1);
        assert_eq!(settle_all(&db.store, next, verdict).await, Dispatched::default(), "once");
        assert_eq!((created_jobs(&db.store).await, waiting(&db.store).await), (1, vec![trigger_id]));
        assert!(db.store.job(T, id).await.expect("reads").is_some(), "with the id that the script got");
        let runs = db.store.trigger_runs(T, script, None, 9).await.expect("lists");
        assert_eq!((runs.len(), runs[0].outcome), (1, RunOutcome::Done));
        db.pass_ms(domain::limits::TRIGGER_RUN_RETENTION_S * 1_000 - 60_000).await;
        assert_eq!(db.store.prune_trigger_runs().await.expect("prunes"), 0, "not before it is due");
        db.pass_ms(60_001).await;
        assert_eq!(db.store.prune_trigger_runs().await.expect("prunes"), 1);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T11.
#[tokio::test]
async fn a_script_with_a_stale_read_applies_nothing_and_keeps_its_outbox_row() {
    on_both(async |db| {
        create(&db.store, new("script", Source::Pubsub, r#"{"topic": "a"}"#)).await;
        publish(&db.store, "a").await;
        let batch = claim_outbox(&db.store).await;
        let set = async |value: &str| {
            db.store.set_kv(T, ("c", "k"), value.into(), Condition::Always, 0).await.expect("sets");
        };
        let stored = async || db.store.kv(T, "c", "k").await.expect("reads");
        let settle = async |seen: &ObservedKey, script_effects: Vec<ScriptEffect>| {
            let ran = ScriptRun { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: vec![] };
            let script = CompletedScript { ran, script_effects, reads: vec![seen.clone()] };
            settle_all(&db.store, batch.clone(), |_| RunVerdict::Script(Box::new(script.clone()))).await
        };
        let conflict = Dispatched { conflicts: 1, ..Dispatched::default() };
        let write_to =
            |key: &str| vec![ScriptEffect::ChangeKv { collection: "c".into(), key: key.into(), value: None, depth: 1 }];
        let absent = ObservedKey::new("c", "k", None);
        set("1").await;
        // The check applies also if the script writes another key.
        assert_eq!(settle(&absent, write_to("k")).await, conflict);
        assert_eq!(settle(&absent, write_to("other")).await, conflict);
        assert_eq!(stored().await.map(|entry| entry.value).as_deref(), Some("1"));
        let first = ObservedKey::new("c", "k", stored().await.as_ref());
        db.store.delete_kv(T, ("c", "k"), Condition::Always, 0).await.expect("deletes");
        assert_eq!(settle(&first, write_to("k")).await, conflict, "the key was deleted");
        db.pass_ms(1).await;
        set("2").await;
        assert_eq!(settle(&first, write_to("k")).await, conflict, "the key was recreated with another version");
        assert_eq!(waiting(&db.store).await.len(), 1);
        let second = ObservedKey::new("c", "k", stored().await.as_ref());
        assert_eq!(settle(&second, write_to("k")).await.done, 1);
        assert_eq!((stored().await, waiting(&db.store).await.len()), (None, 0));
        publish(&db.store, "a").await;
        let next = claim_outbox(&db.store).await;
        let ran = ScriptRun { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: vec![] };
        let read_only = CompletedScript { ran, script_effects: vec![], reads: vec![second] };
        let settled = settle_all(&db.store, next, |_| RunVerdict::Script(Box::new(read_only.clone()))).await;
        assert_eq!(settled.done, 1, "a read-only script never conflicts");
    })
    .await;
}

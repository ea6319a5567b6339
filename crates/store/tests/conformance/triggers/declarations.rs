//! Triggers: an event starts its targets in the event's transaction, exactly once.

use domain::limits::{ERROR_MESSAGE_BYTES, IDEMPOTENCY_RETENTION_S};
use domain::triggers::trigger::Source;
use domain::{RetryPolicy, TriggerId};
use store::Store;
use store::queue::enqueue::Idempotency;
use store::queue::settle::{End, SettleStatus};
use store::triggers::dead_letters::list::DeadLetterFilter;
use store::triggers::events::Event;
use store::triggers::events::publish::Published;
use store::triggers::kv::Condition;
use store::triggers::kv::change::KvReply;
use store::triggers::outbox::claim::OutboxBatch;
use store::triggers::outbox::settle::{Dispatched, RunFailure, RunVerdict};
use store::triggers::outbox::{OutboxRow, failure};
use store::triggers::put::TriggerPut;
use store::triggers::runs::ScriptRun;
use store::triggers::{Mode, NewTrigger};
use testkit::{job, on_both};
use tokio::task::JoinSet;

use crate::support::*;

const TARGET: &str = r#"{"job": {"queue": "made", "kind": "k"}}"#;

pub(crate) fn new(name: &str, source: Source, filter: &str) -> NewTrigger {
    NewTrigger {
        name: name.into(),
        source,
        filter: filter.into(),
        target: TARGET.into(),
        mode: Mode::Async,
        retry: RetryPolicy::NONE,
        max_attempts: 2,
        enabled: true,
        handles: false,
        next_at: None,
    }
}

pub(crate) async fn create(store: &Store, trigger: NewTrigger) -> TriggerId {
    let id = store.new_trigger_id();
    assert_eq!(store.create_trigger(T, id, trigger, "ann").await.expect("answers"), TriggerPut::Done(id));
    id
}

/// For example, one that a newer version stored.
/// Requirement X9.
#[tokio::test]
async fn an_undecodable_trigger_does_not_affect_other_triggers() {
    on_both(async |db| {
        create(&db.store, new("unreadable", Source::Job, "{}")).await;
        let started = create(&db.store, new("readable", Source::Job, r#"{"states": ["succeeded"]}"#)).await;
        let newer = "update triggers set filter = '{\"of_a_newer_version\": 1}' where name = 'unreadable'";
        run_sql(&db.store, newer).await.expect("writes");
        run_sql(&db.store, "update trigger_clock set version = version + 1").await.expect("ticks");
        push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_eq!(waiting(&db.store).await, [started], "other triggers still match");
    })
    .await;
}

pub(crate) async fn publish(store: &Store, topic: &str) {
    let event = Event::new(store.clock().now(), T, Source::Pubsub, "publish", 0, r#"{"n":1}"#.into());
    store.publish(vec![event.with("topic", topic)]).await.expect("publishes");
}

/// Returns the triggers with a pending outbox row, in order.
pub(crate) async fn waiting(store: &Store) -> Vec<TriggerId> {
    let text = |column| format!("select {column} from outbox order by id");
    let found = texts(store, &text("lower(hex(trigger_id))"), &text("trigger_id::text")).await;
    found.iter().map(|id| TriggerId::new(id.parse().expect("an id"))).collect()
}

pub(crate) async fn claim_outbox(store: &Store) -> OutboxBatch {
    store.claim_outbox().await.expect("claims")
}

pub(crate) async fn settle_all(
    store: &Store,
    batch: OutboxBatch,
    verdict: impl Fn(&OutboxRow) -> RunVerdict,
) -> Dispatched {
    let outcomes = batch.rows.into_iter().map(|row| {
        let verdict = verdict(&row);
        (row, verdict)
    });
    store.settle_outbox(batch.lease, outcomes.collect()).await.expect("settles")
}

pub(crate) fn make_job(_: &OutboxRow) -> RunVerdict {
    RunVerdict::Job(Box::new(job("made")))
}

pub(crate) async fn created_jobs(store: &Store) -> i64 {
    number(store, "select count(*) from live_jobs where queue = 'made'").await
}

pub(crate) async fn assert_verified(store: &Store) {
    assert_eq!(store.verify().await.expect("verifies").findings, []);
}

/// Requirement T1.
#[tokio::test]
async fn an_event_writes_one_outbox_row_per_matching_trigger() {
    on_both(async |db| {
        let all = create(&db.store, new("all", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        let some = create(&db.store, new("some", Source::Pubsub, r#"{"topic": "orders:*"}"#)).await;
        create(&db.store, new("other", Source::Pubsub, r#"{"topic": "users"}"#)).await;
        create(&db.store, new("kv", Source::Kv, r#"{"collection": "*"}"#)).await;
        create(&db.store, NewTrigger { enabled: false, ..new("off", Source::Pubsub, r#"{"topic": "*"}"#) }).await;
        publish(&db.store, "orders:7").await;
        let mut found = waiting(&db.store).await;
        let mut matching = [all, some];
        found.sort_unstable();
        matching.sort_unstable();
        assert_eq!(found, matching);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn an_event_is_not_dropped_if_its_condition_cannot_be_evaluated() {
    on_both(async |db| {
        let odd = create(&db.store, new("odd", Source::Pubsub, r#"{"topic": "*", "when": "data.n + 'x' > 1"}"#)).await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, [odd]);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn a_key_value_set_or_delete_is_an_event() {
    on_both(async |db| {
        let sets = create(&db.store, new("sets", Source::Kv, r#"{"collection": "c", "ops": ["set"]}"#)).await;
        let any = create(&db.store, new("any", Source::Kv, r#"{"collection": "c*"}"#)).await;
        let always = Condition::Always;
        let set = db.store.set_kv(T, ("c", "a"), "{\"v\": 1}".into(), always.clone(), 3).await.expect("answers");
        let KvReply::Done(first, _) = set else { panic!("{set:?}") };
        assert_eq!((first.version, first.value.as_str()), (1, "{\"v\": 1}"));
        let batch = claim_outbox(&db.store).await;
        let rows: Vec<_> = batch.rows.iter().map(|row| (row.trigger, row.op.as_str(), row.depth)).collect();
        assert_eq!(rows, [(sets, "set", 3), (any, "set", 3)]);
        assert_eq!(batch.rows[0].data, "{\"v\": 1}");
        assert!(batch.rows[0].head.contains(r#""collection":"c","key":"a""#), "{}", batch.rows[0].head);
        settle_all(&db.store, batch, |_| RunVerdict::Done).await;
        let nothing = db.store.delete_kv(T, ("c", "b"), always.clone(), 0).await.expect("answers");
        assert_eq!(nothing, KvReply::NotFound);
        assert_eq!(waiting(&db.store).await, [], "deleting a missing key is no event");
        let deleted = db.store.delete_kv(T, ("c", "a"), always, 0).await.expect("answers");
        let KvReply::Done(removed, _) = deleted else { panic!("{deleted:?}") };
        assert_eq!((removed.value.as_str(), waiting(&db.store).await), ("{\"v\": 1}", vec![any]));
        assert_eq!(db.store.kv(T, "c", "a").await.expect("reads"), None);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn of_concurrent_conditional_writes_only_one_succeeds() {
    on_both(async |db| {
        let nodes = [db.store.clone(), db.another_node().await];
        for (round, condition) in [Condition::Absent, Condition::Version(vec![1])].into_iter().enumerate() {
            let mut tries = JoinSet::new();
            for number in 0..16 {
                let (node, condition) = (nodes[number % 2].clone(), condition.clone());
                tries.spawn(async move { node.set_kv(T, ("c", "k"), number.to_string().into(), condition, 0).await });
            }
            let replies: Vec<_> = tries.join_all().await.into_iter().map(|reply| reply.expect("answers")).collect();
            let done = replies.iter().filter(|reply| matches!(reply, KvReply::Done(..))).count();
            let refused = KvReply::VersionMismatch(Some(round as i64 + 1));
            assert_eq!((done, replies.iter().filter(|reply| **reply == refused).count()), (1, 15), "{replies:?}");
        }
        let rejected = db.store.delete_kv(T, ("c", "k"), Condition::Version(vec![1]), 0).await.expect("answers");
        assert_eq!(rejected, KvReply::VersionMismatch(Some(2)));
        let none = db.store.delete_kv(T, ("c", "other"), Condition::Present, 0).await.expect("answers");
        assert_eq!(none, KvReply::VersionMismatch(None));
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn a_trigger_created_on_another_node_matches_the_next_event() {
    on_both(async |db| {
        let other = db.another_node().await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, []);
        let id = create(&other, new("late", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, [id]);
        assert!(other.delete_trigger(T, id, "ann").await.expect("deletes"));
        assert_eq!(waiting(&db.store).await, [], "its pending rows are deleted too");
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, []);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn job_state_changes_are_events_in_the_same_transaction() {
    on_both(async |db| {
        let ends = r#"{"queue": "q", "states": ["succeeded", "failed", "canceled"]}"#;
        create(&db.store, new("ends", Source::Job, ends)).await;
        create(&db.store, new("works", Source::Job, r#"{"kind": "k", "states": ["working"]}"#)).await;
        create(&db.store, new("waits", Source::Job, r#"{"queue": "later", "states": ["queued"]}"#)).await;
        let worker = register(&db.store, &["q", "other"]).await;
        let started = async || -> Vec<String> {
            let batch = claim_outbox(&db.store).await;
            let describe = |row: &OutboxRow| {
                let data: serde_json::Value = serde_json::from_str(&row.data).expect("JSON");
                format!("{} {} {}", data["previous_state"], data["state"], data["result"]).replace('"', "")
            };
            let changes = batch.rows.iter().map(describe).collect();
            settle_all(&db.store, batch, |_| RunVerdict::Done).await;
            changes
        };
        push(&db.store, job("q")).await;
        assert_eq!(started().await, Vec::<String>::new(), "creating a job is not a state change");
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(started().await, ["queued working null"]);
        finish(&db.store, worker, &claimed).await;
        assert_eq!(started().await, ["working succeeded 42"]);
        let canceled = push(&db.store, job("q")).await;
        db.store.cancel(T, canceled, "me".into()).await.expect("cancels");
        assert_eq!(started().await, ["queued canceled null"]);
        push(&db.store, job("other")).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(started().await, ["queued working null"]);
        finish(&db.store, worker, &claimed).await;
        assert_eq!(started().await, Vec::<String>::new(), "another queue");
        let run_at = Some(db.clock.now().plus_ms(60_000));
        push(&db.store, store::queue::enqueue::NewJob { run_at, ..job("later") }).await;
        assert_eq!(started().await, Vec::<String>::new(), "not due");
        db.pass_ms(60_001).await;
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(started().await, ["scheduled queued null"], "the job is due");
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T4.
#[tokio::test]
async fn a_duplicate_event_runs_each_trigger_once() {
    on_both(async |db| {
        let one = create(&db.store, new("one", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        let other = create(&db.store, new("other", Source::Pubsub, r#"{"topic": "a"}"#)).await;
        let event = Event::new(db.clock.now(), T, Source::Pubsub, "publish", 0, "1".into()).with("topic", "a");
        db.store.publish(vec![event.clone(), event.clone()]).await.expect("publishes");
        db.store.publish(vec![event]).await.expect("publishes");
        let mut found = waiting(&db.store).await;
        let mut expected = [one, other];
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        let batch = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, make_job).await.jobs, 2);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T4.
#[tokio::test]
async fn an_event_published_on_two_nodes_concurrently_is_stored_once() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        let other = db.another_node().await;
        let event = |round: usize, hash: u8| {
            let once = Idempotency { key: format!("key {round}"), body_hash: [hash; 32] };
            let event = Event::new(db.clock.now(), T, Source::Pubsub, "publish", 0, "1".into()).with("topic", "a");
            vec![event.once(Some(once))]
        };
        for round in 0..10 {
            let (one, two) = tokio::join!(db.store.publish(event(round, 1)), other.publish(event(round, 1)));
            let (one, two) = (one.expect("publishes"), two.expect("publishes"));
            let (
                Published::Done { ids, is_duplicate: before, .. },
                Published::Done { ids: same, is_duplicate: after, .. },
            ) = (&one, &two)
            else {
                panic!("{one:?} {two:?}")
            };
            assert_eq!((ids, before), (same, &!after));
        }
        assert_eq!(db.store.publish(event(0, 2)).await.expect("answers"), Published::KeyReused);
        assert_eq!(waiting(&db.store).await.len(), 10);
        db.pass_ms(IDEMPOTENCY_RETENTION_S * 1_000).await;
        let later = db.store.publish(event(0, 2)).await.expect("publishes");
        assert!(matches!(later, Published::Done { is_duplicate: false, .. }), "a day later the key is free: {later:?}");
        assert_eq!(waiting(&db.store).await.len(), 11);
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn a_run_out_of_attempts_leaves_one_replayable_dead_letter() {
    on_both(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let retry = RetryPolicy::new(Some(30), None, None, None).expect("a policy");
        let fail = |_: &OutboxRow| {
            let error = failure("mapping_failed", "no such thing");
            RunVerdict::Failed(RunFailure { error, retry, max_attempts: 2, ran: None })
        };
        let batch = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 0);
        assert_eq!(claim_outbox(&db.store).await.rows.len(), 0, "the retry waits");
        db.pass_ms(30_000).await;
        let batch = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        assert_eq!(waiting(&db.store).await, []);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        assert_eq!((letter.source.as_str(), letter.trigger, letter.attempts.len()), ("pubsub", Some(trigger), 2));
        assert!(letter.payload.contains(r#""data":{"n":1}"#), "{}", letter.payload);
        db.store.replay_dead_letter(T, letter.id, None, "me").await.expect("replays");
        let batch = claim_outbox(&db.store).await;
        assert_eq!((batch.rows.len(), batch.rows[0].attempts.len()), (1, 0));
        assert_ne!(batch.rows[0].event, letter.event);
        assert_eq!(batch.rows[0].data, r#"{"n":1}"#);
        let figures = db.store.trigger(T, trigger).await.expect("reads").expect("there");
        assert_eq!((figures.failed, figures.fired), (1, 0));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T7.
#[tokio::test]
async fn a_replayed_event_keeps_its_attributes() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Kv, r#"{"collection": "c", "when": "event.key == 'a'"}"#)).await;
        db.store.set_kv(T, ("c", "a"), "1".into(), Condition::Always, 3).await.expect("sets");
        let fail = |_: &OutboxRow| {
            let error = failure("mapping_failed", "no such thing");
            RunVerdict::Failed(RunFailure { error, retry: RetryPolicy::NONE, max_attempts: 1, ran: None })
        };
        let batch = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        db.store.replay_dead_letter(T, letter.id, None, store::Caller::new("me").at_depth(5)).await.expect("replays");
        let again = claim_outbox(&db.store).await.rows.remove(0);
        let head: serde_json::Value = serde_json::from_str(&again.head).expect("JSON");
        assert_eq!((head["collection"].as_str(), head["key"].as_str()), (Some("c"), Some("a")), "{head}");
        assert_eq!((again.op.as_str(), again.data.as_str(), again.depth), ("set", "1", 5));
    })
    .await;
}

/// Requirement T6.
#[tokio::test]
async fn any_script_error_message_is_stored_in_a_dead_letter() {
    on_both(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let thrown = format!("a\0{}", "é".repeat(ERROR_MESSAGE_BYTES));
        let fail = |_: &OutboxRow| {
            let ran = ScriptRun { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: Vec::new() };
            let error = failure("script_failed", thrown.as_str());
            RunVerdict::Failed(RunFailure { error, retry: RetryPolicy::NONE, max_attempts: 1, ran: Some(ran) })
        };
        let batch = claim_outbox(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        let message = &letter.attempts[0].error.message;
        assert!(message.starts_with("a\u{fffd}é") && message.len() <= ERROR_MESSAGE_BYTES, "{} bytes", message.len());
        let runs = db.store.trigger_runs(T, trigger, None, 9).await.expect("lists");
        assert_eq!(runs[0].error.as_ref().map(|error| &error.message), Some(message));
        let figures = db.store.trigger(T, trigger).await.expect("reads").expect("there");
        assert_eq!(figures.last_error, Some(format!("script_failed: {message}")));
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement T8.
#[tokio::test]
async fn a_dead_letter_is_an_event_and_its_failing_handler_leaves_none() {
    on_both(async |db| {
        let handler = new("handler", Source::DeadLetter, r#"{"source": "job"}"#);
        create(&db.store, NewTrigger { handles: true, ..handler }).await;
        create(&db.store, new("others", Source::DeadLetter, r#"{"source": "kv"}"#)).await;
        let worker = register(&db.store, &["q"]).await;
        let id = push(&db.store, job("q")).await;
        let claimed = claim_one(&db.store, worker).await;
        let error = domain::JobError { retryable: false, ..boom() };
        settle(&db.store, worker, id, claimed.epoch, End::Fail(error)).await;
        let letter = db.store.dead_letter_of(T, id).await.expect("reads").expect("a dead letter exists");
        let batch = claim_outbox(&db.store).await;
        assert_eq!(batch.rows.len(), 1);
        assert_eq!(batch.rows[0].event.uuid(), letter.uuid());
        let fail = |_: &OutboxRow| {
            let error = failure("mapping_failed", "no such thing");
            RunVerdict::Failed(RunFailure { error, retry: RetryPolicy::NONE, max_attempts: 9, ran: None })
        };
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1, "no second attempt");
        let letters = db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists");
        assert_eq!(letters.len(), 1, "no second dead letter");
        let resolved = letters[0].resolved.as_ref().expect("resolved");
        assert_eq!(resolved.resolution, domain::Resolution::HandlerFailed);
        assert_verified(&db.store).await;
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn a_trigger_name_is_unique_and_other_tenants_cannot_reach_it() {
    on_both(async |db| {
        let id = create(&db.store, new("t", Source::Kv, "{}")).await;
        let again = db.store.new_trigger_id();
        let taken = db.store.create_trigger(T, again, new("t", Source::Kv, "{}"), "bob").await.expect("answers");
        assert_eq!(taken, TriggerPut::NameTaken);
        let other_tenant = domain::TenantId::SYSTEM;
        assert!(db.store.trigger(other_tenant, id).await.expect("reads").is_none());
        assert!(!db.store.delete_trigger(other_tenant, id, "ann").await.expect("answers"));
        let foreign =
            db.store.replace_trigger(other_tenant, id, new("t", Source::Kv, "{}"), "bob").await.expect("answers");
        assert_eq!(foreign, TriggerPut::NotFound);
        let event = Event::new(db.clock.now(), other_tenant, Source::Kv, "fire", 0, "1".into());
        assert_eq!(db.store.fire_trigger(other_tenant, id, event).await.expect("answers"), None);
        assert_eq!(db.store.trigger(T, id).await.expect("reads").expect("there").principal, "ann");
    })
    .await;
}

//! T1, T3–T6, T8: what happens starts what was asked for, exactly when it happened, and once.

use domain::limits::{ERROR_MESSAGE_BYTES, IDEMPOTENCY_KEEP_S};
use domain::trigger::Source;
use domain::{RetryPolicy, TriggerId};
use store::Store;
use store::dead_letters::list::DeadLetterFilter;
use store::events::Event;
use store::events::publish::Published;
use store::jobs::enqueue::Idempotency;
use store::jobs::settle::{End, Status};
use store::kv::Condition;
use store::kv::change::KvReply;
use store::outbox::settle::{Dispatched, Failure, Verdict};
use store::outbox::take::Batch;
use store::outbox::{Taken, failure};
use store::triggers::put::Put;
use store::triggers::runs::Ran;
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
        next_at: None,
    }
}

pub(crate) async fn create(store: &Store, trigger: NewTrigger) -> TriggerId {
    let id = store.new_trigger_id();
    assert_eq!(store.create_trigger(T, id, trigger, "ann").await.expect("answers"), Put::Done(id));
    id
}

/// One of a newer program, say.
#[tokio::test]
async fn x9_a_trigger_that_cannot_be_read_stops_nobody() {
    on_both(async |db| {
        create(&db.store, new("unreadable", Source::Job, "{}")).await;
        let heard = create(&db.store, new("heard", Source::Job, r#"{"states": ["succeeded"]}"#)).await;
        let newer = "update triggers set filter = '{\"unheard_of\": 1}' where name = 'unreadable'";
        run_sql(&db.store, newer).await.expect("writes");
        run_sql(&db.store, "update trigger_clock set version = version + 1").await.expect("ticks");
        push(&db.store, job("q")).await;
        let worker = patient(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &claimed).await, Status::Applied);
        assert_eq!(waiting(&db.store).await, [heard], "the others hear");
    })
    .await;
}

pub(crate) async fn publish(store: &Store, topic: &str) {
    let event = Event::new(store.clock().now(), T, Source::Pubsub, "publish", 0, r#"{"n":1}"#.into());
    store.publish(vec![event.with("topic", topic)]).await.expect("publishes");
}

/// Whoever has a row to start, in order.
pub(crate) async fn waiting(store: &Store) -> Vec<TriggerId> {
    let text = |column| format!("select {column} from outbox order by id");
    let found = texts(store, &text("lower(hex(trigger_id))"), &text("trigger_id::text")).await;
    found.iter().map(|id| TriggerId::new(id.parse().expect("an id"))).collect()
}

pub(crate) async fn take(store: &Store) -> Batch {
    store.take_outbox().await.expect("takes")
}

pub(crate) async fn settle_all(store: &Store, batch: Batch, verdict: impl Fn(&Taken) -> Verdict) -> Dispatched {
    let outcomes = batch.rows.into_iter().map(|row| {
        let verdict = verdict(&row);
        (row, verdict)
    });
    store.settle_outbox(batch.lease, outcomes.collect()).await.expect("settles")
}

pub(crate) fn make_job(_: &Taken) -> Verdict {
    Verdict::Job(Box::new(job("made")))
}

pub(crate) async fn made(store: &Store) -> i64 {
    number(store, "select count(*) from live_jobs where queue = 'made'").await
}

pub(crate) async fn holds(store: &Store) {
    assert_eq!(store.verify().await.expect("verifies").findings, []);
}

#[tokio::test]
async fn t1_an_event_writes_one_row_for_each_trigger_that_matches() {
    on_both(async |db| {
        let all = create(&db.store, new("all", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        let some = create(&db.store, new("some", Source::Pubsub, r#"{"topic": "orders:*"}"#)).await;
        create(&db.store, new("other", Source::Pubsub, r#"{"topic": "users"}"#)).await;
        create(&db.store, new("kv", Source::Kv, r#"{"collection": "*"}"#)).await;
        let when = create(&db.store, new("when", Source::Pubsub, r#"{"topic": "*", "when": "data.n == 1"}"#)).await;
        create(&db.store, new("never", Source::Pubsub, r#"{"topic": "*", "when": "data.n == 2"}"#)).await;
        create(&db.store, NewTrigger { enabled: false, ..new("off", Source::Pubsub, r#"{"topic": "*"}"#) }).await;
        publish(&db.store, "orders:7").await;
        let mut found = waiting(&db.store).await;
        let mut matching = [all, some, when];
        found.sort_unstable();
        matching.sort_unstable();
        assert_eq!(found, matching);
    })
    .await;
}

#[tokio::test]
async fn t1_what_cannot_be_judged_is_not_dropped() {
    on_both(async |db| {
        let odd = create(&db.store, new("odd", Source::Pubsub, r#"{"topic": "*", "when": "data.n + 'x' > 1"}"#)).await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, [odd]);
    })
    .await;
}

#[tokio::test]
async fn t1_a_value_that_is_set_or_deleted_is_an_event() {
    on_both(async |db| {
        let sets = create(&db.store, new("sets", Source::Kv, r#"{"collection": "c", "ops": ["set"]}"#)).await;
        let any = create(&db.store, new("any", Source::Kv, r#"{"collection": "c*"}"#)).await;
        let always = Condition::Always;
        let set = db.store.set_kv(T, ("c", "a"), "{\"v\": 1}".into(), always.clone(), 3).await.expect("answers");
        let KvReply::Done(first, _) = set else { panic!("{set:?}") };
        assert_eq!((first.version, first.value.as_str()), (1, "{\"v\": 1}"));
        let batch = take(&db.store).await;
        let told: Vec<_> = batch.rows.iter().map(|row| (row.trigger, row.op.as_str(), row.depth)).collect();
        assert_eq!(told, [(sets, "set", 3), (any, "set", 3)]);
        assert_eq!(batch.rows[0].data, "{\"v\": 1}");
        assert!(batch.rows[0].head.contains(r#""collection":"c","key":"a""#), "{}", batch.rows[0].head);
        settle_all(&db.store, batch, |_| Verdict::Done).await;
        let nothing = db.store.delete_kv(T, ("c", "b"), always.clone(), 0).await.expect("answers");
        assert_eq!(nothing, KvReply::NotFound);
        assert_eq!(waiting(&db.store).await, [], "nothing was there to delete");
        let deleted = db.store.delete_kv(T, ("c", "a"), always, 0).await.expect("answers");
        let KvReply::Done(gone, _) = deleted else { panic!("{deleted:?}") };
        assert_eq!((gone.value.as_str(), waiting(&db.store).await), ("{\"v\": 1}", vec![any]));
        assert_eq!(db.store.kv(T, "c", "a").await.expect("reads"), None);
    })
    .await;
}

#[tokio::test]
async fn t1_of_many_who_saw_the_same_version_one_changes_it() {
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
            let refused = KvReply::Otherwise(Some(round as i64 + 1));
            assert_eq!((done, replies.iter().filter(|reply| **reply == refused).count()), (1, 15), "{replies:?}");
        }
        let kept = db.store.delete_kv(T, ("c", "k"), Condition::Version(vec![1]), 0).await.expect("answers");
        assert_eq!(kept, KvReply::Otherwise(Some(2)));
        let none = db.store.delete_kv(T, ("c", "other"), Condition::Present, 0).await.expect("answers");
        assert_eq!(none, KvReply::Otherwise(None));
    })
    .await;
}

#[tokio::test]
async fn t1_a_trigger_made_on_another_node_hears_the_next_event_here() {
    on_both(async |db| {
        let other = db.another_node().await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, []);
        let id = create(&other, new("late", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, [id]);
        assert!(other.delete_trigger(T, id, "ann").await.expect("deletes"));
        assert_eq!(waiting(&db.store).await, [], "with what it had still to start");
        publish(&db.store, "a").await;
        assert_eq!(waiting(&db.store).await, []);
    })
    .await;
}

#[tokio::test]
async fn t1_changes_of_jobs_are_events_in_their_own_transaction() {
    on_both(async |db| {
        let ends = r#"{"queue": "q", "states": ["succeeded", "failed", "canceled"]}"#;
        create(&db.store, new("ends", Source::Job, ends)).await;
        create(&db.store, new("works", Source::Job, r#"{"kind": "k", "states": ["working"]}"#)).await;
        create(&db.store, new("waits", Source::Job, r#"{"queue": "later", "states": ["queued"]}"#)).await;
        let worker = register(&db.store, &["q", "other"]).await;
        let heard = async || -> Vec<String> {
            let batch = take(&db.store).await;
            let told = |row: &Taken| {
                let data: serde_json::Value = serde_json::from_str(&row.data).expect("JSON");
                format!("{} {} {}", data["previous_state"], data["state"], data["result"]).replace('"', "")
            };
            let told = batch.rows.iter().map(told).collect();
            settle_all(&db.store, batch, |_| Verdict::Done).await;
            told
        };
        push(&db.store, job("q")).await;
        assert_eq!(heard().await, Vec::<String>::new(), "making a job is no change of it");
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(heard().await, ["queued working null"]);
        finish(&db.store, worker, &claimed).await;
        assert_eq!(heard().await, ["working succeeded 42"]);
        let canceled = push(&db.store, job("q")).await;
        db.store.cancel(T, canceled, "me".into()).await.expect("cancels");
        assert_eq!(heard().await, ["queued canceled null"]);
        push(&db.store, job("other")).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(heard().await, ["queued working null"]);
        finish(&db.store, worker, &claimed).await;
        assert_eq!(heard().await, Vec::<String>::new(), "another queue");
        let run_at = Some(db.clock.now().plus_ms(60_000));
        push(&db.store, store::jobs::enqueue::NewJob { run_at, ..job("later") }).await;
        assert_eq!(heard().await, Vec::<String>::new(), "not due");
        db.pass_ms(60_001).await;
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(heard().await, ["scheduled queued null"], "its time has come");
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t4_the_same_event_twice_is_one_run_of_each_trigger() {
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
        let batch = take(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, make_job).await.jobs, 2);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t4_an_event_that_comes_by_two_nodes_at_once_is_told_once() {
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
            let (Published::Done { ids, before, .. }, Published::Done { ids: same, before: after, .. }) = (&one, &two)
            else {
                panic!("{one:?} {two:?}")
            };
            assert_eq!((ids, before), (same, &!after));
        }
        assert_eq!(db.store.publish(event(0, 2)).await.expect("answers"), Published::KeyReused);
        assert_eq!(waiting(&db.store).await.len(), 10);
        db.pass_ms(IDEMPOTENCY_KEEP_S * 1_000).await;
        let later = db.store.publish(event(0, 2)).await.expect("publishes");
        assert!(matches!(later, Published::Done { before: false, .. }), "a day later the key is free: {later:?}");
        assert_eq!(waiting(&db.store).await.len(), 11);
    })
    .await;
}

#[tokio::test]
async fn t6_a_run_out_of_tries_becomes_one_letter_that_can_be_played_again() {
    on_both(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let retry = RetryPolicy::new(Some(30), None, None, None).expect("a policy");
        let fail = |_: &Taken| {
            let error = failure("mapping_failed", "no such thing");
            Verdict::Failed(Failure { error, retry, max_attempts: 2, ran: None })
        };
        let batch = take(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 0);
        assert_eq!(take(&db.store).await.rows.len(), 0, "it waits");
        db.pass_ms(30_000).await;
        let batch = take(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        assert_eq!(waiting(&db.store).await, []);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        assert_eq!((letter.source.as_str(), letter.trigger, letter.attempts.len()), ("pubsub", Some(trigger), 2));
        assert!(letter.payload.contains(r#""data":{"n":1}"#), "{}", letter.payload);
        db.store.replay_dead_letter(T, letter.id, None, "me").await.expect("replays");
        let batch = take(&db.store).await;
        assert_eq!((batch.rows.len(), batch.rows[0].attempts.len()), (1, 0));
        assert_ne!(batch.rows[0].event, letter.event);
        assert_eq!(batch.rows[0].data, r#"{"n":1}"#);
        let figures = db.store.trigger(T, trigger).await.expect("reads").expect("there");
        assert_eq!((figures.failed, figures.fired), (1, 0));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t7_a_replayed_event_says_of_itself_what_it_said_before() {
    on_both(async |db| {
        create(&db.store, new("t", Source::Kv, r#"{"collection": "c", "when": "event.key == 'a'"}"#)).await;
        db.store.set_kv(T, ("c", "a"), "1".into(), Condition::Always, 3).await.expect("sets");
        let fail = |_: &Taken| {
            let error = failure("mapping_failed", "no such thing");
            Verdict::Failed(Failure { error, retry: RetryPolicy::NONE, max_attempts: 1, ran: None })
        };
        let batch = take(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        db.store.replay_dead_letter(T, letter.id, None, store::Caller::new("me").at_depth(5)).await.expect("replays");
        let again = take(&db.store).await.rows.remove(0);
        let head: serde_json::Value = serde_json::from_str(&again.head).expect("JSON");
        assert_eq!((head["collection"].as_str(), head["key"].as_str()), (Some("c"), Some("a")), "{head}");
        assert_eq!((again.op.as_str(), again.data.as_str(), again.depth), ("set", "1", 5));
    })
    .await;
}

#[tokio::test]
async fn t6_whatever_a_script_throws_is_kept_and_ends_as_a_letter() {
    on_both(async |db| {
        let trigger = create(&db.store, new("t", Source::Pubsub, r#"{"topic": "*"}"#)).await;
        publish(&db.store, "a").await;
        let thrown = format!("a\0{}", "é".repeat(ERROR_MESSAGE_BYTES));
        let fail = |_: &Taken| {
            let ran = Ran { script: uuid::Uuid::nil(), duration_ms: 1, result: None, log: Vec::new() };
            let error = failure("script_failed", thrown.as_str());
            Verdict::Failed(Failure { error, retry: RetryPolicy::NONE, max_attempts: 1, ran: Some(ran) })
        };
        let batch = take(&db.store).await;
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1);
        let letter =
            db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists").remove(0);
        let told = &letter.attempts[0].error.message;
        assert!(told.starts_with("a\u{fffd}é") && told.len() <= ERROR_MESSAGE_BYTES, "{} bytes", told.len());
        let runs = db.store.trigger_runs(T, trigger, None, 9).await.expect("lists");
        assert_eq!(runs[0].error.as_ref().map(|error| &error.message), Some(told));
        let figures = db.store.trigger(T, trigger).await.expect("reads").expect("there");
        assert_eq!(figures.last_error, Some(format!("script_failed: {told}")));
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn t8_a_dead_letter_is_an_event_and_its_handler_that_fails_leaves_none() {
    on_both(async |db| {
        create(&db.store, new("handler", Source::DeadLetter, r#"{"source": "job"}"#)).await;
        create(&db.store, new("others", Source::DeadLetter, r#"{"source": "kv"}"#)).await;
        let worker = register(&db.store, &["q"]).await;
        let id = push(&db.store, job("q")).await;
        let claimed = claim_one(&db.store, worker).await;
        let error = domain::JobError { retryable: false, ..boom() };
        settle(&db.store, worker, id, claimed.epoch, End::Fail(error)).await;
        let letter = db.store.dead_letter_of(T, id).await.expect("reads").expect("it left a letter");
        let batch = take(&db.store).await;
        assert_eq!(batch.rows.len(), 1);
        assert_eq!(batch.rows[0].event.uuid(), letter.uuid());
        let fail = |_: &Taken| {
            let error = failure("mapping_failed", "no such thing");
            Verdict::Failed(Failure { error, retry: RetryPolicy::NONE, max_attempts: 9, ran: None })
        };
        assert_eq!(settle_all(&db.store, batch, fail).await.dead, 1, "no second try");
        let letters = db.store.list_dead_letters(T, DeadLetterFilter::default(), None, 9).await.expect("lists");
        assert_eq!(letters.len(), 1, "no second letter");
        let resolved = letters[0].resolved.as_ref().expect("resolved");
        assert_eq!(resolved.resolution, domain::Resolution::HandlerFailed);
        holds(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x6_a_name_is_taken_once_and_triggers_of_others_are_not_there() {
    on_both(async |db| {
        let id = create(&db.store, new("t", Source::Kv, "{}")).await;
        let again = db.store.new_trigger_id();
        let taken = db.store.create_trigger(T, again, new("t", Source::Kv, "{}"), "bob").await.expect("answers");
        assert_eq!(taken, Put::NameTaken);
        let nobody = domain::TenantId::SYSTEM;
        assert!(db.store.trigger(nobody, id).await.expect("reads").is_none());
        assert!(!db.store.delete_trigger(nobody, id, "ann").await.expect("answers"));
        let foreign = db.store.replace_trigger(nobody, id, new("t", Source::Kv, "{}"), "bob").await.expect("answers");
        assert_eq!(foreign, Put::NotFound);
        let event = Event::new(db.clock.now(), nobody, Source::Kv, "fire", 0, "1".into());
        assert_eq!(db.store.fire_trigger(nobody, id, event).await.expect("answers"), None);
        assert_eq!(db.store.trigger(T, id).await.expect("reads").expect("there").principal, "ann");
    })
    .await;
}

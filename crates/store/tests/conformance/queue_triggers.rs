//! T1, T2: what happens to queues is told once, and a trigger may ask for an operation on a runtime, exactly when its row is
//! closed.

use domain::runtime::{ImageRef, OperationKind, OperationSource, RuntimeSpec};
use domain::trigger::Source;
use domain::{RetryPolicy, RuntimeName, TriggerId};
use store::Store;
use store::dead_letters::list::DeadLetterFilter;
use store::events::Event;
use store::jobs::settle::{End, Outcome};
use store::outbox::operate::Operate;
use store::outbox::settle::{Dispatched, Verdict};
use store::runtimes::request::NewOperation;
use store::triggers::put::Put;
use store::triggers::work::event_of;
use store::triggers::{Mode, NewTrigger};
use testkit::{job, on_both};

use crate::placement::beat;
use crate::support::*;

async fn create(store: &Store, source: Source, filter: &str) -> TriggerId {
    let trigger = NewTrigger {
        name: filter.into(),
        source,
        filter: filter.into(),
        target: r#"{"job": {"queue": "made", "kind": "k"}}"#.into(),
        mode: Mode::Async,
        retry: RetryPolicy::NONE,
        max_attempts: 2,
        enabled: true,
        next_at: None,
    };
    let id = store.new_trigger_id();
    assert_eq!(store.create_trigger(T, id, trigger, "ann").await.expect("answers"), Put::Done(id));
    id
}

const TOLD: &str = "select count(*) from outbox where op = 'drained'";

#[tokio::test(flavor = "multi_thread")]
async fn t1_of_two_last_jobs_that_end_at_once_one_drains_the_queue() {
    on_both(async |db| {
        let store = &db.store;
        create(store, Source::Queue, r#"{"queue": "q", "ops": ["drained"]}"#).await;
        let other = db.another_node().await;
        let (here, there) = (register(store, &["q"]).await, register(&other, &["q"]).await);
        for round in 1..=20 {
            push_all(store, vec![job("q"), job("q")]).await;
            let (one, two) = (claim_one(store, here).await, claim_one(&other, there).await);
            let end = |job: &store::jobs::claim::ClaimedJob| {
                vec![Outcome { job: job.id, epoch: job.epoch, end: End::Finish(None) }]
            };
            let (first, second) = tokio::join!(store.settle(T, here, end(&one)), other.settle(T, there, end(&two)));
            first.expect("settles");
            second.expect("settles");
            assert_eq!(number(store, TOLD).await, round, "once each time");
        }
        // A job that waits, even far ahead, is one that is left.
        push(store, store::jobs::enqueue::NewJob { run_at: Some(store.clock().now().plus_s(900)), ..job("q") }).await;
        push(store, job("q")).await;
        let claimed = claim_one(store, here).await;
        finish(store, here, &claimed).await;
        assert_eq!(number(store, TOLD).await, 20);
    })
    .await;
}

#[tokio::test]
async fn t1_a_queue_that_nobody_listens_to_is_not_looked_at() {
    on_both(async |db| {
        create(&db.store, Source::Queue, r#"{"queue": "other", "ops": ["drained"]}"#).await;
        create(&db.store, Source::Queue, r#"{"queue": "q", "ops": ["paused"]}"#).await;
        create(&db.store, Source::Queue, r#"{"queue": "q"}"#).await;
        push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 0);
    })
    .await;
}

#[tokio::test]
async fn t4_an_attempt_that_is_given_back_and_taken_again_is_the_same_event() {
    on_both(async |db| {
        let works = create(&db.store, Source::Queue, r#"{"queue": "q"}"#).await;
        let found = db.store.queue_workers().await.expect("reads");
        assert_eq!(
            found.iter().map(|worker| (worker.trigger, worker.queue.as_str())).collect::<Vec<_>>(),
            [(works, "q")]
        );
        let id = push(&db.store, job("q")).await;
        let hand_over = async |attempt| {
            let mut event = Event::new(db.store.clock().now(), T, Source::Queue, "job", 0, "null".into());
            event.id = event_of(id, attempt);
            db.store.hand_to_trigger(works, event).await.expect("hands over");
        };
        hand_over(1).await;
        hand_over(1).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 1);
        let mut batch = db.store.take_outbox().await.expect("takes");
        batch.rows.iter_mut().for_each(|row| row.mode = Mode::Sync);
        let outcomes = batch.rows.into_iter().map(|row| (row, Verdict::Job(Box::new(job("made"))))).collect();
        db.store.settle_outbox(batch.lease, outcomes).await.expect("settles");
        hand_over(1).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 0, "it ran");
        hand_over(2).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 1, "another attempt is another event");
    })
    .await;
}

fn operate(runtime: &str, kind: OperationKind) -> Verdict {
    let new = NewOperation {
        kind,
        source: OperationSource::Stream,
        source_ref: Some("the event".into()),
        image: None,
        actor: "ann".into(),
        depth: 3,
        on: None,
    };
    let runtime = RuntimeName::stored(runtime);
    Verdict::Operation(Box::new(Operate { runtime, new, retry: RetryPolicy::NONE, max_attempts: 2 }))
}

async fn declare(store: &Store) {
    let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
    store.put_runtime(T, RuntimeName::stored("model"), spec, "ann".into()).await.expect("declares");
}

async fn publish(store: &Store) {
    let event = Event::new(store.clock().now(), T, Source::Pubsub, "publish", 2, "null".into());
    store.publish(vec![event.with("topic", "t")]).await.expect("publishes");
}

/// Starts what is due and gives what became of it, whether a lease held or not.
async fn dispatch(store: &Store, verdict: impl Fn() -> Verdict) -> Dispatched {
    let batch = store.take_outbox().await.expect("takes");
    let outcomes: Vec<_> = batch.rows.into_iter().map(|row| (row, verdict())).collect();
    let dispatched = store.settle_outbox(batch.lease, outcomes.clone()).await.expect("settles");
    // Said twice it is once: the row is closed.
    let again = store.settle_outbox(batch.lease, outcomes).await.expect("settles");
    assert_eq!((again.operations, again.dead), (0, 0));
    dispatched
}

#[tokio::test]
async fn t2_an_operation_is_asked_for_once_with_the_row_that_asked_for_it() {
    on_both(async |db| {
        let store = &db.store;
        let trigger = create(store, Source::Pubsub, r#"{"topic": "t"}"#).await;
        declare(store).await;
        publish(store).await;
        let waits = dispatch(store, || operate("model", OperationKind::Start)).await;
        assert_eq!(
            (waits.operations, waits.failed, waits.dead),
            (0, 1, 0),
            "no node drives an engine: it is tried again"
        );
        beat(store, "here", &[], None).await;
        db.pass_ms(2_000).await;
        assert_eq!(dispatch(store, || operate("model", OperationKind::Start)).await.operations, 1);
        let lines = store.list_operations(T, &RuntimeName::stored("model"), None, 10).await.expect("reads");
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert_eq!((line.kind, line.source), (OperationKind::Start, OperationSource::Stream));
        assert_eq!((line.source_ref.as_deref(), line.actor.as_str()), (Some("the event"), "ann"));
        let made = get(store, line.job.expect("an operation has a job")).await;
        assert_eq!(made.depth, 3, "what it leads to is as deep");
        // What cannot be done is no operation and a letter, at once.
        publish(store).await;
        assert_eq!(dispatch(store, || operate("nobody", OperationKind::Start)).await.dead, 1);
        publish(store).await;
        assert_eq!(dispatch(store, || operate("model", OperationKind::Patch)).await.dead, 1, "a patch names its image");
        let letters = store.list_dead_letters(T, DeadLetterFilter::default(), None, 10).await.expect("reads");
        let codes: Vec<String> = letters.iter().map(|letter| letter.attempts[0].error.code.clone()).collect();
        assert_eq!(codes, ["invalid_request", "not_found"]);
        let trigger = store.trigger(T, trigger).await.expect("reads").expect("is there");
        assert_eq!((trigger.fired, trigger.failed), (1, 2));
        assert_eq!(store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

#[tokio::test]
async fn t2_two_operations_that_one_event_asks_of_an_unplaced_runtime_are_both_asked_for() {
    on_both(async |db| {
        let store = &db.store;
        create(store, Source::Pubsub, r#"{"topic": "t"}"#).await;
        create(store, Source::Pubsub, r#"{"topic": "*"}"#).await;
        declare(store).await;
        beat(store, "here", &[], None).await;
        publish(store).await;
        let both = dispatch(store, || operate("model", OperationKind::Start)).await;
        assert_eq!((both.operations, both.failed), (2, 0), "the second goes to the node that the first bound");
        assert_eq!(number(store, "select count(*) from outbox").await, 0);
        let lines = store.list_operations(T, &RuntimeName::stored("model"), None, 10).await.expect("reads");
        assert_eq!(lines.len(), 2);
    })
    .await;
}

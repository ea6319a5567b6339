//! Queue events, and triggers that request operations on runtimes, exactly once.

use domain::runtimes::{ImageRef, OperationKind, OperationSource, RuntimeSpec};
use domain::triggers::trigger::Source;
use domain::{RetryPolicy, RuntimeName, TriggerId};
use store::Store;
use store::queue::settle::{End, Outcome};
use store::runtimes::request::NewOperation;
use store::triggers::dead_letters::list::DeadLetterFilter;
use store::triggers::events::Event;
use store::triggers::outbox::operate::Operate;
use store::triggers::outbox::settle::{Dispatched, RunVerdict};
use store::triggers::put::TriggerPut;
use store::triggers::work::attempt_event_id;
use store::triggers::{Mode, NewTrigger};
use testkit::{job, on_both};

use crate::runtimes::placement::beat;
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
        handles: false,
        next_at: None,
    };
    let id = store.new_trigger_id();
    assert_eq!(store.create_trigger(T, id, trigger, "ann").await.expect("answers"), TriggerPut::Done(id));
    id
}

const DRAINED_EVENTS: &str = "select count(*) from outbox where op = 'drained'";

/// Requirement T1.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_last_jobs_that_end_concurrently_one_drains_the_queue() {
    on_both(async |db| {
        let store = &db.store;
        create(store, Source::Queue, r#"{"queue": "q", "ops": ["drained"]}"#).await;
        let other = db.another_node().await;
        let (here, there) = (register(store, &["q"]).await, register(&other, &["q"]).await);
        for round in 1..=20 {
            push_all(store, vec![job("q"), job("q")]).await;
            let (one, two) = (claim_one(store, here).await, claim_one(&other, there).await);
            let end = |job: &store::queue::claim::ClaimedJob| {
                vec![Outcome { job: job.id, epoch: job.epoch, end: End::Finish(None) }]
            };
            let (first, second) = tokio::join!(store.settle(T, here, end(&one)), other.settle(T, there, end(&two)));
            first.expect("settles");
            second.expect("settles");
            assert_eq!(number(store, DRAINED_EVENTS).await, round, "one event per drain");
        }
        // A scheduled job counts as remaining.
        push(store, store::queue::enqueue::NewJob { run_at: Some(store.clock().now().plus_s(900)), ..job("q") }).await;
        push(store, job("q")).await;
        let claimed = claim_one(store, here).await;
        finish(store, here, &claimed).await;
        assert_eq!(number(store, DRAINED_EVENTS).await, 20);
    })
    .await;
}

/// Requirement T1.
#[tokio::test]
async fn a_queue_without_a_matching_trigger_writes_no_event() {
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

/// Requirement T4.
#[tokio::test]
async fn a_released_and_reclaimed_attempt_is_the_same_event() {
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
            event.id = attempt_event_id(id, attempt);
            db.store.enqueue_worker_run(works, event).await.expect("enqueues");
        };
        hand_over(1).await;
        hand_over(1).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 1);
        let mut batch = db.store.claim_outbox().await.expect("takes");
        batch.rows.iter_mut().for_each(|row| row.mode = Mode::Sync);
        let outcomes = batch.rows.into_iter().map(|row| (row, RunVerdict::Job(Box::new(job("made"))))).collect();
        db.store.settle_outbox(batch.lease, outcomes).await.expect("settles");
        hand_over(1).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 0, "it ran");
        hand_over(2).await;
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 1, "another attempt is another event");
    })
    .await;
}

fn operate(runtime: &str, kind: OperationKind) -> RunVerdict {
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
    RunVerdict::Operation(Box::new(Operate { runtime, new, retry: RetryPolicy::NONE, max_attempts: 2 }))
}

async fn declare(store: &Store) {
    let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
    store.put_runtime(T, RuntimeName::stored("model"), spec, "ann".into()).await.expect("declares");
}

async fn publish(store: &Store) {
    let event = Event::new(store.clock().now(), T, Source::Pubsub, "publish", 2, "null".into());
    store.publish(vec![event.with("topic", "t")]).await.expect("publishes");
}

/// Dispatches due rows twice and returns the first result. The second settlement must do nothing.
async fn dispatch(store: &Store, verdict: impl Fn() -> RunVerdict) -> Dispatched {
    let batch = store.claim_outbox().await.expect("takes");
    let outcomes: Vec<_> = batch.rows.into_iter().map(|row| (row, verdict())).collect();
    let dispatched = store.settle_outbox(batch.lease, outcomes.clone()).await.expect("settles");
    // Idempotent: the row is closed.
    let again = store.settle_outbox(batch.lease, outcomes).await.expect("settles");
    assert_eq!((again.operations, again.dead), (0, 0));
    dispatched
}

/// Requirement T2.
#[tokio::test]
async fn an_operation_is_requested_once_with_its_outbox_row() {
    on_both(async |db| {
        let store = &db.store;
        let trigger = create(store, Source::Pubsub, r#"{"topic": "t"}"#).await;
        declare(store).await;
        publish(store).await;
        let waits = dispatch(store, || operate("model", OperationKind::Start)).await;
        assert_eq!(
            (waits.operations, waits.failed, waits.dead),
            (0, 1, 0),
            "no node has an engine, so the row is retried"
        );
        beat(store, "here", &[], None).await;
        db.pass_ms(2_000).await;
        assert_eq!(dispatch(store, || operate("model", OperationKind::Start)).await.operations, 1);
        let lines = store.list_operations(T, &RuntimeName::stored("model"), None, 10).await.expect("reads");
        assert_eq!(lines.len(), 1);
        let line = &lines[0];
        assert_eq!((line.kind, line.source), (OperationKind::Start, OperationSource::Stream));
        assert_eq!((line.source_ref.as_deref(), line.actor.as_str()), (Some("the event"), "ann"));
        let created = get(store, line.job.expect("an operation has a job")).await;
        assert_eq!(created.depth, 3, "the job inherits the depth");
        // An impossible operation becomes a dead letter at once.
        publish(store).await;
        assert_eq!(dispatch(store, || operate("absent", OperationKind::Start)).await.dead, 1);
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

/// Requirement T2.
#[tokio::test]
async fn two_operations_of_one_event_on_an_unplaced_runtime_are_both_requested() {
    on_both(async |db| {
        let store = &db.store;
        create(store, Source::Pubsub, r#"{"topic": "t"}"#).await;
        create(store, Source::Pubsub, r#"{"topic": "*"}"#).await;
        declare(store).await;
        beat(store, "here", &[], None).await;
        publish(store).await;
        let both = dispatch(store, || operate("model", OperationKind::Start)).await;
        assert_eq!((both.operations, both.failed), (2, 0), "the second goes to the node of the first");
        assert_eq!(number(store, "select count(*) from outbox").await, 0);
        let lines = store.list_operations(T, &RuntimeName::stored("model"), None, 10).await.expect("reads");
        assert_eq!(lines.len(), 2);
    })
    .await;
}

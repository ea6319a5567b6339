use domain::JobState;
use store::queue::enqueue::{EnqueueReply, Extras, Idempotency, NewJob, Unique};
use testkit::{job, name, on_both};

use crate::support::*;

fn keyed(key: &str, body: u8) -> Option<Idempotency> {
    Some(Idempotency { key: key.into(), body_hash: [body; 32] })
}

fn unique(key: &str, for_s: Option<i64>) -> NewJob {
    let extras = Extras { unique: Some(Unique { key: key.into(), for_s }), ..Extras::default() };
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

/// Requirement Q1.
#[tokio::test]
async fn a_job_reads_back_as_enqueued() {
    on_both(async |db| {
        let given = NewJob {
            payload: r#"{"b": 1,  "a": [1.50, "\u0000 \ud800"]}"#.into(),
            affinity: Some(testkit::label("llama 3")),
            priority: 7,
            max_attempts: 5,
            extras: Some(Box::new(Extras {
                subject: Some(testkit::label("machine 7")),
                process: Some(name("scan")),
                run: Some(testkit::label("r1")),
                concurrency_key: Some(testkit::label("k")),
                retry: Some(domain::RetryPolicy::new(Some(60), Some(120), Some(1.1), None).expect("valid")),
                timeout_s: Some(9),
                tags: vec![testkit::label("x"), testkit::label("y")],
                ..Extras::default()
            })),
            ..job("q")
        };
        let id = push(&db.store, given.clone()).await;
        let read = get(&db.store, id).await;
        assert_eq!(read.payload, *given.payload, "the payload is stored byte for byte");
        assert_eq!(read.lane.affinity, given.affinity);
        assert_eq!((read.lane.priority, read.max_attempts, read.attempt), (7, 5, 0));
        assert_eq!(read.subject.as_deref(), Some("machine 7"));
        assert_eq!(read.process.as_deref(), Some("scan"));
        assert_eq!(read.run.as_deref(), Some("r1"));
        assert_eq!(read.tags, ["x", "y"]);
        assert_eq!(read.timeout_s, Some(9));
        assert_eq!(read.retry.expect("the job has a retry policy").exponent(), 1.1);
        assert_eq!(read.principal, "test");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn an_idempotency_key_returns_the_same_job_for_a_day() {
    on_both(async |db| {
        let first = db.store.enqueue(T, vec![job("q")], keyed("a", 1)).await.expect("enqueues");
        let EnqueueReply::Accepted(first) = first else { panic!("accepted") };
        let again = db.store.enqueue(T, vec![job("q")], keyed("a", 1)).await.expect("enqueues");
        let EnqueueReply::Accepted(again) = again else { panic!("accepted") };
        assert_eq!(again[0].id, first[0].id);
        assert!(again[0].existing);
        let other = db.store.enqueue(T, vec![job("q")], keyed("a", 2)).await.expect("enqueues");
        assert_eq!(other, EnqueueReply::KeyReused);
        db.clock.advance_ms(24 * 3_600 * 1_000 + 1);
        let later = db.store.enqueue(T, vec![job("q")], keyed("a", 2)).await.expect("enqueues");
        let EnqueueReply::Accepted(later) = later else { panic!("the key is free after a day") };
        assert!(!later[0].existing);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn sixty_four_concurrent_enqueues_with_one_idempotency_key_create_one_job() {
    on_both(async |db| {
        let other = db.another_node().await;
        let mut calls = tokio::task::JoinSet::new();
        for n in 0..64 {
            let store = if n % 2 == 0 { db.store.clone() } else { other.clone() };
            calls.spawn(async move { store.enqueue(T, vec![job("q")], keyed("race", 1)).await.expect("enqueues") });
        }
        let mut ids = std::collections::HashSet::new();
        let mut made = 0;
        for reply in calls.join_all().await {
            let EnqueueReply::Accepted(jobs) = reply else { panic!("the body is the same") };
            made += usize::from(!jobs[0].existing);
            ids.insert(jobs[0].id);
        }
        assert_eq!((ids.len(), made), (1, 1));
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 100).await.len(), 1);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn sixty_four_concurrent_enqueues_return_the_job_with_their_unique_key() {
    on_both(async |db| {
        let first = push_all(&db.store, vec![unique("u", None)]).await[0].id;
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..64 {
            let store = db.store.clone();
            calls.spawn(async move { store.enqueue(T, vec![unique("u", None)], keyed("race", 1)).await });
        }
        for reply in calls.join_all().await {
            let EnqueueReply::Accepted(jobs) = reply.expect("enqueues") else { panic!("the body is the same") };
            assert_eq!((jobs[0].id, jobs[0].existing), (first, true), "the existing job is returned");
        }
        let later = db.store.enqueue(T, vec![unique("u", None)], keyed("race", 1)).await.expect("enqueues");
        let EnqueueReply::Accepted(later) = later else { panic!("the body is the same") };
        assert_eq!(later[0].id, first);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn concurrent_bodies_with_one_idempotency_key_conflict() {
    on_both(async |db| {
        let enqueue = |body| db.store.enqueue(T, vec![job("q")], keyed("race", body));
        let replies = tokio::join!(enqueue(1), enqueue(1), enqueue(2), enqueue(2));
        let replies = [replies.0, replies.1, replies.2, replies.3].map(|reply| reply.expect("enqueues"));
        assert_eq!(replies.iter().filter(|reply| **reply == EnqueueReply::KeyReused).count(), 2, "{replies:?}");
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 100).await.len(), 1);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn a_unique_key_holds_until_its_job_ends() {
    on_both(async |db| {
        let first = push_all(&db.store, vec![unique("u", None)]).await;
        let again = push_all(&db.store, vec![unique("u", None)]).await;
        assert_eq!((again[0].id, again[0].existing), (first[0].id, true));
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        let next = push_all(&db.store, vec![unique("u", None)]).await;
        assert!(!next[0].existing);
        assert_ne!(next[0].id, first[0].id);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn a_unique_key_with_a_lifetime_outlives_its_job() {
    on_both(async |db| {
        let first = push_all(&db.store, vec![unique("u", Some(60))]).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        let again = push_all(&db.store, vec![unique("u", Some(60))]).await;
        assert_eq!((again[0].id, again[0].state), (first[0].id, JobState::Succeeded));
        db.pass_ms(60_001).await;
        assert!(!push_all(&db.store, vec![unique("u", Some(60))]).await[0].existing);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn a_unique_key_repeated_in_a_batch_creates_one_job() {
    on_both(async |db| {
        let jobs = push_all(&db.store, vec![unique("u", None), job("q"), unique("u", None)]).await;
        assert_eq!(jobs[0].id, jobs[2].id);
        assert_ne!(jobs[0].id, jobs[1].id);
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 2);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn a_batch_keeps_its_order() {
    on_both(async |db| {
        let jobs: Vec<_> = (0..250).map(|n| NewJob { payload: n.to_string().into(), ..job("q") }).collect();
        push_all(&db.store, jobs).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 1000).await;
        let order: Vec<usize> = claimed.iter().map(|job| job.payload.parse().expect("a number")).collect();
        assert_eq!(order, (0..250).collect::<Vec<_>>());
    })
    .await;
}

#[tokio::test]
async fn a_scheduled_job_is_never_claimed_early() {
    on_both(async |db| {
        let now = db.store.clock().now();
        let id = push(&db.store, NewJob { run_at: Some(now.plus_s(3_600)), ..job("q") }).await;
        assert_eq!(state(&db.store, id).await, "scheduled");
        db.pass_ms(1_800_000).await;
        let worker = register_with_long_lease(&db.store).await;
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 0);
        assert!(claim(&db.store, worker, 1).await.is_empty());
        db.pass_ms(1_801_000).await;
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(claim_one(&db.store, worker).await.id, id);
        assert_counters_match(&db.store).await;
    })
    .await;
}

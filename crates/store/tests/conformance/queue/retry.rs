use domain::JobState;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::queue::retry::Retried;
use store::queue::settle::End;
use testkit::{job, label, on_both};

use crate::support::*;

/// Requirement Q2.
#[tokio::test]
async fn a_retry_is_a_new_job_linked_both_ways() {
    on_both(async |db| {
        let extras = Extras {
            subject: Some(label("m")),
            tags: vec![label("x")],
            unique: Some(Unique { key: "u".into(), for_s: None }),
            timeout_s: Some(9),
            ..Extras::default()
        };
        let new = NewJob {
            priority: 4,
            max_attempts: 1,
            payload: r#"{"a": 1}"#.into(),
            extras: Some(Box::new(extras)),
            ..job("q")
        };
        let old = push(&db.store, new).await;
        assert_eq!(db.store.retry_job(T, old, None, "me").await.expect("answers"), Retried::NotEnded(JobState::Queued));
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        settle(&db.store, worker, old, claimed.epoch, End::Fail(boom())).await;
        let Retried::Created(created) = db.store.retry_job(T, old, None, "me").await.expect("retries") else {
            panic!("the job has ended")
        };
        assert_eq!(get(&db.store, old).await.retried_as, Some(created.id));
        let again = get(&db.store, created.id).await;
        assert_eq!((again.parent, again.attempt, again.epoch.0), (Some(old), 0, 0));
        assert_eq!((again.payload.as_str(), again.lane.priority), (r#"{"a": 1}"#, 4));
        assert_eq!((again.subject.as_deref(), again.timeout_s, again.tags), (Some("m"), Some(9), vec!["x".to_owned()]));
        assert_eq!((again.principal.as_str(), again.unique_key), ("me", None));
        assert_eq!(claim_one(&db.store, worker).await.id, created.id);
        let unknown = domain::JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(db.store.retry_job(T, unknown, None, "me").await.expect("answers"), Retried::NotFound);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn concurrent_retries_create_one_job() {
    on_both(async |db| {
        let old = push(&db.store, job("q")).await;
        db.store.cancel(T, old, "me".into()).await.expect("cancels");
        let other = db.another_node().await;
        let mut clicks = tokio::task::JoinSet::new();
        for n in 0..16 {
            let store = if n % 2 == 0 { db.store.clone() } else { other.clone() };
            clicks.spawn(async move { store.retry_job(T, old, None, "me").await.expect("retries") });
        }
        let answers = clicks.join_all().await;
        let created = answers.iter().filter_map(|answer| match answer {
            Retried::Created(created) => Some(created.id),
            _ => None,
        });
        let created: Vec<_> = created.collect();
        assert_eq!(created.len(), 1);
        let others = answers.iter().filter(|answer| **answer == Retried::AlreadyRetried(created[0])).count();
        assert_eq!(others, 15, "the others return the job of the first");
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn a_retry_may_replace_the_payload() {
    on_both(async |db| {
        let old = push(&db.store, job("q")).await;
        db.store.cancel(T, old, "me".into()).await.expect("cancels");
        let retried = db.store.retry_job(T, old, Some("[7]".into()), "me").await.expect("retries");
        let Retried::Created(created) = retried else { panic!("the job has ended") };
        assert_eq!(get(&db.store, created.id).await.payload, "[7]");
        assert_eq!(get(&db.store, old).await.payload, "{}");
        let retry = async |payload: Option<&str>| {
            db.store.retry_job(T, old, payload.map(Into::into), "me").await.expect("answers")
        };
        assert_eq!(retry(Some("[ 7 ]")).await, Retried::AlreadyRetried(created.id), "the same payload is idempotent");
        assert_eq!(retry(None).await, Retried::AlreadyRetried(created.id));
        assert_eq!(retry(Some("[8]")).await, Retried::OtherPayload(created.id), "another payload is rejected");
        assert_eq!(retry(Some("{}")).await, Retried::OtherPayload(created.id), "so is the old payload");
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
    })
    .await;
}

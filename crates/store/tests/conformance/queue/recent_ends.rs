//! What the pages of a queue, a kind and a worker read: recent ends, minutes of throughput, and claimed jobs.

use domain::{JobState, Name, TenantId};
use store::queue::recent_ends::LaneFilter;
use store::queue::settle::End;
use testkit::{job, on_both};

use crate::support::*;

fn of(queue: Option<&str>, kind: Option<&str>) -> LaneFilter {
    LaneFilter { queue: queue.map(str::to_owned), kind: kind.map(str::to_owned) }
}

#[tokio::test]
async fn recent_ends_have_the_times_of_the_jobs_of_a_queue_or_a_kind() {
    on_both(async |db| {
        let worker = register(&db.store, &["q", "r"]).await;
        let before = db.store.clock().now();
        for queue in ["q", "q", "r"] {
            push(&db.store, job(queue)).await;
            let claimed = claim_one(&db.store, worker).await;
            finish(&db.store, worker, &claimed).await;
        }
        let waiting = push(&db.store, job("q")).await;
        db.store.cancel(T, waiting, "someone".into()).await.expect("cancels");
        let read = async |filter| db.store.recent_ends(T, filter, before.plus_s(-60)).await.expect("reads");
        let found = read(of(Some("q"), None)).await;
        assert_eq!((found.ends.len(), found.lanes.len(), found.is_partial), (3, 1, false));
        for end in &found.ends {
            assert_eq!(end.started_at.is_none(), end.state == JobState::Canceled, "{end:?}");
            assert!(end.ready_at <= end.finished_at && end.queue == "q", "{end:?}");
        }
        let kind = found.lanes[0].1.clone();
        let by_kind = read(of(None, Some(&kind))).await;
        assert_eq!((by_kind.ends.len(), by_kind.lanes.len()), (4, 2));
        assert!(read(of(Some("other"), None)).await.lanes.is_empty());
        let later = db.store.clock().now().plus_s(3_600);
        assert!(db.store.recent_ends(T, of(Some("q"), None), later).await.expect("reads").ends.is_empty());
        let foreign = db.store.recent_ends(TenantId(99), of(Some("q"), None), before).await.expect("reads");
        assert!(foreign.lanes.is_empty() && foreign.ends.is_empty());
        db.store.fold_counters().await.expect("folds");
        let queue = || Name::new("q").expect("a name");
        let minutes = db.store.queue_throughput(T, queue(), before.plus_s(-120)).await.expect("reads");
        let sum = |figure: fn(&store::queue::queues::throughput::Minute) -> i64| {
            minutes.iter().map(|(_, minute)| figure(minute)).sum::<i64>()
        };
        assert_eq!(
            (sum(|minute| minute.enqueued), sum(|minute| minute.succeeded), sum(|minute| minute.failed)),
            (3, 2, 0)
        );
        assert!(db.store.queue_throughput(T, queue(), later).await.expect("reads").is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_worker_holds_the_jobs_that_it_has_not_settled() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let first = push(&db.store, job("q")).await;
        let second = push(&db.store, job("q")).await;
        let claimed = claim(&db.store, worker, 2).await;
        assert_eq!(claimed.len(), 2);
        let held = async || {
            let mut jobs = db.store.jobs_of_worker(T, worker).await.expect("reads");
            jobs.sort_by_key(|job| job.id);
            jobs
        };
        let jobs = held().await;
        assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [first, second]);
        assert!(
            jobs.iter().all(|job| job.state == "working" && job.attempt == 1 && job.started_at.is_some()),
            "{jobs:?}"
        );
        let done = claimed.iter().find(|job| job.id == first).expect("the first is claimed");
        settle(&db.store, worker, first, done.epoch, End::Finish(None)).await;
        assert_eq!(held().await.iter().map(|job| job.id).collect::<Vec<_>>(), [second]);
        assert!(db.store.jobs_of_worker(TenantId(99), worker).await.expect("reads").is_empty());
    })
    .await;
}

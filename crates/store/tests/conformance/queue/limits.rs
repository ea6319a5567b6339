use domain::QueueSettings;
use store::queue::enqueue::{Extras, NewJob};
use testkit::{job, label, name, on_both};

use crate::support::*;

pub(crate) fn with_key(key: &str) -> NewJob {
    let extras = Extras { concurrency_key: Some(label(key)), ..Extras::default() };
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

/// Requirement Q12.
#[tokio::test]
async fn a_queue_runs_at_most_its_concurrency() {
    on_both(async |db| {
        let settings = QueueSettings { concurrency: Some(2), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        push_all(&db.store, (0..5).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let first = claim(&db.store, worker, 10).await;
        assert_eq!(first.len(), 2);
        assert!(claim(&db.store, worker, 10).await.is_empty());
        finish(&db.store, worker, &first[0]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_new_limit_counts_running_jobs() {
    on_both(async |db| {
        push_all(&db.store, (0..4).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        let running = claim(&db.store, worker, 2).await;
        let settings = QueueSettings { concurrency: Some(2), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        assert!(claim(&db.store, worker, 10).await.is_empty());
        finish(&db.store, worker, &running[0]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1);
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_concurrency_key_runs_one_job_unless_per_key_allows_more() {
    on_both(async |db| {
        let jobs = vec![with_key("a"), with_key("a"), with_key("b"), with_key("a")];
        let ids: Vec<_> = push_all(&db.store, jobs).await.iter().map(|job| job.id).collect();
        let worker = register(&db.store, &["q"]).await;
        let first = claim(&db.store, worker, 10).await;
        assert_eq!(first.iter().map(|job| job.id).collect::<Vec<_>>(), [ids[0], ids[2]]);
        finish(&db.store, worker, &first[0]).await;
        assert_eq!(claim_one(&db.store, worker).await.id, ids[1]);
        let settings = QueueSettings { per_key: Some(2), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        assert_eq!(claim_one(&db.store, worker).await.id, ids[3]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// A free slot of a key goes to one of the jobs parked for it. If that job cannot use it, the slot goes to another
/// job.
/// Requirement Q12.
#[tokio::test]
async fn a_free_slot_of_a_key_goes_to_a_job_that_can_use_it() {
    on_both(async |db| {
        let settings = QueueSettings { per_key: Some(2), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let with_subject = |key: &str, subject: &str| {
            let mut job = with_key(key);
            job.extras.get_or_insert_default().subject = Some(label(subject));
            job
        };
        let worker = register(&db.store, &["q"]).await;
        push_all(&db.store, vec![with_key("a"), with_key("a")]).await;
        let running = claim(&db.store, worker, 10).await;
        assert_eq!(running.len(), 2);
        // Both jobs are parked for the key. Then a job without the key acquires the subject of the first.
        let waiting = push_all(&db.store, vec![with_subject("a", "m-1"), with_key("a")]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty());
        push(&db.store, with_subject("b", "m-1")).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1);
        finish(&db.store, worker, &running[0]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "the first job is parked for its subject now");
        assert_eq!(db.store.repair_parked_jobs().await.expect("looks"), 1);
        assert_eq!(claim_one(&db.store, worker).await.id, waiting[1].id);
        assert_eq!(db.store.repair_parked_jobs().await.expect("repairs"), 0, "no slot is free");
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn many_parked_jobs_do_not_block_a_job_that_can_run() {
    on_both(async |db| {
        push_all(&db.store, (0..1500).map(|_| with_key("busy")).collect()).await;
        let free = push(&db.store, with_key("free")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 2).await;
        assert_eq!(claimed.len(), 2);
        assert_eq!(claimed[1].id, free);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn the_holds_of_a_dead_worker_are_released_by_the_sweep() {
    on_both(async |db| {
        let ids: Vec<_> = push_all(&db.store, vec![with_key("a"), with_key("a")]).await.iter().map(|j| j.id).collect();
        let dead = register(&db.store, &["q"]).await;
        claim_one(&db.store, dead).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|j| j.id).collect::<Vec<_>>(), [ids[0]]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_rate_limits_the_jobs_that_start_per_second() {
    on_both(async |db| {
        let put = async |queue: &str, rate_per_s: f64| {
            let settings = QueueSettings { rate_per_s: Some(rate_per_s), ..Default::default() };
            db.store.put_queue(T, name(queue), settings, "me".into()).await.expect("puts");
        };
        put("q", 3.0).await;
        push_all(&db.store, (0..20).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 3);
        db.pass_ms(2_000).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 3, "the bucket holds one second's worth");
        // This bucket does not refill within the run time of the test.
        put("slow", 0.001).await;
        push_all(&db.store, vec![job("slow"), job("slow")]).await;
        let worker = register(&db.store, &["slow"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1, "one at least");
        put("slow", 0.001).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "an unchanged rate keeps the bucket");
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_paused_queue_assigns_no_job_until_it_is_resumed() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        db.store.pause_queue(T, name("q"), "me".into(), Some("deploy".into())).await.expect("pauses");
        assert!(claim(&db.store, worker, 1).await.is_empty());
        let queue = db.store.queue(T, &name("q")).await.expect("reads").expect("exists");
        assert_eq!(queue.paused.expect("is paused").reason.as_deref(), Some("deploy"));
        db.store.resume_queue(T, name("q"), "me".into()).await.expect("resumes");
        assert_eq!(claim(&db.store, worker, 1).await.len(), 1);
    })
    .await;
}

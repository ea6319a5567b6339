use domain::QueueSettings;
use store::jobs::enqueue::{Extras, NewJob};
use testkit::{job, label, name, on_both};

use crate::support::*;

pub(crate) fn with_key(key: &str) -> NewJob {
    let extras = Extras { concurrency_key: Some(label(key)), ..Extras::default() };
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

#[tokio::test]
async fn q12_a_queue_runs_no_more_than_its_limit() {
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q12_a_limit_counts_what_runs_already() {
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

#[tokio::test]
async fn q12_a_key_runs_one_at_a_time_unless_more_are_allowed() {
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
        sound(&db.store).await;
    })
    .await;
}

/// The place of a key goes to one of those that wait for it. When that one cannot use it, it goes to another.
#[tokio::test]
async fn q12_a_place_of_a_key_that_who_was_next_cannot_use_is_not_lost() {
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
        // Both wait for the key; then the subject of the first is taken by work without it.
        let waiting = push_all(&db.store, vec![with_subject("a", "m-1"), with_key("a")]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty());
        push(&db.store, with_subject("b", "m-1")).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1);
        finish(&db.store, worker, &running[0]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "the first waits for its subject now");
        assert_eq!(db.store.unpark_forgotten().await.expect("looks"), 1);
        assert_eq!(claim_one(&db.store, worker).await.id, waiting[1].id);
        assert_eq!(db.store.unpark_forgotten().await.expect("looks"), 0, "there is no more room");
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn many_parked_jobs_do_not_stand_in_the_way_of_one_that_can_run() {
    on_both(async |db| {
        push_all(&db.store, (0..1500).map(|_| with_key("busy")).collect()).await;
        let free = push(&db.store, with_key("free")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 2).await;
        assert_eq!(claimed.len(), 2);
        assert_eq!(claimed[1].id, free);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x4_a_dead_workers_holds_are_free_without_help() {
    on_both(async |db| {
        let ids: Vec<_> = push_all(&db.store, vec![with_key("a"), with_key("a")]).await.iter().map(|j| j.id).collect();
        let dead = register(&db.store, &["q"]).await;
        claim_one(&db.store, dead).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|j| j.id).collect::<Vec<_>>(), [ids[0]]);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q12_a_rate_lets_so_many_start_in_a_second() {
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
        // This bucket does not fill again in any time that the machine takes.
        put("slow", 0.001).await;
        push_all(&db.store, vec![job("slow"), job("slow")]).await;
        let worker = register(&db.store, &["slow"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1, "one at least");
        put("slow", 0.001).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "who says the same again is given no new bucket");
    })
    .await;
}

#[tokio::test]
async fn q12_a_paused_queue_hands_out_nothing_until_it_goes_on() {
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

use domain::limits::{HISTORY_RETENTION_DEFAULT_S, RETENTION_DEFAULT_S};
use domain::{JobState, QueueSettings};
use store::queue::counters::Counts;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::queues::throughput::Minute;
use store::queue::settle::End;
use testkit::{Database, job, label, name, on_both, on_postgres, on_sqlite};

use crate::support::*;

async fn counts(db: &Database, queue: &str) -> Counts {
    db.store.queue(T, &name(queue)).await.expect("reads").expect("the queue exists").counts
}

/// Creates one job in each state of queue `q`.
async fn one_of_each(db: &Database) {
    let worker = register(&db.store, &["q"]).await;
    for end in [End::Finish(None), End::Cancel, End::Fail(domain::JobError { retryable: false, ..boom() })] {
        let id = push(&db.store, job("q")).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.id, id);
        settle(&db.store, worker, id, claimed.epoch, end).await;
    }
    push(&db.store, job("q")).await;
    claim_one(&db.store, worker).await;
    push(&db.store, job("q")).await;
    push(&db.store, NewJob { run_at: Some(db.clock.now().plus_s(100)), ..job("q") }).await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_queue_counts_its_jobs_by_state() {
    on_both(async |db| {
        one_of_each(&db).await;
        let expected =
            Counts { scheduled: 1, queued: 1, running: 1, succeeded: 1, failed: 1, canceled: 1, ..Counts::default() };
        assert_eq!(counts(&db, "q").await, expected);
        let queue = db.store.queue(T, &name("q")).await.expect("reads").expect("exists");
        assert!(queue.oldest_waiting_at.is_some());
        assert!(db.store.queue(T, &name("never")).await.expect("reads").is_none());
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X14.
#[tokio::test]
async fn folding_counters_preserves_the_sums() {
    on_both(async |db| {
        one_of_each(&db).await;
        push(&db.store, job("r")).await;
        let before = (counts(&db, "q").await, counts(&db, "r").await);
        assert!(db.store.fold_counters().await.expect("folds") > 2);
        assert_eq!((counts(&db, "q").await, counts(&db, "r").await), before);
        assert_eq!(number(&db.store, "select count(*) from counter_deltas").await, 0);
        push(&db.store, job("r")).await;
        push(&db.store, job("r")).await;
        db.store.fold_counters().await.expect("folds");
        assert_eq!(counts(&db, "r").await.queued, 3);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X14.
#[tokio::test]
async fn concurrent_folding_and_writes_lose_no_count() {
    on_both(async |db| {
        let other = db.another_node().await;
        let mut nodes = tokio::task::JoinSet::new();
        for n in 0..4 {
            let store = if n % 2 == 0 { db.store.clone() } else { other.clone() };
            nodes.spawn(async move {
                for _ in 0..20 {
                    push(&store, job("q")).await;
                    store.fold_counters().await.expect("folds");
                }
            });
        }
        nodes.join_all().await;
        assert_eq!(counts(&db, "q").await.queued, 80);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X14.
#[tokio::test]
async fn a_wrong_counter_is_detected() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        run_sql(&db.store, "update counter_deltas set queued = 5").await.expect("breaks");
        let faults = db.store.check_counters().await.expect("checks");
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].stored, faults[0].counted), ([0, 5, 0, 0], [0, 1, 0, 0]));
    })
    .await;
}

/// Requirement X14.
#[tokio::test]
async fn one_node_at_a_time_checks_the_counters() {
    on_postgres(async |db| {
        let alone = async || db.store.try_check_counters().await.expect("answers");
        assert_eq!(alone().await, Some(Vec::new()));
        let other = psql(&db.url).await;
        let lock = "begin; select pg_advisory_xact_lock(hashtextextended('windlass check counters', 0))";
        other.client.batch_execute(lock).await.expect("another node takes the lock");
        assert_eq!(alone().await, None);
        other.client.batch_execute("commit").await.expect("releases the lock");
        assert_eq!(alone().await, Some(Vec::new()));
    })
    .await;
}

#[tokio::test]
async fn a_wrongly_parked_job_is_repaired() {
    on_both(async |db| {
        let extras = Extras { concurrency_key: Some(label("c")), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        run_sql(&db.store, "update jobs set parked = 'key q c'").await.expect("parks");
        let worker = register(&db.store, &["q"]).await;
        assert!(claim(&db.store, worker, 1).await.is_empty());
        assert_eq!(db.store.repair_parked_jobs().await.expect("repairs"), 1);
        assert_eq!(claim_one(&db.store, worker).await.id, id);
        assert_eq!(db.store.repair_parked_jobs().await.expect("repairs"), 0);
    })
    .await;
}

#[tokio::test]
async fn a_repair_of_parked_jobs_without_findings_writes_nothing() {
    on_sqlite(async |db| {
        let extras = Extras { concurrency_key: Some(label("c")), ..Extras::default() };
        let keyed = || NewJob { extras: Some(Box::new(extras.clone())), ..job("q") };
        push_all(&db.store, vec![keyed(), keyed()]).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 2).await.len(), 1, "the other job is parked");
        run_sql(&db.store, "pragma query_only = on").await.expect("makes the writer read-only");
        assert_eq!(db.store.repair_parked_jobs().await.expect("only reads"), 0);
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_malformed_row_does_not_stop_the_lease_sweep() {
    on_both(async |db| {
        let keyed = || {
            let extras = Extras { concurrency_key: Some(label("c")), ..Extras::default() };
            NewJob { extras: Some(Box::new(extras)), ..job("q") }
        };
        let bad = push(&db.store, job("q")).await;
        let good = push(&db.store, job("q")).await;
        let canceled = push(&db.store, keyed()).await;
        let waiting = push(&db.store, keyed()).await;
        let dead = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, dead, 3).await.len(), 3);
        db.store.cancel(T, canceled, "me".into()).await.expect("cancels");
        let malformed = if db.store.is_postgres() { format!("'{bad}'") } else { format!("x'{}'", bad.uuid().simple()) };
        run_sql(&db.store, &format!("update jobs set retry = '[]' where id = {malformed}")).await.expect("breaks");
        db.pass_ms(31_000).await;
        let swept = db.store.sweep().await.expect("sweeps");
        assert_eq!((swept.jobs, swept.quarantined), (1, 1));
        assert_eq!(state(&db.store, good).await, "queued");
        assert_eq!(number(&db.store, "select count(*) from quarantine").await, 1);
        let worker = register(&db.store, &["q"]).await;
        let claimed: Vec<_> = claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect();
        assert_eq!(claimed, [good, waiting], "the holds of revoked claims are free too");
    })
    .await;
}

/// Requirement Q14.
#[tokio::test]
async fn a_malformed_queue_or_row_does_not_stop_the_pruning() {
    on_both(async |db| {
        for queue in ["unreadable", "torn", "whole"] {
            push(&db.store, job(queue)).await;
            let worker = register(&db.store, &[queue]).await;
            let claimed = claim_one(&db.store, worker).await;
            finish(&db.store, worker, &claimed).await;
        }
        let settings = QueueSettings { retention_s: Some(60), ..QueueSettings::default() };
        db.store.put_queue(T, name("unreadable"), settings, "me".into()).await.expect("puts");
        let breaks = "update queues set settings = '7' where name = 'unreadable';
             update ended set tags = '7' where lane = (select lane from lanes where queue = 'torn')";
        run_sql(&db.store, breaks).await.expect("breaks");
        db.pass_ms((RETENTION_DEFAULT_S + 60) * 1_000).await;
        assert_eq!(db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").jobs, 1);
        let whole = "select count(*) from ended e join lanes l on l.lane = e.lane where l.queue = 'whole'";
        assert_eq!(number(&db.store, whole).await, 0);
    })
    .await;
}

/// After the server revokes an attempt and before its worker responds, both the old and the new attempt hold the
/// subject.
/// Requirement W2.
#[tokio::test]
async fn a_timed_out_claim_holds_its_slot_until_its_worker_settles() {
    on_both(async |db| {
        let settings =
            QueueSettings { concurrency: Some(2), retry: Some(domain::RetryPolicy::NONE), ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let extras = Extras { timeout_s: Some(5), ..Extras::default() };
        let slow = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let unresponsive = register_with_long_lease(&db.store).await;
        let lost = claim_one(&db.store, unresponsive).await;
        db.pass_ms(6_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, 1);
        db.pass_ms(2_000).await;
        db.store.promote_due().await.expect("promotes");
        let worker = register(&db.store, &["q"]).await;
        let again = claim_one(&db.store, worker).await;
        assert_eq!(again.id, slow);
        push_all(&db.store, vec![job("q"), job("q")]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "both attempts hold a slot");
        settle(&db.store, unresponsive, slow, lost.epoch, End::Cancel).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1, "one slot is free, the new attempt holds the other");
        assert_eq!(get(&db.store, slow).await.state, JobState::Working);
        assert_eq!(db.store.check_counters().await.expect("checks"), []);
    })
    .await;
}

#[tokio::test]
async fn the_fold_records_throughput_by_the_minute() {
    on_both(async |db| {
        one_of_each(&db).await;
        push(&db.store, job("r")).await;
        db.store.fold_counters().await.expect("folds");
        let hour = db.store.throughput(T).await.expect("reads");
        assert_eq!((hour.minutes.len(), hour.by_queue.len()), (60, 2));
        let sum = |minutes: &[Minute]| {
            minutes.iter().fold((0, 0, 0), |(a, b, c), m| (a + m.enqueued, b + m.succeeded, c + m.failed))
        };
        assert_eq!(sum(&hour.by_queue[&name("q")]), (6, 1, 1));
        assert_eq!(sum(&hour.sums()), (7, 1, 1));
        assert_eq!(db.store.totals(T).await.expect("reads").queued, 2);
        // A claim changes states and creates no job. Later minutes are separate rows, and old ones are deleted.
        db.clock.advance_ms(120_000);
        let worker = register(&db.store, &["r"]).await;
        claim_one(&db.store, worker).await;
        push(&db.store, job("r")).await;
        db.store.fold_counters().await.expect("folds");
        let hour = db.store.throughput(T).await.expect("reads");
        let busy: Vec<_> = hour.by_queue[&name("r")].iter().filter(|minute| minute.enqueued > 0).collect();
        assert_eq!(busy.iter().map(|minute| minute.enqueued).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(db.store.prune_throughput().await.expect("prunes"), 0);
        db.clock.advance_ms(25 * 3_600_000);
        assert_eq!(db.store.throughput(T).await.expect("reads").by_queue.len(), 0);
        assert_eq!(db.store.prune_throughput().await.expect("prunes"), 3);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn a_queue_reports_the_waiting_time_of_its_jobs() {
    on_both(async |db| {
        assert!(db.store.waits(T).await.expect("reads").is_empty());
        let worker = register_with_long_lease(&db.store).await;
        for _ in 0..10 {
            let id = push(&db.store, job("q")).await;
            db.clock.advance_ms(200_000);
            let claimed = claim_one(&db.store, worker).await;
            settle(&db.store, worker, id, claimed.epoch, End::Finish(None)).await;
        }
        push(&db.store, job("r")).await;
        db.store.fold_duration_samples().await.expect("folds");
        let waits = db.store.waits(T).await.expect("reads");
        let wait = waits[&name("q")];
        assert!((190.0..250.0).contains(&wait.p50_s) && wait.p95_s >= wait.p50_s, "{wait:?}");
    })
    .await;
}

use domain::limits::{HISTORY_RETENTION_S_DEFAULT, RETENTION_S_DEFAULT};
use domain::{JobState, QueueSettings};
use store::counters::Counts;
use store::jobs::enqueue::{Extras, NewJob};
use store::jobs::settle::End;
use store::queues::throughput::Minute;
use testkit::{Database, job, label, name, on_both, on_postgres, on_sqlite};

use crate::support::*;

async fn counts(db: &Database, queue: &str) -> Counts {
    db.store.queue(T, &name(queue)).await.expect("reads").expect("the queue exists").counts
}

/// One job in each state of queue `q`.
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

#[tokio::test]
async fn q12_a_queue_tells_how_many_jobs_it_has_in_each_state() {
    on_both(async |db| {
        one_of_each(&db).await;
        let expected =
            Counts { scheduled: 1, queued: 1, running: 1, succeeded: 1, failed: 1, canceled: 1, ..Counts::default() };
        assert_eq!(counts(&db, "q").await, expected);
        let queue = db.store.queue(T, &name("q")).await.expect("reads").expect("exists");
        assert!(queue.oldest_waiting_at.is_some());
        assert!(db.store.queue(T, &name("never")).await.expect("reads").is_none());
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x14_folding_keeps_the_sums() {
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x14_folding_while_others_write_loses_nothing() {
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn x14_a_wrong_figure_is_found() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        run_sql(&db.store, "update counter_deltas set queued = 5").await.expect("breaks");
        let faults = db.store.check_counters().await.expect("checks");
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].kept, faults[0].counted), ([0, 5, 0], [0, 1, 0]));
    })
    .await;
}

#[tokio::test]
async fn x14_one_node_at_a_time_checks_the_figures() {
    on_postgres(async |db| {
        let alone = async || db.store.check_counters_alone().await.expect("answers");
        assert_eq!(alone().await, Some(Vec::new()));
        let other = psql(&db.url).await;
        let lock = "begin; select pg_advisory_xact_lock(hashtextextended('windlass check counters', 0))";
        other.client.batch_execute(lock).await.expect("another node is at it");
        assert_eq!(alone().await, None);
        other.client.batch_execute("commit").await.expect("it is done");
        assert_eq!(alone().await, Some(Vec::new()));
    })
    .await;
}

#[tokio::test]
async fn a_parked_job_that_was_forgotten_looks_again() {
    on_both(async |db| {
        let extras = Extras { concurrency_key: Some(label("c")), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        run_sql(&db.store, "update jobs set parked = 'key q c'").await.expect("parks");
        let worker = register(&db.store, &["q"]).await;
        assert!(claim(&db.store, worker, 1).await.is_empty());
        assert_eq!(db.store.unpark_forgotten().await.expect("repairs"), 1);
        assert_eq!(claim_one(&db.store, worker).await.id, id);
        assert_eq!(db.store.unpark_forgotten().await.expect("repairs"), 0);
    })
    .await;
}

#[tokio::test]
async fn who_looks_for_forgotten_jobs_and_finds_none_writes_nothing() {
    on_sqlite(async |db| {
        let extras = Extras { concurrency_key: Some(label("c")), ..Extras::default() };
        let keyed = || NewJob { extras: Some(Box::new(extras.clone())), ..job("q") };
        push_all(&db.store, vec![keyed(), keyed()]).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 2).await.len(), 1, "the other is parked");
        run_sql(&db.store, "pragma query_only = on").await.expect("this node's writer may not write any more");
        assert_eq!(db.store.unpark_forgotten().await.expect("only reads"), 0);
    })
    .await;
}

#[tokio::test]
async fn x4_one_bad_row_never_stops_the_sweep_for_the_others() {
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
        let broken = if db.store.is_postgres() { format!("'{bad}'") } else { format!("x'{}'", bad.uuid().simple()) };
        run_sql(&db.store, &format!("update jobs set retry = '[]' where id = {broken}")).await.expect("breaks");
        db.pass_ms(31_000).await;
        let swept = db.store.sweep().await.expect("sweeps");
        assert_eq!((swept.jobs, swept.quarantined), (1, 1));
        assert_eq!(state(&db.store, good).await, "queued");
        assert_eq!(number(&db.store, "select count(*) from quarantine").await, 1);
        let worker = register(&db.store, &["q"]).await;
        let claimed: Vec<_> = claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect();
        assert_eq!(claimed, [good, waiting], "what the dead had been told to let go is free too");
    })
    .await;
}

#[tokio::test]
async fn q14_one_bad_queue_or_row_never_stops_the_pruning_of_the_others() {
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
        db.pass_ms((RETENTION_S_DEFAULT + 60) * 1_000).await;
        assert_eq!(db.store.prune(HISTORY_RETENTION_S_DEFAULT).await.expect("prunes").jobs, 1);
        let whole = "select count(*) from ended e join lanes l on l.lane = e.lane where l.queue = 'whole'";
        assert_eq!(number(&db.store, whole).await, 0);
    })
    .await;
}

/// Between the server's ending of an attempt and the worker's word, both the old and the new attempt hold.
#[tokio::test]
async fn w2_a_claim_that_was_ended_holds_its_place_until_the_worker_answers() {
    on_both(async |db| {
        let settings =
            QueueSettings { concurrency: Some(2), retry: Some(domain::RetryPolicy::NONE), ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let extras = Extras { timeout_s: Some(5), ..Extras::default() };
        let slow = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let frozen = patient(&db.store).await;
        let lost = claim_one(&db.store, frozen).await;
        db.pass_ms(6_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, 1);
        db.pass_ms(2_000).await;
        db.store.promote_due().await.expect("promotes");
        let worker = register(&db.store, &["q"]).await;
        let again = claim_one(&db.store, worker).await;
        assert_eq!(again.id, slow);
        push_all(&db.store, vec![job("q"), job("q")]).await;
        assert!(claim(&db.store, worker, 10).await.is_empty(), "both attempts are in somebody's hands");
        settle(&db.store, frozen, slow, lost.epoch, End::Cancel).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 1, "one place is free, the other is the new attempt's");
        assert_eq!(get(&db.store, slow).await.state, JobState::Working);
        assert_eq!(db.store.check_counters().await.expect("checks"), []);
    })
    .await;
}

#[tokio::test]
async fn the_fold_keeps_what_came_in_and_what_ended_by_the_minute() {
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
        // A claim moves jobs and makes none; later minutes are rows of their own, and old ones go.
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn s9_a_queue_tells_how_long_its_work_waits_and_which_kinds_it_has() {
    on_both(async |db| {
        assert!(db.store.waits(T).await.expect("reads").is_empty());
        let worker = patient(&db.store).await;
        for _ in 0..10 {
            let id = push(&db.store, job("q")).await;
            db.clock.advance_ms(200_000);
            let claimed = claim_one(&db.store, worker).await;
            settle(&db.store, worker, id, claimed.epoch, End::Finish(None)).await;
        }
        push(&db.store, job("r")).await;
        db.store.fold_figures().await.expect("folds");
        let waits = db.store.waits(T).await.expect("reads");
        let wait = waits[&name("q")];
        assert!((190.0..250.0).contains(&wait.p50_s) && wait.p95_s >= wait.p50_s, "{wait:?}");
    })
    .await;
}

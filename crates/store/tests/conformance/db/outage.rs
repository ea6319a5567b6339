//! Database outages: a database that is down, full or read-only is reported as unavailable, and operation resumes by
//! itself when it is back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use domain::JobId;
use store::StoreError;
use store::queue::cancel::Canceled;
use store::queue::enqueue::{EnqueueReply, Idempotency, NewJob};
use testkit::{Database, job, on_both, on_postgres, on_sqlite};

use crate::support::*;

async fn try_push(db: &Database) -> Result<JobId, StoreError> {
    let big = NewJob { payload: format!("\"{}\"", "x".repeat(10_000)).into(), ..job("q") };
    match db.store.enqueue(T, vec![big], None).await? {
        EnqueueReply::Accepted(jobs) => Ok(jobs[0].id),
        EnqueueReply::KeyReused => panic!("no key was given"),
    }
}

fn is_unavailable<V: std::fmt::Debug>(result: Result<V, StoreError>) {
    assert!(matches!(&result, Err(StoreError::Unavailable { .. })), "{result:?}");
}

/// Requirement X12.
#[tokio::test]
async fn a_full_sqlite_database_is_unavailable_until_space_is_free() {
    on_sqlite(async |db| {
        let existing = try_push(&db).await.expect("the database has space");
        run_sql(&db.store, "pragma max_page_count = 1").await.expect("caps the file size");
        let mut refused = 0;
        for _ in 0..100 {
            refused += usize::from(try_push(&db).await.is_err());
        }
        assert!(refused > 50, "only {refused} of 100 were rejected");
        is_unavailable(try_push(&db).await);
        assert_eq!(state(&db.store, existing).await, "queued", "reads still work");
        run_sql(&db.store, "pragma max_page_count = 1000000").await.expect("lifts the cap");
        let id = try_push(&db).await.expect("works again without a restart");
        assert_eq!(state(&db.store, id).await, "queued");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test]
async fn a_read_only_sqlite_database_is_unavailable_and_unchanged() {
    on_sqlite(async |db| {
        let existing = try_push(&db).await.expect("works");
        run_sql(&db.store, "pragma query_only = on").await.expect("makes the writer read-only");
        is_unavailable(try_push(&db).await);
        is_unavailable(db.store.cancel(T, existing, "me".into()).await);
        is_unavailable(db.store.register_worker(T, new_worker(&["q"])).await);
        assert_eq!(state(&db.store, existing).await, "queued", "reads still work");
        let other = db.another_node().await;
        assert_eq!(number(&other, "select count(*) from jobs").await, 1);
        push(&other, job("q")).await;
        assert_counters_match(&other).await;
    })
    .await;
}

/// Violates a deferred constraint: every statement succeeds and the commit fails.
const FAILS_AT_ITS_COMMIT: &str = "update jobs set version = version + 7;
    create temporary table whole (id integer primary key);
    create temporary table part (whole integer references whole (id) deferrable initially deferred);
    insert into part values (1)";

/// Requirement X2.
#[tokio::test]
async fn a_failed_commit_is_reported_and_changes_nothing() {
    on_both(async |db| {
        let existing = try_push(&db).await.expect("works");
        let before = get(&db.store, existing).await.version;
        let result = run_sql(&db.store, FAILS_AT_ITS_COMMIT).await;
        assert!(result.is_err(), "the commit fails");
        assert_eq!(get(&db.store, existing).await.version, before, "nothing was committed");
        let next = try_push(&db).await.expect("the next commit works");
        assert_eq!(state(&db.store, next).await, "queued");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Terminates all connections of the store from a separate connection. Returns their number.
async fn terminate(psql: &Psql) -> usize {
    let sql = "select pg_terminate_backend(pid) from pg_stat_activity
               where datname = current_database() and pid <> pg_backend_pid()";
    psql.client.query(sql, &[]).await.expect("terminates").len()
}

/// Requirement X12.
#[tokio::test]
async fn a_node_lost_in_a_transaction_does_not_block_the_others() {
    on_postgres(async |db| {
        let id = try_push(&db).await.expect("works");
        let lost = psql(&db.url).await;
        // Opens a transaction as the store does, but with a shorter session timeout.
        let begin = store::db::tx::BEGIN.replace("session_timeout to '30s'", "session_timeout to '100ms'");
        assert_ne!(begin, store::db::tx::BEGIN);
        lost.client.batch_execute(&begin).await.expect("begins");
        let locked = lost.client.batch_execute("select from jobs for update").await;
        locked.expect("locks every job");
        let canceled = db.store.cancel(T, id, "me".into()).await.expect("is not blocked");
        assert_eq!(canceled, Canceled::Canceled(id));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test]
async fn a_read_only_postgres_is_unavailable_until_it_is_writable() {
    on_postgres(async |db| {
        let existing = try_push(&db).await.expect("works");
        let psql = psql(&db.admin).await;
        let database: String =
            psql.client.query_one("select current_database()::text", &[]).await.expect("reads").get(0);
        let set = async |value: &str| {
            let sql = format!("alter database {database} set default_transaction_read_only = {value}");
            psql.client.batch_execute("set default_transaction_read_only = off").await.expect("sets");
            psql.client.batch_execute(&sql).await.expect("alters");
            terminate(&psql).await;
        };
        set("on").await;
        // Terminated connections are discovered one by one. Each costs at most one result, which may be in doubt.
        for _ in 0..20 {
            let error = try_push(&db).await.expect_err("is read-only");
            assert!(error.is_unavailable(), "{error:?}");
        }
        let error = try_push(&db).await.expect_err("is read-only").to_string();
        assert!(error.contains("read-only"), "{error}");
        is_unavailable(db.store.cancel(T, existing, "me".into()).await);
        set("off").await;
        let mut pushed = try_push(&db).await;
        for _ in 0..20 {
            if let Err(error) = &pushed {
                assert!(error.is_unavailable(), "{error:?}");
                pushed = try_push(&db).await;
            }
        }
        assert_eq!(state(&db.store, pushed.expect("works again without a restart")).await, "queued");
        assert_eq!(state(&db.store, existing).await, "queued");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test]
async fn connections_cut_under_load_lose_no_acknowledged_write() {
    on_postgres(async |db| {
        const CUTS: usize = 5;
        const BETWEEN: usize = 60;
        let acknowledged: Arc<Mutex<BTreeSet<JobId>>> = Arc::default();
        let finished: Arc<Mutex<BTreeSet<JobId>>> = Arc::default();
        let refused = Arc::new(AtomicUsize::new(0));
        let count = Arc::new(AtomicUsize::new(0));
        let progress = Arc::new(tokio::sync::Notify::new());
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let worker = register(&db.store, &["q"]).await;
        let mut load = tokio::task::JoinSet::new();
        for n in 0..6 {
            let (store, acknowledged, finished) = (db.store.clone(), acknowledged.clone(), finished.clone());
            let (refused, count, progress, over) = (refused.clone(), count.clone(), progress.clone(), over.clone());
            load.spawn(async move {
                let note = |error: StoreError| {
                    assert!(error.is_unavailable(), "{error:?}");
                    refused.fetch_add(1, Ordering::Relaxed);
                };
                while !over.load(Ordering::Relaxed) {
                    if n < 4 {
                        match store.enqueue(T, vec![job("q")], None).await {
                            Ok(EnqueueReply::Accepted(jobs)) => {
                                acknowledged.lock().expect("lock poisoned").insert(jobs[0].id);
                            }
                            Ok(EnqueueReply::KeyReused) => panic!("no key was given"),
                            Err(error) => note(error),
                        }
                    } else {
                        match store.claim(T, worker, 3, None).await {
                            Ok(store::queue::claim::Claimed::Jobs { jobs, .. }) => {
                                for claimed in jobs {
                                    let outcome = store::queue::settle::Outcome {
                                        job: claimed.id,
                                        epoch: claimed.epoch,
                                        end: store::queue::settle::End::Finish(None),
                                    };
                                    match store.settle(T, worker, vec![outcome]).await {
                                        Ok(store::queue::settle::Settled::Results(statuses)) => {
                                            assert_eq!(statuses, [store::queue::settle::SettleStatus::Applied]);
                                            finished.lock().expect("lock poisoned").insert(claimed.id);
                                        }
                                        Ok(other) => panic!("{other:?}"),
                                        Err(error) => note(error),
                                    }
                                }
                            }
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => note(error),
                        }
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    progress.notify_one();
                }
            });
        }
        let psql = psql(&db.admin).await;
        for cut in 1..=CUTS + 1 {
            while count.load(Ordering::Relaxed) < cut * BETWEEN {
                tokio::select! {
                    () = progress.notified() => {}
                    Some(ended) = load.join_next() => panic!("a load task ended early: {ended:?}"),
                }
            }
            if cut <= CUTS {
                assert!(terminate(&psql).await > 0);
            }
        }
        over.store(true, Ordering::Relaxed);
        load.join_all().await;
        assert!(refused.load(Ordering::Relaxed) > 0, "no call failed after the connections were cut");
        let acknowledged = acknowledged.lock().expect("lock poisoned").clone();
        let finished = finished.lock().expect("lock poisoned").clone();
        assert!(!acknowledged.is_empty() && !finished.is_empty());
        for id in acknowledged {
            let job = db.store.job(T, id).await.expect("reads").expect("an acknowledged job exists");
            assert!(!finished.contains(&id) || job.state == domain::JobState::Succeeded, "{id} was finished");
        }
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X12.
#[tokio::test]
async fn abandoned_reads_do_not_exhaust_the_connections() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        for _ in 0..40 {
            // Polled once and dropped: the read is in flight and its caller is gone.
            let abandoned = tokio::time::timeout(std::time::Duration::ZERO, db.store.totals(T)).await;
            drop(abandoned);
        }
        assert_eq!(db.store.totals(T).await.expect("reads").queued, 1);
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_locked_idempotency_key_does_not_block_other_callers() {
    on_postgres(async |db| {
        let (theirs, watch) = (psql(&db.admin).await, psql(&db.admin).await);
        let lock_key = format!(
            "begin; insert into windlass.idempotency (tenant, key, body_hash, jobs, created_at) \
             values ({}, 'held', '', '[]', now())",
            T.0
        );
        theirs.client.batch_execute(&lock_key).await.expect("locks the key");
        let mut waits = tokio::task::JoinSet::new();
        let store = db.store.clone();
        let key = Idempotency { key: "held".into(), body_hash: [1; 32] };
        waits.spawn(async move { store.enqueue(T, vec![job("q")], Some(key)).await });
        let waiting = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        while watch.client.query(waiting, &[]).await.expect("reads the locks").is_empty() {}
        // The first of these may share a runner with the blocked call; it then moves to another one.
        for _ in 0..3 {
            try_push(&db).await.expect("is not blocked");
        }
        theirs.client.batch_execute("rollback").await.expect("rolls back");
        let reply = waits.join_next().await.expect("one call is blocked").expect("does not panic").expect("enqueues");
        assert!(matches!(reply, EnqueueReply::Accepted(jobs) if !jobs[0].existing));
    })
    .await;
}

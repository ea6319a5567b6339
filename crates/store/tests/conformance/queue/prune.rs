use domain::limits::{
    HISTORY_RETENTION_DEFAULT_S, IDEMPOTENCY_RETENTION_S, MAINTENANCE_BATCHES, MAINTENANCE_ROWS, RETENTION_DEFAULT_S,
};
use domain::{JobId, QueueSettings};
use store::Store;
use store::queue::enqueue::{Extras, Idempotency, NewJob};
use store::queue::list::JobFilter;
use store::queue::settle::End;
use store::signals::refine::SignalChange;
use testkit::{job, label, name, on_both};

use crate::support::*;

async fn prune(store: &Store) -> u64 {
    store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").jobs
}

async fn ended(store: &Store, new: NewJob) -> JobId {
    let queue = new.queue.clone();
    let id = push(store, new).await;
    let worker = register(store, &[queue.as_str()]).await;
    let claimed = claim_one(store, worker).await;
    let change = SignalChange { epoch: claimed.epoch, summary: Some("half".into()), ..SignalChange::default() };
    store.signal(T, id, change).await.expect("signals");
    finish(store, worker, &claimed).await;
    id
}

/// Requirement Q14.
#[tokio::test]
async fn pruning_deletes_a_job_with_its_artifacts_signal_and_tags_but_not_its_history() {
    on_both(async |db| {
        let extras = Extras {
            tags: vec![label("x"), label("y")],
            subject: Some(label("m")),
            triggered_by: Some("sql".into()),
            ..Extras::default()
        };
        let id = ended(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let artifact = "insert into artifacts (job, name, tenant, size, content_type, sha256, location, created_at)
             select id, 'log', tenant, 1, 'text/plain', id, 'ab/cd', finished_at from ended";
        let artifact = if db.store.is_postgres() {
            artifact.replace("1, 'text/plain', id", "1, 'text/plain', ''::bytea")
        } else {
            artifact.into()
        };
        run_sql(&db.store, &artifact).await.expect("inserts");
        let before = db.store.history(T, id).await.expect("reads").expect("exists");
        db.clock.advance_ms((RETENTION_DEFAULT_S - 60) * 1_000);
        assert_eq!(prune(&db.store).await, 0, "retention has not passed");
        db.clock.advance_ms(120_000);
        assert_eq!(prune(&db.store).await, 1);
        assert!(db.store.job(T, id).await.expect("reads").is_none());
        for table in ["ended", "artifacts", "signals", "job_tags"] {
            assert_eq!(number(&db.store, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
        assert_eq!(number(&db.store, "select count(*) from blob_garbage where location = 'ab/cd'").await, 1);
        assert!(db.store.list_jobs(T, JobFilter::default(), None, 10).await.expect("lists").jobs.is_empty());
        let after = db.store.history(T, id).await.expect("reads").expect("history outlives the job");
        assert_eq!(after, before, "principal and cause are still recorded");
        assert!(after[0].actor.is_some() && after[0].cause.is_some(), "{:?}", after[0]);
        let why = "jobs of queue q are retained for 604800 s after they end";
        let text = "select why from prunings where kind = 'jobs' and rows_pruned = 1";
        assert_eq!(texts(&db.store, text, text).await, [why], "the pruning is logged");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q14.
#[tokio::test]
async fn each_queue_has_its_own_retention_and_live_jobs_remain() {
    on_both(async |db| {
        let settings = QueueSettings { retention_s: Some(60), ..QueueSettings::default() };
        db.store.put_queue(T, name("short"), settings, "me".into()).await.expect("puts");
        let short = ended(&db.store, job("short")).await;
        let long = ended(&db.store, job("long")).await;
        let live = push(&db.store, job("short")).await;
        db.clock.advance_ms(61_000);
        assert_eq!(prune(&db.store).await, 1);
        assert!(db.store.job(T, short).await.expect("reads").is_none());
        assert_eq!(state(&db.store, long).await, "succeeded");
        assert_eq!(state(&db.store, live).await, "queued");
        assert_eq!(prune(&db.store).await, 0);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q14.
#[tokio::test]
async fn the_retention_counts_from_the_end_of_a_job() {
    on_both(async |db| {
        let settings = QueueSettings { retention_s: Some(60), ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let id = push(&db.store, job("q")).await;
        db.clock.advance_ms(3_600_000);
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        assert_eq!(prune(&db.store).await, 0);
        assert_eq!(state(&db.store, id).await, "succeeded");
    })
    .await;
}

/// Requirement Q14.
#[tokio::test]
async fn a_pruning_batch_is_bounded_and_the_next_continues() {
    on_both(async |db| {
        let all = MAINTENANCE_ROWS + 200;
        push_all(&db.store, (0..all).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        for _ in 0..2 {
            let claimed = claim(&db.store, worker, 1_000).await;
            let outcome = |job: &store::queue::claim::ClaimedJob| store::queue::settle::Outcome {
                job: job.id,
                epoch: job.epoch,
                end: End::Finish(None),
            };
            db.store.settle(T, worker, claimed.iter().map(outcome).collect()).await.expect("settles");
        }
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        assert_eq!(prune(&db.store).await, MAINTENANCE_ROWS as u64);
        assert_eq!(prune(&db.store).await, 200);
        assert_eq!(number(&db.store, "select count(*) from history").await, all as i64, "the last word on each");
    })
    .await;
}

/// Jobs that were delayed for long have low ids and end late.
/// Requirement Q14.
#[tokio::test]
async fn old_ids_that_ended_late_do_not_hide_expired_jobs() {
    on_both(async |db| {
        let late = MAINTENANCE_ROWS + 10;
        push_all(&db.store, (0..=late).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        while !claim(&db.store, worker, 1_000).await.is_empty() {}
        let last = number(&db.store, "select count(*) from jobs").await;
        assert_eq!(last, late as i64 + 1);
        let moved =
            "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth,
                version, created_at, principal, payload)
             select id, tenant, lane, 'succeeded', run_at, epoch, attempt, max_attempts, AT, depth, version, created_at,
                principal, payload from jobs; delete from jobs;";
        let ended_at = if db.store.is_postgres() {
            "case when id = (select id from jobs order by id desc limit 1) then created_at
                else created_at + interval '60 days' end"
        } else {
            "case when id = (select max(id) from jobs) then created_at else created_at + 60 * 86400000000 end"
        };
        run_sql(&db.store, &moved.replace("AT,", &format!("{ended_at},"))).await.expect("they end");
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 1, "the scan continues past them");
        assert_eq!(prune(&db.store).await, 0);
    })
    .await;
}

/// SQL fragments: the numbers 1 to `many` as rows `n`, a low id that grows with `n`, and time units.
struct Numbers {
    rows: String,
    low_id: &'static str,
    days: &'static str,
    microseconds: &'static str,
}

fn numbers(store: &Store, many: usize) -> Numbers {
    if store.is_postgres() {
        Numbers {
            rows: format!("generate_series(1, {many}) n"),
            low_id: "lpad(to_hex(n), 32, '0')::uuid",
            days: "interval '1 day'",
            microseconds: "interval '1 microsecond'",
        }
    } else {
        let all = format!("with recursive c(n) as (select 1 union all select n + 1 from c where n < {many})");
        Numbers {
            rows: format!("({all} select n from c)"),
            low_id: "unhex(printf('%032x', n))",
            days: "86400000000",
            microseconds: "1",
        }
    }
}

/// Requirement Q14.
#[tokio::test]
async fn a_pruning_scan_resumes_at_its_cursor() {
    on_both(async |db| {
        let behind = ended(&db.store, job("q")).await;
        let Numbers { rows, low_id, days, .. } = numbers(&db.store, MAINTENANCE_BATCHES * MAINTENANCE_ROWS + 10);
        let created_long_ago = format!(
            "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
                 created_at, principal, payload)
             select {low_id}, e.tenant, e.lane, e.state, e.run_at, e.epoch, e.attempt, e.max_attempts,
                 e.finished_at + 60 * {days}, e.depth, e.version, e.created_at, e.principal, e.payload
             from ended e, {rows}"
        );
        run_sql(&db.store, &created_long_ago).await.expect("fills");
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 0, "one scan is bounded");
        assert_eq!(prune(&db.store).await, 1);
        assert!(db.store.job(T, behind).await.expect("reads").is_none());
        db.clock.advance_ms(60 * 86_400_000);
        assert_eq!(prune(&db.store).await, MAINTENANCE_ROWS as u64, "the scan restarts after reaching the end");
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn lanes_of_a_queue_are_pruned_together_and_recorded_once() {
    on_both(async |db| {
        for priority in [0, 1] {
            ended(&db.store, NewJob { priority, ..job("q") }).await;
        }
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 2);
        assert_eq!(number(&db.store, "select count(*) from prunings where kind = 'jobs'").await, 1);
        assert_eq!(number(&db.store, "select rows_pruned from prunings where kind = 'jobs'").await, 2);
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn pruning_records_are_pruned_in_bounded_batches() {
    on_both(async |db| {
        let Numbers { rows, .. } = numbers(&db.store, MAINTENANCE_ROWS + 1);
        let long_ago = if db.store.is_postgres() { "timestamptz 'epoch'" } else { "0" };
        let text = format!(
            "insert into prunings (at, kind, rows_pruned, why) select {long_ago}, 'jobs', 1, 'long ago' from {rows}"
        );
        run_sql(&db.store, &text).await.expect("fills");
        prune(&db.store).await;
        assert_eq!(number(&db.store, "select count(*) from prunings").await, 1);
    })
    .await;
}

/// Requirement X5.
#[tokio::test]
async fn the_history_scan_skips_retained_jobs_in_bounded_parts() {
    on_both(async |db| {
        ended(&db.store, job("q")).await;
        let Numbers { rows, low_id, microseconds, .. } =
            numbers(&db.store, MAINTENANCE_BATCHES * MAINTENANCE_ROWS + 10);
        let text = format!(
            "insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
             select e.id, n, 'failed', e.tenant, e.lane, e.finished_at + n * {microseconds}, e.created_at, 1
             from ended e, {rows};
             insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
             select {low_id}, 1, 'failed', h.tenant, h.lane, h.at, h.enqueued_at, 1
             from (select tenant, lane, max(at) as at, max(enqueued_at) as enqueued_at from history group by 1, 2) h,
                 (select 1 as n) one"
        );
        run_sql(&db.store, &text).await.expect("fills");
        let retained = number(&db.store, "select count(*) from history").await - 1;
        db.pass_ms(60_000).await;
        let pruned = async || db.store.prune(1).await.expect("prunes").history;
        assert_eq!((pruned().await, pruned().await, pruned().await), (0, 1, 0));
        assert_eq!(number(&db.store, "select count(*) from history").await, retained);
    })
    .await;
}

/// Requirement X5.
#[tokio::test]
async fn history_is_pruned_after_its_own_retention() {
    on_both(async |db| {
        let id = ended(&db.store, job("q")).await;
        db.clock.advance_ms((RETENTION_DEFAULT_S + 60) * 1_000);
        prune(&db.store).await;
        assert!(db.store.history(T, id).await.expect("reads").is_some());
        db.clock.advance_ms(HISTORY_RETENTION_DEFAULT_S * 1_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").history, 1);
        assert!(db.store.history(T, id).await.expect("reads").is_none());
    })
    .await;
}

/// Requirement X5.
#[tokio::test]
async fn a_retained_job_keeps_its_history() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 2, ..job("q") }).await;
        let worker = register_with_long_lease(&db.store).await;
        let first = claim_one(&db.store, worker).await;
        settle(&db.store, worker, id, first.epoch, End::Fail(boom())).await;
        db.pass_ms(60_000).await;
        db.store.promote_due().await.expect("promotes");
        finish(&db.store, worker, &claim_one(&db.store, worker).await).await;
        let before = events(&db.store, id).await;
        db.pass_ms(60_000).await;
        assert_eq!(db.store.prune(1).await.expect("prunes").history, 0);
        assert_eq!(events(&db.store, id).await, before);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q3.
#[tokio::test]
async fn idempotency_keys_and_expired_unique_keys_are_pruned() {
    on_both(async |db| {
        let key = Some(Idempotency { key: "a".into(), body_hash: [1; 32] });
        let unique = store::queue::enqueue::Unique { key: "u".into(), for_s: Some(60) };
        let extras = Extras { unique: Some(unique), ..Extras::default() };
        db.store.enqueue(T, vec![NewJob { extras: Some(Box::new(extras)), ..job("q") }], key).await.expect("enqueues");
        db.clock.advance_ms((IDEMPOTENCY_RETENTION_S - 60) * 1_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").idempotency, 0);
        assert_eq!(number(&db.store, "select count(*) from unique_keys").await, 0, "its minute is over");
        db.clock.advance_ms(61_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").idempotency, 1);
        assert_eq!(number(&db.store, "select count(*) from idempotency").await, 0);
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn a_queue_is_pruned_on_request() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let end = async |queue: &str| {
            let id = push(&db.store, job(queue)).await;
            let claimed = claim_one(&db.store, worker).await;
            finish(&db.store, worker, &claimed).await;
            id
        };
        let old = end("q").await;
        db.pass_ms(60_000).await;
        let recent = end("q").await;
        let waiting = push(&db.store, job("q")).await;
        let prune = async |older_than_s| db.store.prune_queue(T, name("q"), older_than_s).await.expect("prunes");
        assert_eq!(prune(None).await, (0, false), "within the retention");
        assert_eq!(prune(Some(30)).await, (1, false));
        assert!(db.store.job(T, old).await.expect("reads").is_none());
        assert!(db.store.job(T, recent).await.expect("reads").is_some());
        assert_eq!(
            db.store.prune_queue(domain::TenantId::SYSTEM, name("q"), Some(0)).await.expect("prunes"),
            (0, false)
        );
        assert_eq!(prune(Some(0)).await, (1, false));
        assert!(db.store.job(T, waiting).await.expect("reads").is_some(), "a job that has not ended stays");
        assert!(db.store.history(T, old).await.expect("reads").is_some(), "the history stays");
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

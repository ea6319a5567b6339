use domain::limits::{
    HISTORY_RETENTION_S_DEFAULT, IDEMPOTENCY_KEEP_S, MAINTENANCE_PARTS, MAINTENANCE_ROWS, RETENTION_S_DEFAULT,
};
use domain::{JobId, QueueSettings};
use store::Store;
use store::jobs::enqueue::{Extras, Idempotency, NewJob};
use store::jobs::list::JobFilter;
use store::jobs::settle::End;
use store::signals::refine::SignalChange;
use testkit::{job, label, name, on_both};

use crate::support::*;

async fn prune(store: &Store) -> u64 {
    store.prune(HISTORY_RETENTION_S_DEFAULT).await.expect("prunes").jobs
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

#[tokio::test]
async fn q14_an_ended_job_goes_with_its_artifacts_signal_and_tags_and_its_history_stays() {
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
        db.clock.advance_ms((RETENTION_S_DEFAULT - 60) * 1_000);
        assert_eq!(prune(&db.store).await, 0, "its time has not come");
        db.clock.advance_ms(120_000);
        assert_eq!(prune(&db.store).await, 1);
        assert!(db.store.job(T, id).await.expect("reads").is_none());
        for table in ["ended", "artifacts", "signals", "job_tags"] {
            assert_eq!(number(&db.store, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
        assert_eq!(number(&db.store, "select count(*) from blob_garbage where location = 'ab/cd'").await, 1);
        assert!(db.store.list_jobs(T, JobFilter::default(), None, 10).await.expect("lists").jobs.is_empty());
        let after = db.store.history(T, id).await.expect("reads").expect("X5: history outlives the job");
        assert_eq!(after, before, "who made it and what led to it are still told");
        assert!(after[0].actor.is_some() && after[0].cause.is_some(), "{:?}", after[0]);
        let why = "jobs of queue q are kept 604800 s after they end";
        let text = "select why from prunings where kind = 'jobs' and rows_pruned = 1";
        assert_eq!(texts(&db.store, text, text).await, [why], "X13: what was pruned is told");
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q14_each_queue_keeps_its_own_retention_and_live_jobs_stay() {
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
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q14_the_retention_counts_from_the_end_and_not_from_the_making() {
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

#[tokio::test]
async fn q14_a_round_is_bounded_and_the_next_goes_on() {
    on_both(async |db| {
        let all = MAINTENANCE_ROWS + 200;
        push_all(&db.store, (0..all).map(|_| job("q")).collect()).await;
        let worker = register(&db.store, &["q"]).await;
        for _ in 0..2 {
            let claimed = claim(&db.store, worker, 1_000).await;
            let outcome = |job: &store::jobs::claim::ClaimedJob| store::jobs::settle::Outcome {
                job: job.id,
                epoch: job.epoch,
                end: End::Finish(None),
            };
            db.store.settle(T, worker, claimed.iter().map(outcome).collect()).await.expect("settles");
        }
        db.clock.advance_ms((RETENTION_S_DEFAULT + 60) * 1_000);
        assert_eq!(prune(&db.store).await, MAINTENANCE_ROWS as u64);
        assert_eq!(prune(&db.store).await, 200);
        assert_eq!(number(&db.store, "select count(*) from history").await, all as i64, "the last word on each");
    })
    .await;
}

/// Jobs that were put off for long have low ids and end late.
#[tokio::test]
async fn q14_what_was_made_before_and_ended_later_hides_nothing() {
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
        db.clock.advance_ms((RETENTION_S_DEFAULT + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 1, "the one behind them");
        assert_eq!(prune(&db.store).await, 0);
    })
    .await;
}

/// Numbers as rows of `n`, an id that is lower the lower its number, and a moment `n` microseconds after another.
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

#[tokio::test]
async fn q14_a_look_goes_on_where_the_last_one_ended() {
    on_both(async |db| {
        let behind = ended(&db.store, job("q")).await;
        let Numbers { rows, low_id, days, .. } = numbers(&db.store, MAINTENANCE_PARTS * MAINTENANCE_ROWS + 10);
        let made_long_ago = format!(
            "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
                 created_at, principal, payload)
             select {low_id}, e.tenant, e.lane, e.state, e.run_at, e.epoch, e.attempt, e.max_attempts,
                 e.finished_at + 60 * {days}, e.depth, e.version, e.created_at, e.principal, e.payload
             from ended e, {rows}"
        );
        run_sql(&db.store, &made_long_ago).await.expect("fills");
        db.clock.advance_ms((RETENTION_S_DEFAULT + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 0, "a look is bounded");
        assert_eq!(prune(&db.store).await, 1);
        assert!(db.store.job(T, behind).await.expect("reads").is_none());
        db.clock.advance_ms(60 * 86_400_000);
        assert_eq!(prune(&db.store).await, MAINTENANCE_ROWS as u64, "and begins anew behind the end");
    })
    .await;
}

#[tokio::test]
async fn x13_the_lanes_of_a_queue_go_together_and_are_told_once() {
    on_both(async |db| {
        for priority in [0, 1] {
            ended(&db.store, NewJob { priority, ..job("q") }).await;
        }
        db.clock.advance_ms((RETENTION_S_DEFAULT + 60) * 1_000);
        assert_eq!(prune(&db.store).await, 2);
        assert_eq!(number(&db.store, "select count(*) from prunings where kind = 'jobs'").await, 1);
        assert_eq!(number(&db.store, "select rows_pruned from prunings where kind = 'jobs'").await, 2);
    })
    .await;
}

#[tokio::test]
async fn x13_what_was_told_of_prunings_goes_in_small_batches() {
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

#[tokio::test]
async fn x5_history_of_kept_jobs_is_passed_over_a_part_at_a_time() {
    on_both(async |db| {
        ended(&db.store, job("q")).await;
        let Numbers { rows, low_id, microseconds, .. } = numbers(&db.store, MAINTENANCE_PARTS * MAINTENANCE_ROWS + 10);
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
        let kept = number(&db.store, "select count(*) from history").await - 1;
        db.pass_ms(60_000).await;
        let pruned = async || db.store.prune(1).await.expect("prunes").history;
        assert_eq!((pruned().await, pruned().await, pruned().await), (0, 1, 0));
        assert_eq!(number(&db.store, "select count(*) from history").await, kept);
    })
    .await;
}

#[tokio::test]
async fn x5_history_goes_after_its_own_retention() {
    on_both(async |db| {
        let id = ended(&db.store, job("q")).await;
        db.clock.advance_ms((RETENTION_S_DEFAULT + 60) * 1_000);
        prune(&db.store).await;
        assert!(db.store.history(T, id).await.expect("reads").is_some());
        db.clock.advance_ms(HISTORY_RETENTION_S_DEFAULT * 1_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_S_DEFAULT).await.expect("prunes").history, 1);
        assert!(db.store.history(T, id).await.expect("reads").is_none());
    })
    .await;
}

#[tokio::test]
async fn x5_what_a_kept_job_went_through_is_kept_with_it() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 2, ..job("q") }).await;
        let worker = patient(&db.store).await;
        let first = claim_one(&db.store, worker).await;
        settle(&db.store, worker, id, first.epoch, End::Fail(boom())).await;
        db.pass_ms(60_000).await;
        db.store.promote_due().await.expect("promotes");
        finish(&db.store, worker, &claim_one(&db.store, worker).await).await;
        let before = events(&db.store, id).await;
        db.pass_ms(60_000).await;
        assert_eq!(db.store.prune(1).await.expect("prunes").history, 0);
        assert_eq!(events(&db.store, id).await, before);
        sound(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn q3_idempotency_keys_and_past_unique_keys_are_pruned() {
    on_both(async |db| {
        let key = Some(Idempotency { key: "a".into(), body_hash: [1; 32] });
        let unique = store::jobs::enqueue::Unique { key: "u".into(), for_s: Some(60) };
        let extras = Extras { unique: Some(unique), ..Extras::default() };
        db.store.enqueue(T, vec![NewJob { extras: Some(Box::new(extras)), ..job("q") }], key).await.expect("enqueues");
        db.clock.advance_ms((IDEMPOTENCY_KEEP_S - 60) * 1_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_S_DEFAULT).await.expect("prunes").idempotency, 0);
        assert_eq!(number(&db.store, "select count(*) from unique_keys").await, 0, "its minute is over");
        db.clock.advance_ms(61_000);
        assert_eq!(db.store.prune(HISTORY_RETENTION_S_DEFAULT).await.expect("prunes").idempotency, 1);
        assert_eq!(number(&db.store, "select count(*) from idempotency").await, 0);
    })
    .await;
}

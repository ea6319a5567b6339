use domain::limits::{HISTORY_RETENTION_DEFAULT_S, MAINTENANCE_ROWS, TIMEOUT_GRACE_MS};
use domain::queue::settings::KindSettings;
use domain::{JobId, JobState, QueueSettings, RetryPolicy, WorkerId};
use store::Store;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, SettleStatus};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use testkit::{job, name, on_both};

use crate::support::*;

/// Long enough that only clock advances of the test decide, never the speed of the machine.
const TERM_MS: i64 = 3_600_000;

async fn register_with_long_term(store: &Store) -> WorkerId {
    let worker = NewWorker { lease_ms: TERM_MS, ..new_worker(&["q"]) };
    store.register_worker(T, worker).await.expect("registers")
}

/// Requirement Q7.
#[tokio::test]
async fn jobs_of_a_dead_worker_are_queued_again_and_the_attempt_counts() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let dead = register_with_long_term(&db.store).await;
        let lost = claim_one(&db.store, dead).await;
        db.pass_ms(TERM_MS / 2).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").jobs, 0, "the lease still holds");
        db.pass_ms(TERM_MS / 2 + 1_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").jobs, 1);
        assert_eq!(state(&db.store, id).await, "queued");
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!((claimed.id, claimed.attempt), (id, 2));
        assert!(claimed.epoch > lost.epoch);
        assert_eq!(finish(&db.store, dead, &lost).await, SettleStatus::ClaimLost, "a dead worker stays dead");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
        assert_eq!(events(&db.store, id).await, ["enqueued", "started", "expired", "started", "finished"]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn a_worker_past_its_lease_is_dead_before_the_sweep() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        db.pass_ms(30_500).await;
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::ClaimLost);
        assert_eq!(db.store.heartbeat(T, worker, None).await.expect("answers"), Heartbeat::LeaseExpired);
        db.store.sweep().await.expect("sweeps");
        assert_eq!(state(&db.store, id).await, "queued");
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_heartbeat_renews_the_claims() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let worker = register_with_long_term(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        for _ in 0..5 {
            db.pass_ms(TERM_MS / 3 * 2).await;
            let beat = db.store.heartbeat(T, worker, None).await.expect("answers");
            assert!(matches!(beat, Heartbeat::Alive { drain: false, .. }));
            assert_eq!(db.store.sweep().await.expect("sweeps").jobs, 0);
        }
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
    })
    .await;
}

/// Requirement Q7.
#[tokio::test]
async fn server_downtime_uses_up_no_attempt() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        let worker = register_with_long_term(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        // The service is down for two lease terms; then a node starts.
        db.clock.advance_ms(2 * TERM_MS);
        assert!(db.store.beat().await.expect("beats"), "the outage is noticed");
        assert_eq!(db.store.sweep().await.expect("sweeps").workers, 0);
        db.pass_ms(TERM_MS / 2).await;
        let beat = db.store.heartbeat(T, worker, None).await.expect("answers");
        assert!(matches!(beat, Heartbeat::Alive { .. }), "the worker returned in time");
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
    })
    .await;
}

/// Requirement Q7.
#[tokio::test]
async fn after_downtime_a_timeout_waits_for_a_grace_period() {
    on_both(async |db| {
        let extras = || Some(Box::new(Extras { timeout_s: Some(60), ..Extras::default() }));
        for reports in [true, false] {
            let id = push(&db.store, NewJob { extras: extras(), ..job("q") }).await;
            let worker = register_with_long_term(&db.store).await;
            let claimed = claim_one(&db.store, worker).await;
            db.clock.advance_ms(120_000);
            assert!(db.store.beat().await.expect("beats"), "a gap that long counts as an outage");
            assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, 0);
            if reports {
                assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::Applied);
            }
            db.pass_ms(TIMEOUT_GRACE_MS + 1).await;
            assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, usize::from(!reports), "{id}");
        }
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn after_an_outage_a_worker_without_heartbeats_for_a_term_is_dead() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        db.clock.advance_ms(3_600_000);
        db.store.beat().await.expect("beats");
        db.pass_ms(31_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").jobs, 1);
        assert_eq!(state(&db.store, id).await, "queued");
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn an_expired_last_attempt_fails_the_job() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 1, ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        db.pass_ms(31_000).await;
        db.store.sweep().await.expect("sweeps");
        let job = get(&db.store, id).await;
        assert_eq!((job.state.as_str(), job.error.expect("why").code.as_str()), ("failed", "expired"));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q7.
#[tokio::test]
async fn a_removed_worker_uses_up_no_attempt() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        assert!(db.store.remove_worker(T, worker).await.expect("removes"));
        let job = get(&db.store, id).await;
        assert_eq!((job.state.as_str(), job.attempt), ("queued", 0));
        assert_eq!(events(&db.store, id).await, ["enqueued", "started", "released"]);
        assert!(!db.store.remove_worker(T, worker).await.expect("answers"));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q7.
#[tokio::test]
async fn a_claim_committed_after_its_worker_was_removed_uses_up_no_attempt() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { max_attempts: 1, ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        claim_one(&db.store, worker).await;
        // The state after a claim that commits after the worker's removal has read the claims.
        run_sql(&db.store, "delete from workers").await.expect("goes");
        db.store.sweep().await.expect("sweeps");
        let job = get(&db.store, id).await;
        assert_eq!((job.state, job.attempt), (JobState::Queued, 0));
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_timeout_ends_the_attempt_and_notifies_the_worker() {
    on_both(async |db| {
        let extras = Extras { timeout_s: Some(600), ..Extras::default() };
        let id = push(&db.store, NewJob { extras: Some(Box::new(extras)), ..job("q") }).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        db.pass_ms(400_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, 0);
        db.pass_ms(201_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").timed_out, 1);
        let job = get(&db.store, id).await;
        assert_eq!((job.state.as_str(), job.error.expect("why").code.as_str()), ("scheduled", "timeout"));
        let Heartbeat::Alive { cancel, .. } = db.store.heartbeat(T, worker, None).await.expect("answers") else {
            panic!("the worker is alive")
        };
        assert_eq!(cancel, [id]);
        assert_eq!(finish(&db.store, worker, &claimed).await, SettleStatus::ClaimLost);
        let Heartbeat::Alive { cancel, .. } = db.store.heartbeat(T, worker, None).await.expect("answers") else {
            panic!("the worker is alive")
        };
        assert_eq!(cancel, [], "the worker has settled the job");
        assert_eq!(settle(&db.store, worker, id, claimed.epoch, End::Cancel).await, SettleStatus::ClaimLost);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q8.
#[tokio::test]
async fn a_kind_has_its_own_retry_policy_and_timeout() {
    on_both(async |db| {
        let store = &db.store;
        let every = |wait_s| Some(RetryPolicy::new(Some(wait_s), None, None, None).expect("a policy"));
        let slow = KindSettings { retry: every(600), timeout_s: Some(60) };
        let kinds = [(name("slow"), slow)].into();
        let settings = QueueSettings { retry: every(7), timeout_s: Some(1_200), kinds, ..QueueSettings::default() };
        store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let worker = register_with_long_lease(store).await;
        let of_kind = |kind| NewJob { kind: name(kind), ..job("q") };
        for (kind, timeout_s, wait_s) in [("slow", 60, 600), ("k", 1_200, 7)] {
            let id = push(store, of_kind(kind)).await;
            let claimed = claim_one(store, worker).await;
            assert_eq!(claimed.timeout_s, Some(timeout_s), "{kind}");
            settle(store, worker, id, claimed.epoch, End::Fail(boom())).await;
            let failed = get(store, id).await;
            assert_eq!(failed.run_at.ms_since(failed.updated_at), wait_s * 1_000, "{kind}");
            store.cancel(T, id, "me".into()).await.expect("cancels");
        }
        let (slow, plain) = (push(store, of_kind("slow")).await, push(store, of_kind("k")).await);
        assert_eq!(claim(store, worker, 10).await.len(), 2);
        db.pass_ms(61_000).await;
        assert_eq!(store.sweep().await.expect("sweeps").timed_out, 1);
        assert_eq!(
            (state(store, slow).await, state(store, plain).await),
            ("scheduled".to_owned(), "working".to_owned())
        );
        assert_counters_match(store).await;
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn dead_workers_are_pruned_in_bounded_batches() {
    on_both(async |db| {
        register(&db.store, &["q"]).await;
        db.pass_ms(31_000).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").workers, 1);
        let (id, numbers) = match db.store.is_postgres() {
            true => ("gen_random_uuid()", format!("generate_series(1, {MAINTENANCE_ROWS})")),
            false => {
                let to = format!("select 1 union all select n + 1 from numbers where n < {MAINTENANCE_ROWS}");
                ("randomblob(16)", format!("(with recursive numbers(n) as ({to}) select n from numbers)"))
            }
        };
        let many = format!(
            "insert into workers (id, tenant, name, queues, lease_ms, lease_until, draining, registered_at, dead_at)
             select {id}, w.tenant, w.name, w.queues, w.lease_ms, w.lease_until, w.draining, w.registered_at, w.dead_at
             from workers w, {numbers} others"
        );
        run_sql(&db.store, &many).await.expect("fills one round");
        db.pass_ms(86_400_000 + 1_000).await;
        let prune = async || db.store.prune(HISTORY_RETENTION_DEFAULT_S).await.expect("prunes").workers;
        assert_eq!([prune().await, prune().await, prune().await], [MAINTENANCE_ROWS as u64, 1, 0]);
    })
    .await;
}

/// Requirement R7.
#[tokio::test]
async fn a_restarted_node_gives_its_own_jobs_back_without_an_attempt() {
    on_both(async |db| {
        let once = || NewJob { max_attempts: 1, ..job("q") };
        let jobs: Vec<JobId> = push_all(&db.store, vec![once(), once()]).await.iter().map(|job| job.id).collect();
        let mine = db.store.register_node_worker(T, "here", new_worker(&["q"])).await.expect("registers");
        let other = db.store.register_node_worker(T, "there", new_worker(&["q"])).await.expect("registers");
        assert_eq!(claim_one(&db.store, mine).await.id, jobs[0]);
        let theirs = claim_one(&db.store, other).await;
        assert_eq!(db.store.release_node_workers("here").await.expect("releases"), 1);
        let back = get(&db.store, jobs[0]).await;
        assert_eq!((back.state.as_str(), back.attempt), ("queued", 0));
        assert_eq!(state(&db.store, jobs[1]).await, "loading", "another node's jobs stay");
        assert_eq!(finish(&db.store, other, &theirs).await, SettleStatus::Applied);
        assert_eq!(db.store.release_node_workers("here").await.expect("releases"), 0, "once");
        let again = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, again).await;
        assert_eq!((claimed.id, claimed.attempt), (jobs[0], 1), "the only attempt is still there");
        assert_counters_match(&db.store).await;
    })
    .await;
}

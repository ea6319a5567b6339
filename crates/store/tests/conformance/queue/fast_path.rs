//! The fast path of claims: on PostgreSQL a repeated claim is a single statement. It must respect everything that the
//! full claim respects, whatever changed since.

use domain::triggers::trigger::Source;
use domain::{JobState, QueueSettings, WorkerId};
use store::access::tenants::create::TenantCreated;
use store::queue::claim::Claimed;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::workers::register::NewWorker;
use store::{Store, StoreError};
use testkit::{job, label, name, on_both, on_postgres};

use crate::support::*;
use crate::triggers::declarations::{create, new};

const LEASE_MS: i64 = 30_000;

/// Returns a worker of queues `q` and `r` that has claimed two jobs of `q`, so that its next claim may take the fast
/// path.
async fn warmed_up(store: &Store) -> WorkerId {
    let worker = register(store, &["q", "r"]).await;
    for _ in 0..2 {
        push(store, job("q")).await;
        let claimed = claim_one(store, worker).await;
        finish(store, worker, &claimed).await;
    }
    worker
}

async fn put(store: &Store, settings: QueueSettings) -> Result<(), StoreError> {
    store.put_queue(T, name("q"), settings, "me".into()).await.map(|_| ())
}

/// Requirement Q6.
#[tokio::test]
async fn a_repeated_claim_is_one_statement() {
    on_postgres(async |db| {
        let prepared = "select count(*)::text from pg_prepared_statements where statement like 'with clock as%'";
        let worker = register(&db.store, &["q"]).await;
        push(&db.store, job("q")).await;
        claim_one(&db.store, worker).await;
        assert_eq!(texts(&db.store, "", prepared).await, ["0"], "the first claim takes the full path");
        let jobs = push_all(&db.store, vec![job("q"); 5]).await;
        let claimed = claim(&db.store, worker, 3).await;
        assert_eq!(texts(&db.store, "", prepared).await, ["1"]);
        let ids = |range: std::ops::Range<usize>| jobs[range].iter().map(|job| job.id).collect::<Vec<_>>();
        assert_eq!(
            claimed.iter().map(|job| job.id).collect::<Vec<_>>(),
            ids(0..3),
            "oldest first, up to the requested number"
        );
        assert_eq!(claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect::<Vec<_>>(), ids(3..5));
        assert!(claim(&db.store, worker, 10).await.is_empty());
        let stored = get(&db.store, claimed[0].id).await;
        assert_eq!((stored.state, stored.attempt, stored.worker), (JobState::Working, 1, Some(worker)));
        assert_eq!(number(&db.store, "select sum(remaining) from claims").await, 6);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// An idle worker makes a full claim now and then to renew its lease. Its next claims take the fast path again.
/// Requirement Q6.
#[tokio::test]
async fn a_claim_after_an_idle_period_takes_the_fast_path_again() {
    on_postgres(async |db| {
        let made = async || {
            let count = "select generic_plans::text from pg_prepared_statements where statement like 'with clock as%'";
            texts(&db.store, "", count).await[0].parse::<i64>().expect("a number")
        };
        let worker = warmed_up(&db.store).await;
        db.pass_ms(LEASE_MS / 2).await;
        assert!(claim(&db.store, worker, 1).await.is_empty());
        let before = made().await;
        push(&db.store, job("q")).await;
        claim_one(&db.store, worker).await;
        assert_eq!(made().await, before + 1);
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn a_fast_path_claim_respects_priority_and_other_queues_and_lanes() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        let low = push(&db.store, job("q")).await;
        let high = push(&db.store, NewJob { priority: 5, ..job("q") }).await;
        assert_eq!(claim_one(&db.store, worker).await.id, high);
        assert_eq!(claim_one(&db.store, worker).await.id, low);
        let older = push(&db.store, job("r")).await;
        let younger = push(&db.store, job("q")).await;
        let with_model = push(&db.store, NewJob { affinity: Some(label("a")), ..job("q") }).await;
        for id in [older, younger, with_model] {
            assert_eq!(claim_one(&db.store, worker).await.id, id);
        }
        assert!(claim(&db.store, worker, 1).await.is_empty());
        let queue = db.store.queue(T, &name("q")).await.expect("reads").expect("exists");
        assert_eq!(queue.counts.swaps_made, 1, "the worker swaps affinity once");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn a_fast_path_claim_takes_only_the_kinds_of_its_worker() {
    on_both(async |db| {
        let kinds = Some(vec![name("k")]);
        let worker = db.store.register_worker(T, NewWorker { kinds, ..new_worker(&["q"]) }).await.expect("registers");
        for _ in 0..2 {
            push(&db.store, NewJob { kind: name("k"), ..job("q") }).await;
            claim_one(&db.store, worker).await;
        }
        push(&db.store, NewJob { kind: name("other"), priority: 9, ..job("q") }).await;
        assert!(claim(&db.store, worker, 5).await.is_empty());
        let own = push(&db.store, NewJob { kind: name("k"), ..job("q") }).await;
        assert_eq!(claim_one(&db.store, worker).await.id, own);
    })
    .await;
}

/// Any worker's next claim uses what a claim saw, so it must not assume more than was scanned.
/// Requirement Q6.
#[tokio::test]
async fn fast_path_claims_of_one_kind_do_not_hide_jobs_of_another() {
    on_both(async |db| {
        let of = |kind: &str| NewJob { kind: name(kind), ..job("q") };
        let worker = async |kind: &str| {
            let worker = NewWorker { kinds: Some(vec![name(kind)]), lease_ms: 3_600_000, ..new_worker(&["q"]) };
            db.store.register_worker(T, worker).await.expect("registers")
        };
        let busy = worker("k").await;
        for _ in 0..2 {
            push(&db.store, of("k")).await;
            claim_one(&db.store, busy).await;
        }
        let old = push(&db.store, of("other")).await;
        db.pass_ms(5_000).await;
        for _ in 0..2 {
            push(&db.store, of("k")).await;
            claim_one(&db.store, busy).await;
        }
        push(&db.store, of("other")).await;
        assert_eq!(claim_one(&db.store, worker("other").await).await.id, old, "the oldest comes first");
    })
    .await;
}

/// Requirement Q12.
#[tokio::test]
async fn a_fast_path_claim_respects_later_changes_of_its_queue() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        push_all(&db.store, vec![job("q"); 9]).await;
        db.store.pause_queue(T, name("q"), "me".into(), None).await.expect("pauses");
        assert!(claim(&db.store, worker, 1).await.is_empty(), "the queue is paused");
        db.store.resume_queue(T, name("q"), "me".into()).await.expect("goes on");
        assert_eq!(claim_one(&db.store, worker).await.timeout_s, None);
        put(&db.store, QueueSettings { timeout_s: Some(7), ..Default::default() }).await.expect("puts");
        assert_eq!(claim_one(&db.store, worker).await.timeout_s, Some(7));
        assert_eq!(claim_one(&db.store, worker).await.timeout_s, Some(7));
        put(&db.store, QueueSettings { concurrency: Some(4), ..Default::default() }).await.expect("puts");
        assert_eq!(claim(&db.store, worker, 9).await.len(), 1, "three of four slots are taken");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_fast_path_claim_returns_nothing_to_a_draining_or_dead_worker() {
    on_both(async |db| {
        let (draining, dead) = (warmed_up(&db.store).await, warmed_up(&db.store).await);
        push(&db.store, job("q")).await;
        db.store.drain_worker(T, draining).await.expect("drains");
        let claimed = db.store.claim(T, draining, 1, None).await.expect("answers");
        assert!(matches!(claimed, Claimed::Jobs { jobs, draining: true, .. } if jobs.is_empty()));
        db.pass_ms(LEASE_MS + 1).await;
        let claimed = db.store.claim(T, dead, 1, None).await.expect("answers");
        assert!(matches!(claimed, Claimed::LeaseExpired), "{claimed:?}");
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn a_job_of_a_fast_path_claim_is_released_from_a_dead_worker() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        let id = push(&db.store, job("q")).await;
        claim_one(&db.store, worker).await;
        db.pass_ms(LEASE_MS + 1).await;
        assert_eq!(db.store.sweep().await.expect("sweeps").jobs, 1);
        assert_eq!(events(&db.store, id).await.last().map(String::as_str), Some("expired"));
    })
    .await;
}

/// Requirement X4.
#[tokio::test]
async fn fast_path_claims_renew_the_lease_of_their_worker() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        for number in 0..6 {
            db.pass_ms(LEASE_MS / 2).await;
            // Alternate between claims that find a job and claims that find none.
            if number % 2 == 0 {
                push(&db.store, job("q")).await;
            }
            assert_eq!(claim(&db.store, worker, 1).await.len(), usize::from(number % 2 == 0));
        }
    })
    .await;
}

/// Requirement Q10, T1.
#[tokio::test]
async fn a_fast_path_claim_notifies_webhooks_and_triggers() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        let webhook = Some(r#"{"url":"https://hook.example/"}"#.to_owned());
        let extras = Some(Box::new(Extras { webhook, ..Extras::default() }));
        push(&db.store, NewJob { extras, ..job("q") }).await;
        claim_one(&db.store, worker).await;
        assert_eq!(
            number(&db.store, "select count(*) from deliveries").await,
            1,
            "a delivery to its webhook is queued"
        );
        push(&db.store, job("q")).await;
        claim_one(&db.store, worker).await;
        // The node that claims learns of the trigger only from the database.
        let other = if db.store.is_postgres() { db.another_node().await } else { db.store.clone() };
        create(&other, new("works", Source::Job, r#"{"queue": "q", "states": ["working"]}"#)).await;
        for count in 1..=2 {
            push(&db.store, job("q")).await;
            claim_one(&db.store, worker).await;
            assert_eq!(
                number(&db.store, "select count(*) from outbox").await,
                count,
                "the trigger gets an event per claim"
            );
        }
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn a_fast_path_claim_by_another_tenant_finds_no_worker() {
    on_both(async |db| {
        let worker = warmed_up(&db.store).await;
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.expect("creates") else {
            panic!("the tenant exists already")
        };
        let id = push(&db.store, job("q")).await;
        let claimed = db.store.claim(other, worker, 1, None).await.expect("answers");
        assert!(matches!(claimed, Claimed::NotFound), "{claimed:?}");
        assert_eq!(claim_one(&db.store, worker).await.id, id);
    })
    .await;
}

use std::collections::BTreeSet;

use domain::queue::why::Reason;
use domain::{Access, JobId, JobState, QueueSettings, Rights, Role, TenantId};
use store::Store;
use store::access::tokens::create::{NewServes, NewToken, TokenCreated, TokenIssuer};
use store::fleet::backoffs::lockout::Until;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::End;
use store::queue::workers::register::NewWorker;
use store::runtimes::pools::codec::{MemberState, PoolState};
use store::signals::read::SignalRead;
use store::signals::refine::SignalChange;
use testkit::{job, label, name, on_both};

use crate::fleet::subjects::{lock_out, on};
use crate::runtimes::placement::declare;
use crate::runtimes::pool_places::{node_takes_pool, pool};
use crate::support::*;

async fn check(store: &Store, job: JobId, reason: Reason, detail: &str) {
    let why = store.why(T, job).await.expect("answers").expect("the job exists");
    assert_eq!(why.reason, reason, "{why:?}");
    assert!(why.detail.contains(detail), "{why:?}");
}

fn with(change: impl FnOnce(&mut Extras)) -> NewJob {
    let mut extras = Extras::default();
    change(&mut extras);
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

/// Requirement Q15.
#[tokio::test]
async fn why_explains_not_due_backoff_loading_running_and_ended() {
    on_both(async |db| {
        let run_at = db.clock.now().plus_s(100);
        let later = push(&db.store, NewJob { run_at: Some(run_at), ..job("q") }).await;
        check(&db.store, later, Reason::NotDue, "run_at is in the future").await;
        assert_eq!(db.store.why(T, later).await.expect("answers").expect("exists").until, Some(run_at));
        let id = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        check(&db.store, id, Reason::Running, "a worker is running it").await;
        let loading = SignalChange { epoch: claimed.epoch, state: Some(JobState::Loading), ..SignalChange::default() };
        db.store.signal(T, id, loading).await.expect("signals");
        check(&db.store, id, Reason::Loading, "loading").await;
        settle(&db.store, worker, id, claimed.epoch, End::Fail(boom())).await;
        check(&db.store, id, Reason::Backoff, "after `boom: it broke`").await;
        db.store.cancel(T, id, "me".into()).await.expect("cancels");
        check(&db.store, id, Reason::Ended, "canceled").await;
        let unknown = JobId::new(store::db::clock::new_uuid(db.clock.now()));
        assert_eq!(db.store.why(T, unknown).await.expect("answers"), None);
        assert_eq!(db.store.why(domain::TenantId(77), id).await.expect("answers"), None, "X6");
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn why_reports_a_missing_worker_until_one_registers() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { kind: name("rare"), affinity: Some(label("llama")), ..job("q") }).await;
        check(&db.store, id, Reason::NoWorker, "no live worker").await;
        let others = [
            store::queue::workers::register::NewWorker { kinds: Some(vec![name("k")]), ..new_worker(&["q"]) },
            store::queue::workers::register::NewWorker { affinities: Some(vec![label("phi")]), ..new_worker(&["q"]) },
            new_worker(&["elsewhere"]),
        ];
        for other in others {
            db.store.register_worker(T, other).await.expect("registers");
        }
        check(&db.store, id, Reason::NoWorker, "this queue and kind with the affinity llama").await;
        register(&db.store, &["q"]).await;
        check(&db.store, id, Reason::Behind, "next in line").await;
        db.pass_ms(31_000).await;
        check(&db.store, id, Reason::NoWorker, "no live worker").await;
    })
    .await;
}

/// Creates a token of the built-in tenant whose workers serve other tenants.
async fn create_serving_token(store: &Store, serves: NewServes, queues: Option<&str>) {
    let queues = queues.map(|queue| vec![name(queue)]);
    let token = NewToken {
        name: label("gpu"),
        tenant: Some(name("system")),
        access: Access { role: Role::Worker, granted: Rights::default(), queues },
        serves: Some(serves),
        expires_at: None,
    };
    let made = store.create_token(TokenIssuer::Machine, token).await.expect("makes");
    assert!(matches!(made, TokenCreated::Created(..)), "{made:?}");
}

/// Requirement Q15.
#[tokio::test]
async fn a_serving_worker_of_the_built_in_tenant_counts_as_a_worker() {
    on_both(async |db| {
        let store = &db.store;
        store.create_tenant(name("acme")).await.expect("creates a tenant");
        let id = push(store, job("q")).await;
        let rare = push(store, NewJob { kind: name("rare"), ..job("q") }).await;
        let shared = NewWorker { kinds: Some(vec![name("k")]), ..new_worker(&["q"]) };
        store.register_worker(TenantId::SYSTEM, shared).await.expect("registers");
        create_serving_token(store, NewServes::Tenants(vec![name("acme")]), None).await;
        create_serving_token(store, NewServes::Everyone, Some("elsewhere")).await;
        check(store, id, Reason::NoWorker, "no live worker").await;
        assert!(store.queues_served_for(T).await.expect("reads").is_empty());
        create_serving_token(store, NewServes::Tenants(vec![name("default")]), None).await;
        check(store, id, Reason::Behind, "next in line").await;
        check(store, rare, Reason::NoWorker, "no live worker").await;
        assert_eq!(store.queues_served_for(T).await.expect("reads"), BTreeSet::from([name("q")]));
        run_sql(store, "update workers set affinity = 'others-model'").await.expect("loads");
        let (around, _) = store.queue_snapshot(T, &name("q")).await.expect("reads");
        assert_eq!(around.workers.len(), 1);
        assert_eq!(around.loaded(&name("k"), &None), Vec::<&str>::new(), "another tenant's affinity is not revealed");
        db.pass_ms(31_000).await;
        check(store, id, Reason::NoWorker, "no live worker").await;
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn an_exhausted_rate_is_reported_with_its_expected_end() {
    on_both(async |db| {
        let store = &db.store;
        let settings = QueueSettings { rate_per_s: Some(0.01), ..QueueSettings::default() };
        store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        let worker = register_with_long_lease(store).await;
        let (first, second, third) =
            (push(store, job("q")).await, push(store, job("q")).await, push(store, job("q")).await);
        check(store, first, Reason::Behind, "next in line").await;
        assert_eq!(claim_one(store, worker).await.id, first);
        // One rate token arrives per 100 s, so the run time of the test is negligible.
        for (id, soonest_s) in [(second, 60), (third, 160)] {
            check(store, id, Reason::LimitReached, "0.01 jobs per second").await;
            let until =
                store.why(T, id).await.expect("answers").expect("exists").until.expect("the end is predictable");
            let wait_s = until.ms_since(db.clock.now()) / 1_000;
            assert!((soonest_s..=soonest_s + 40).contains(&wait_s), "the answer is {wait_s} s");
        }
        db.pass_ms(101_000).await;
        check(store, second, Reason::Behind, "next in line").await;
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn the_queue_position_counts_jobs_ahead_by_priority_and_age() {
    on_both(async |db| {
        register(&db.store, &["q"]).await;
        push_all(&db.store, vec![job("q"), job("q")]).await;
        let mine = push(&db.store, NewJob { kind: name("l"), ..job("q") }).await;
        push(&db.store, job("q")).await;
        push(&db.store, NewJob { priority: 3, ..job("q") }).await;
        push(&db.store, NewJob { priority: -3, ..job("q") }).await;
        push(&db.store, job("elsewhere")).await;
        check(&db.store, mine, Reason::Behind, "behind 3 other jobs").await;
        let why = db.store.why(T, mine).await.expect("answers").expect("exists");
        assert_eq!((why.position, why.eta_s), (Some(4), None), "no job ended yet, so there is no estimate");
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn the_eta_comes_from_recent_throughput() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for _ in 0..10 {
            push(&db.store, job("q")).await;
            let claimed = claim_one(&db.store, worker).await;
            db.pass_ms(50_000).await;
            finish(&db.store, worker, &claimed).await;
        }
        push(&db.store, job("q")).await;
        let mine = push(&db.store, job("q")).await;
        let eta_s = db.store.why(T, mine).await.expect("answers").expect("exists").eta_s.expect("an estimate exists");
        assert!((90..=120).contains(&eta_s), "two jobs at 50 s each; got {eta_s} s");
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn why_reports_a_paused_queue_a_limit_a_key_and_a_subject() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let keyed = || with(|extras| extras.concurrency_key = Some(label("c")));
        let on_subject = || with(|extras| extras.subject = Some(label("m7")));
        let ids: Vec<JobId> = push_all(&db.store, vec![keyed(), keyed(), on_subject(), on_subject()])
            .await
            .iter()
            .map(|job| job.id)
            .collect();
        assert_eq!(claim(&db.store, worker, 10).await.len(), 2);
        check(&db.store, ids[1], Reason::LimitReached, "key q c").await;
        check(&db.store, ids[3], Reason::SubjectBusy, "m7").await;
        let plain = push(&db.store, job("q")).await;
        let settings = QueueSettings { concurrency: Some(2), ..QueueSettings::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        check(&db.store, plain, Reason::LimitReached, "2 of 2").await;
        db.store.pause_queue(T, name("q"), "me".into(), Some("deploy".into())).await.expect("pauses");
        for id in [ids[1], ids[3], plain] {
            check(&db.store, id, Reason::QueuePaused, "deploy").await;
        }
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn a_blocked_reason_is_reported_before_any_claim_attempt() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let keyed = || with(|extras| extras.concurrency_key = Some(label("c")));
        push_all(&db.store, vec![keyed(), on("m-1", "wipe")]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 2);
        let behind_key = push(&db.store, keyed()).await;
        check(&db.store, behind_key, Reason::LimitReached, "key q c").await;
        let behind_subject = push(&db.store, on("m-1", "wipe")).await;
        check(&db.store, behind_subject, Reason::SubjectBusy, "m-1").await;
        lock_out(&db.store, "m-2", "*", Until::Forever).await;
        let locked_out = push(&db.store, on("m-2", "wipe")).await;
        check(&db.store, locked_out, Reason::Backoff, "bad disk").await;
        let SignalRead::Found(source) = db.store.signal_source(T, locked_out).await.expect("reads") else {
            panic!("the job has a signal")
        };
        assert_eq!(source.backoff.map(|backoff| backoff.cause).as_deref(), Some("bad disk"));
        let free = push(&db.store, on("m-3", "wipe")).await;
        check(&db.store, free, Reason::Behind, "behind 3 other jobs").await;
    })
    .await;
}

/// Requirement Q15.
#[tokio::test]
async fn a_model_load_failure_is_reported_until_the_next_attempt() {
    on_both(async |db| {
        let store = &db.store;
        for model in ["phi", "llama"] {
            declare(store, model, &[]).await;
        }
        pool(store, &["phi", "llama"], &[]).await;
        assert!(node_takes_pool(store, "a", &[]).await);
        let until = db.clock.now().plus_s(60);
        let phi = MemberState {
            failures: 1,
            backoff_until: Some(until.micros()),
            cause: Some("docker_unavailable: the engine is away".into()),
            ..MemberState::default()
        };
        let state = PoolState { members: [("phi".to_owned(), phi)].into(), ..PoolState::default() };
        assert!(store.save_pool_state(T, &name("gpu"), "a", &state).await.expect("saves"));
        // The slot's worker exists and serves the models that can be loaded.
        let slot = NewWorker { affinities: Some(vec![label("llama")]), lease_ms: 3_600_000, ..new_worker(&["gpu"]) };
        store.register_worker(T, slot).await.expect("registers");
        let needs = |model| NewJob { affinity: Some(label(model)), ..job("gpu") };
        let (other, stuck) = (push(store, needs("llama")).await, push(store, needs("phi")).await);
        let detail = "the model phi could not be loaded: docker_unavailable: the engine is away (by pool gpu)";
        check(store, stuck, Reason::Backoff, detail).await;
        assert_eq!(store.why(T, stuck).await.expect("answers").expect("exists").until, Some(until));
        check(store, other, Reason::Behind, "next in line").await;
        db.pass_ms(61_000).await;
        check(store, stuck, Reason::NoWorker, "no live worker").await;
    })
    .await;
}

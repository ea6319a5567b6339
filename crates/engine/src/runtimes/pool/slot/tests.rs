use domain::runtimes::pool::{Handler, Stay};
use domain::runtimes::{ImageRef, Placement, RuntimeSpec};
use domain::{Name, RuntimeName, TenantId};
use store::db::tx::{Operation, Tx};
use testkit::{Database, on_both};

use super::*;

fn member(of: &str) -> Member {
    Member { affinity: Label::stored(of), runtime: RuntimeName::stored(of), stay: Stay::AsNeeded }
}

/// The only slot of a pool whose runtimes do not exist.
fn slot(store: &Store) -> SlotRunner {
    let members = vec![member("a"), member("b")];
    let http = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(crate::outbound::public_roots());
    let shared = PoolShared {
        tenant: TenantId::DEFAULT,
        name: Name::stored("gpu"),
        state: Mutex::default(),
        in_use: Mutex::default(),
        used_at: Mutex::default(),
        has_unsaved_changes: Mutex::default(),
    };
    SlotRunner {
        store: store.clone(),
        node: "here".into(),
        http: http.build().expect("a client"),
        relay: Relay::default(),
        spec: PoolSpec {
            slots: 1,
            memory_mb: None,
            members: members.clone(),
            queue: Name::stored("gpu"),
            starvation_s: None,
            idle_stop_s: None,
            handler: Handler { path: "/".into(), timeout_s: 60, at_once: 1 },
            placement: Placement { labels: Default::default() },
        },
        slot: Slot { members, first: None, pinned: false },
        number: 0,
        shared: Arc::new(shared),
        stop: CancellationToken::new(),
    }
}

/// Requirement R7.
#[tokio::test]
async fn a_failed_load_occupies_its_slot_until_the_model_is_known_to_be_down() {
    let db = Database::sqlite().await;
    let run = slot(&db.store);
    let mut held = HeldModel::default();
    run.load(&mut held, &member("a")).await.expect_err("it does not exist");
    assert_eq!(held.member, Some(member("a")), "it may be up nevertheless");
    run.load(&mut held, &member("b")).await.expect_err("the other cannot be stopped");
    assert_eq!(held.member, Some(member("a")), "and occupies the slot");
    run.check_model(&mut held).await.expect("checks");
    assert_eq!(held.member, None, "it is not up");
}

/// Requirement R7.
#[tokio::test]
async fn a_model_of_another_slot_is_not_stopped() {
    let db = Database::sqlite().await;
    let run = slot(&db.store);
    let mut held = HeldModel { member: Some(member("a")), used_at: None };
    run.shared.reserve(&member("a").affinity, 1, db.clock.now());
    run.unload(&member("a")).await.expect("no operation is requested");
    run.check_model(&mut held).await.expect("checks");
    assert_eq!(held.member, None);
    assert_eq!(run.shared.slot_of(&member("a").affinity), Some(1));
}

/// Marks all runtimes as running.
struct AllUp;

impl Operation for AllUp {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch("update runtimes set status = 'running', container_id = 'c'").await
    }
}

/// Requirement R7.
#[tokio::test]
async fn a_model_in_use_by_another_slot_is_not_idle() {
    let db = Database::sqlite().await;
    let mut run = slot(&db.store);
    run.spec.idle_stop_s = Some(30);
    let a = member("a");
    let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
    db.store.put_runtime(TenantId::DEFAULT, a.runtime.clone(), spec, "ann".into()).await.expect("declares");
    db.store.write(AllUp).await.expect("runs");
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
    assert!(long_ago.is_some(), "the machine has run longer than that");
    let mut held = HeldModel { member: Some(a.clone()), used_at: long_ago };
    // The time shows whether a stop was attempted. There is no node, so the model stays up.
    let in_use = run.shared.in_use(&a.affinity);
    let posting = in_use.read().await;
    run.check_model(&mut held).await.expect("checks");
    assert_eq!((held.member.as_ref(), held.used_at), (Some(&a), long_ago), "another slot posts to it");
    drop(posting);
    run.shared.used(&a.affinity);
    run.check_model(&mut held).await.expect("checks");
    assert_eq!((held.member.as_ref(), held.used_at), (Some(&a), long_ago), "another slot has just used it");
    run.shared.used_at.lock().expect("lock poisoned").clear();
    run.check_model(&mut held).await.expect("checks");
    assert!(held.used_at > long_ago, "it is idle");
}

/// Requirement R7.
#[tokio::test]
async fn a_job_canceled_while_its_model_loads_is_not_posted() {
    let db = Database::sqlite().await;
    let store = &db.store;
    let run = slot(store);
    let made = store.enqueue(TenantId::DEFAULT, vec![testkit::job("gpu")], None).await.expect("enqueues");
    let store::queue::enqueue::EnqueueReply::Accepted(made) = made else { panic!("no key was given") };
    let worker = run.register().await.expect("registers");
    let Claimed::Jobs { jobs, .. } = store.claim(TenantId::DEFAULT, worker.id, 1, None).await.expect("claims") else {
        panic!("the worker is alive");
    };
    worker.track(&jobs);
    store.cancel(TenantId::DEFAULT, made[0].id, "ann".into()).await.expect("cancels");
    worker.cancel(&[made[0].id]);
    // Nothing listens there, so a posted job would fail.
    run.run_job(&worker, "http://127.0.0.1:9", &jobs[0]).await.expect("settles");
    let ended = store.job(TenantId::DEFAULT, made[0].id).await.expect("reads").expect("exists");
    assert_eq!(ended.state, JobState::Canceled);
}

/// Requirement R7.
#[tokio::test]
async fn declaring_an_unchanged_pool_does_not_update_it() {
    on_both(async |db| {
        let (store, tenant, name) = (&db.store, TenantId::DEFAULT, Name::stored("gpu"));
        for of in ["a", "b"] {
            let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
            store.put_runtime(tenant, RuntimeName::stored(of), spec, "ann".into()).await.expect("declares");
        }
        let declare = async |spec: PoolSpec| {
            db.clock.advance_ms(1_000);
            store.put_pool(tenant, name.clone(), spec, "ann".into()).await.expect("declares");
            store.pool(tenant, &name).await.expect("reads").expect("exists").updated_at
        };
        let spec = slot(store).spec;
        let first = declare(spec.clone()).await;
        assert_eq!(declare(spec.clone()).await, first);
        assert!(declare(PoolSpec { idle_stop_s: Some(60), ..spec }).await > first);
    })
    .await;
}

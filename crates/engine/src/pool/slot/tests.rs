use domain::pool::{Handler, Stay};
use domain::runtime::{ImageRef, Placement, RuntimeSpec};
use domain::{Name, RuntimeName, TenantId};
use store::tx::{Operation, Tx};
use testkit::{Database, on_both};

use super::*;

fn member(of: &str) -> Member {
    Member { affinity: Label::stored(of), runtime: RuntimeName::stored(of), stay: Stay::AsNeeded }
}

/// The only slot of a pool whose runtimes nobody declared.
fn slot(store: &Store) -> Run {
    let members = vec![member("a"), member("b")];
    let http = reqwest::Client::builder().no_proxy().tls_backend_preconfigured(crate::outbound::public_roots());
    let shared = Shared {
        tenant: TenantId::DEFAULT,
        name: Name::stored("gpu"),
        state: Mutex::default(),
        in_use: Mutex::default(),
        used_at: Mutex::default(),
        changed: Mutex::default(),
    };
    Run {
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

#[tokio::test]
async fn r7_what_a_failed_load_may_have_left_up_keeps_its_place() {
    let db = Database::sqlite().await;
    let run = slot(&db.store);
    let mut holding = Holding::default();
    run.load(&mut holding, &member("a")).await.expect_err("it is not declared");
    assert_eq!(holding.member, Some(member("a")), "it may be up all the same");
    run.load(&mut holding, &member("b")).await.expect_err("the other cannot be stopped");
    assert_eq!(holding.member, Some(member("a")), "and takes up the slot");
    run.look_after(&mut holding).await.expect("looks");
    assert_eq!(holding.member, None, "it is not up");
}

#[tokio::test]
async fn r7_what_another_slot_brought_up_is_left_to_it() {
    let db = Database::sqlite().await;
    let run = slot(&db.store);
    let mut holding = Holding { member: Some(member("a")), used_at: None };
    run.shared.reserve(&member("a").affinity, 1, db.clock.now());
    run.unload(&member("a")).await.expect("nothing is asked for");
    run.look_after(&mut holding).await.expect("looks");
    assert_eq!(holding.member, None);
    assert_eq!(run.shared.slot_of(&member("a").affinity), Some(1));
}

/// Everything that is declared runs.
struct AllUp;

impl Operation for AllUp {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.batch("update runtimes set status = 'running', container_id = 'c'").await
    }
}

#[tokio::test]
async fn r7_a_model_that_other_slots_use_is_not_idle() {
    let db = Database::sqlite().await;
    let mut run = slot(&db.store);
    run.spec.idle_stop_s = Some(30);
    let a = member("a");
    let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
    db.store.put_runtime(TenantId::DEFAULT, a.runtime.clone(), spec, "ann".into()).await.expect("declares");
    db.store.write(AllUp).await.expect("runs");
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
    assert!(long_ago.is_some(), "the machine has run longer than that");
    let mut holding = Holding { member: Some(a.clone()), used_at: long_ago };
    // Whether a stop was tried is told by the time: there is no node to do it, so the model stays up.
    let in_use = run.shared.in_use(&a.affinity);
    let posting = in_use.read().await;
    run.look_after(&mut holding).await.expect("looks");
    assert_eq!((holding.member.as_ref(), holding.used_at), (Some(&a), long_ago), "another slot posts to it");
    drop(posting);
    run.shared.used(&a.affinity);
    run.look_after(&mut holding).await.expect("looks");
    assert_eq!((holding.member.as_ref(), holding.used_at), (Some(&a), long_ago), "another slot has just used it");
    run.shared.used_at.lock().expect("nobody panics").clear();
    run.look_after(&mut holding).await.expect("looks");
    assert!(holding.used_at > long_ago, "it is idle");
}

#[tokio::test]
async fn r7_a_job_that_is_called_off_while_its_model_loads_is_not_posted() {
    let db = Database::sqlite().await;
    let store = &db.store;
    let run = slot(store);
    let made = store.enqueue(TenantId::DEFAULT, vec![testkit::job("gpu")], None).await.expect("makes a job");
    let store::jobs::enqueue::EnqueueReply::Accepted(made) = made else { panic!("no key was given") };
    let worker = run.register().await.expect("registers");
    let Claimed::Jobs { jobs, .. } = store.claim(TenantId::DEFAULT, worker.id, 1, None).await.expect("claims") else {
        panic!("it lives");
    };
    worker.watch(&jobs);
    store.cancel(TenantId::DEFAULT, made[0].id, "ann".into()).await.expect("cancels");
    worker.call_off(&[made[0].id]);
    // Nobody answers there: what is posted would fail.
    run.one(&worker, "http://127.0.0.1:9", &jobs[0]).await.expect("settles");
    let ended = store.job(TenantId::DEFAULT, made[0].id).await.expect("reads").expect("is there");
    assert_eq!(ended.state, JobState::Canceled);
}

#[tokio::test]
async fn r7_a_pool_that_is_declared_as_it_was_goes_on_as_it_is() {
    on_both(async |db| {
        let (store, tenant, name) = (&db.store, TenantId::DEFAULT, Name::stored("gpu"));
        for of in ["a", "b"] {
            let spec = RuntimeSpec::of(ImageRef::stored("model:1.2.3"));
            store.put_runtime(tenant, RuntimeName::stored(of), spec, "ann".into()).await.expect("declares");
        }
        let declare = async |spec: PoolSpec| {
            db.clock.advance_ms(1_000);
            store.put_pool(tenant, name.clone(), spec, "ann".into()).await.expect("declares");
            store.pool(tenant, &name).await.expect("reads").expect("is there").updated_at
        };
        let spec = slot(store).spec;
        let first = declare(spec.clone()).await;
        assert_eq!(declare(spec.clone()).await, first);
        assert!(declare(PoolSpec { idle_stop_s: Some(60), ..spec }).await > first);
    })
    .await;
}

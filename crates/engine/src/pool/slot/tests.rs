use domain::pool::{Handler, Stay};
use domain::runtime::Placement;
use domain::{Name, RuntimeName, TenantId};
use testkit::Database;

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

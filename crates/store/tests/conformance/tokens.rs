//! X6, X7: tokens and tenants, on every node at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::limits::ENDED_TOKEN_RETENTION_S;
use domain::{Access, Label, Name, Right, Rights, Role, Standing, TenantId, Time, TokenId, TokenText};
use store::Store;
use store::tenants::create::TenantCreated;
use store::tenants::grant_db_role::RoleGranted;
use store::tokens::Token;
use store::tokens::authenticate::Caller;
use store::tokens::create::{Maker, NewServes, NewToken, TokenCreated};
use testkit::{name, on_both, on_postgres};

use crate::support::*;

fn a_token(role: Role) -> NewToken {
    NewToken {
        name: Label::stored("t"),
        tenant: None,
        access: Access { role, granted: Rights::default(), queues: None },
        serves: None,
        expires_at: None,
    }
}

async fn make(store: &Store, token: NewToken) -> (Token, TokenText) {
    match store.create_token(Maker::Machine, token).await.expect("makes") {
        TokenCreated::Created(token, text) => (*token, text),
        refused => panic!("{refused:?}"),
    }
}

async fn by(store: &Store, parent: TokenId, token: NewToken) -> TokenCreated {
    store.create_token(Maker::Token(parent), token).await.expect("answers")
}

async fn is_in(store: &Store, text: &TokenText) -> bool {
    match store.authenticate(Some(text.as_str())).await.expect("answers") {
        Caller::Token(_) => true,
        Caller::Refused => false,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn x7_after_the_first_token_nobody_is_let_in_without_one_on_any_node() {
    on_both(async |db| {
        let other = db.another_node().await;
        for store in [&db.store, &other] {
            assert!(matches!(store.authenticate(None).await.expect("works"), Caller::Anyone));
            assert!(matches!(store.authenticate(Some("whatever")).await.expect("works"), Caller::Anyone));
        }
        let (token, text) = make(&db.store, a_token(Role::Admin)).await;
        for store in [&db.store, &other] {
            assert!(matches!(store.authenticate(None).await.expect("works"), Caller::Nobody));
            assert!(matches!(store.authenticate(Some("whatever")).await.expect("works"), Caller::Refused));
            let Caller::Token(known) = store.authenticate(Some(text.as_str())).await.expect("works") else {
                panic!("in")
            };
            assert_eq!((known.token.id, known.token.tenant, &*known.token.name), (token.id, TenantId::DEFAULT, "t"));
        }
        db.store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works");
        assert!(matches!(other.authenticate(None).await.expect("works"), Caller::Nobody), "the door stays shut");
    })
    .await;
}

#[tokio::test]
async fn x7_what_is_remembered_of_callers_is_what_the_database_last_said() {
    on_both(async |db| {
        let node = db.another_node().await;
        assert!(node.remembered_caller(None).is_none(), "nothing was asked yet");
        node.authenticate(None).await.expect("works");
        assert!(matches!(node.remembered_caller(None), Some(Caller::Anyone)));
        let (token, text) = make(&db.store, a_token(Role::Admin)).await;
        assert!(is_in(&node, &text).await);
        let Some(Caller::Token(known)) = node.remembered_caller(Some(text.as_str())) else { panic!("it was let in") };
        assert_eq!(known.token.id, token.id);
        assert!(node.remembered_caller(None).is_none() && node.remembered_caller(Some("whatever")).is_none());
        let (_, unseen) = make(&db.store, a_token(Role::Admin)).await;
        assert!(node.remembered_caller(Some(unseen.as_str())).is_none(), "it never came here");
        db.store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works");
        assert!(!is_in(&node, &text).await);
        assert!(node.remembered_caller(Some(text.as_str())).is_none(), "the revocation was heard of");
    })
    .await;
}

#[tokio::test]
async fn x7_only_the_hash_of_a_token_is_stored() {
    on_both(async |db| {
        let (_, text) = make(&db.store, a_token(Role::Viewer)).await;
        let random = &text.as_str()[domain::token::PREFIX.len()..];
        let all = "select hex(hash) || name || role || rights || created_by from tokens";
        let postgres = "select encode(hash, 'escape') || name || role || rights::text || created_by from tokens";
        for row in texts(&db.store, all, postgres).await {
            assert!(!row.contains(random) && !row.contains(&random[..12]));
        }
    })
    .await;
}

#[tokio::test]
async fn x7_an_expired_token_is_refused_when_its_time_has_come() {
    on_both(async |db| {
        let now = db.store.clock().now();
        let token = NewToken { expires_at: Some(now.plus_s(3_600)), ..a_token(Role::Viewer) };
        let (_, text) = make(&db.store, token).await;
        assert!(is_in(&db.store, &text).await);
        db.pass_ms(3_540_000).await;
        assert!(is_in(&db.store, &text).await);
        db.pass_ms(61_000).await;
        assert!(!is_in(&db.store, &text).await);
        assert!(!is_in(&db.another_node().await, &text).await);
    })
    .await;
}

fn called(name: &str) -> NewToken {
    NewToken { name: Label::stored(name), ..a_token(Role::Admin) }
}

async fn revoke(store: &Store, token: &Token) {
    assert!(store.revoke_token(Some(T), token.id, "me".into()).await.expect("works"));
}

async fn standing(store: &Store, name: &str) -> Standing {
    let named = (T, name.to_owned());
    store.standings(BTreeSet::from([named.clone()])).await.expect("reads").remove(&named).expect("asked for")
}

#[tokio::test]
async fn t2_a_name_stands_by_its_living_tokens() {
    on_both(async |db| {
        let store = &db.store;
        let (gone, _) = make(store, called("ann")).await;
        revoke(store, &gone).await;
        assert_eq!(standing(store, "ann").await, Standing::default());
        make(store, called("ann")).await;
        assert!(standing(store, "ann").await.has(Right::ManageTriggers));
        assert_eq!(standing(store, "local").await, Standing::full(), "nobody has taken over the name");
        let (local, _) = make(store, called("local")).await;
        revoke(store, &local).await;
        assert_eq!(standing(store, "local").await, Standing::default());
    })
    .await;
}

#[tokio::test]
async fn x13_tokens_that_ended_long_ago_are_forgotten_and_that_is_told() {
    on_both(async |db| {
        let store = &db.store;
        let (revoked, _) = make(store, called("revoked")).await;
        let (local, _) = make(store, called("local")).await;
        let soon = Some(store.clock().now().plus_s(60));
        make(store, NewToken { expires_at: soon, ..called("expired") }).await;
        make(store, called("living")).await;
        revoke(store, &revoked).await;
        revoke(store, &local).await;
        db.pass_ms((ENDED_TOKEN_RETENTION_S - 3_600) * 1_000).await;
        assert_eq!(store.prune_tokens().await.expect("prunes"), 0);
        db.pass_ms(2 * 3_600_000).await;
        assert_eq!(store.prune_tokens().await.expect("prunes"), 2);
        let left = store.list_tokens(T, None, 10).await.expect("lists");
        assert_eq!(left.iter().map(|token| &*token.name).collect::<Vec<_>>(), ["living", "local"]);
        assert_eq!(standing(store, "local").await, Standing::default(), "the name stays taken");
        let told = store.recent_prunings(1).await.expect("reads").remove(0);
        assert_eq!((told.kind.as_str(), told.rows), ("tokens", 2));
    })
    .await;
}

const RACES_AT_ONCE: usize = 50;

/// Once a revocation is answered, no use that begins afterwards gets in, on the node that revoked and on another that had
/// the token in memory all the while.
#[tokio::test]
async fn x7_a_thousand_races_of_revocation_against_use() {
    on_both(async |db| {
        let node = db.another_node().await;
        let mut tokens = Vec::new();
        for _ in 0..500 {
            tokens.push(make(&db.store, a_token(Role::Producer)).await);
        }
        let mut races = tokio::task::JoinSet::new();
        for (token, text) in tokens {
            // Revocations wait for one row and hold a connection meanwhile: the last of five hundred might wait too
            // long for its own.
            if races.len() == RACES_AT_ONCE {
                races.join_next().await.expect("one is under way").expect("no race is lost");
            }
            let (store, node) = (db.store.clone(), node.clone());
            races.spawn(async move {
                assert!(is_in(&store, &text).await && is_in(&node, &text).await);
                let revoked = AtomicBool::new(false);
                let using = async |store: &Store| {
                    loop {
                        let was_revoked = revoked.load(Ordering::SeqCst);
                        let got_in = is_in(store, &text).await;
                        assert!(!(was_revoked && got_in), "a revoked token was taken");
                        if was_revoked {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                };
                let revoking = async {
                    assert!(store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works"));
                    revoked.store(true, Ordering::SeqCst);
                };
                tokio::join!(revoking, using(&store), using(&node));
            });
        }
        races.join_all().await;
    })
    .await;
}

#[tokio::test]
async fn x7_no_child_can_do_more_than_its_parent() {
    on_both(async |db| {
        let store = &db.store;
        let now = store.clock().now();
        let refused = |created: &TokenCreated| matches!(created, TokenCreated::MoreThanItsParent(_));
        let (operator, _) = make(store, a_token(Role::Operator)).await;
        assert!(refused(&by(store, operator.id, a_token(Role::Viewer)).await), "only admins make tokens");
        let expires = |role, s| NewToken { expires_at: Some(now.plus_s(s)), ..a_token(role) };
        let (parent, _) = make(store, expires(Role::Admin, 100)).await;
        assert!(refused(&by(store, parent.id, a_token(Role::Viewer)).await), "it would outlive its parent");
        assert!(refused(&by(store, parent.id, expires(Role::Viewer, 101)).await));
        let created = by(store, parent.id, expires(Role::Viewer, 100)).await;
        let TokenCreated::Created(child, _) = created else { panic!("{created:?}") };
        assert_eq!((child.parent, &*child.created_by), (Some(parent.id), "t"));
        let narrow = Access { queues: Some(vec![name("a")]), ..Access::full() };
        let (narrow, _) = make(store, NewToken { access: narrow, ..a_token(Role::Admin) }).await;
        assert!(refused(&by(store, narrow.id, a_token(Role::Viewer)).await), "it would reach more queues");
        store.revoke_token(None, parent.id, "me".into()).await.expect("works");
        let late = by(store, parent.id, expires(Role::Viewer, 50)).await;
        assert!(matches!(late, TokenCreated::ParentGone), "{late:?}");
    })
    .await;
}

#[tokio::test]
async fn x6_tokens_are_made_for_ones_own_tenant_and_for_others_by_the_built_in_one_alone() {
    on_both(async |db| {
        let store = &db.store;
        let TenantCreated::Created(acme) = store.create_tenant(name("acme")).await.expect("works") else {
            panic!("made")
        };
        assert_eq!(store.create_tenant(name("acme")).await.expect("works"), TenantCreated::Exists(acme));
        let of = |tenant: &str, role| NewToken { tenant: Some(Name::stored(tenant)), ..a_token(role) };
        let (own, _) = make(store, of("acme", Role::Admin)).await;
        assert_eq!((own.tenant, own.tenant_name.as_str()), (acme, "acme"));
        for other in ["default", "system", "nobody"] {
            let refused = by(store, own.id, of(other, Role::Viewer)).await;
            assert!(matches!(&refused, TokenCreated::NoSuchTenant(name) if name.as_str() == other), "{refused:?}");
        }
        let child = by(store, own.id, a_token(Role::Viewer)).await;
        assert!(matches!(&child, TokenCreated::Created(child, _) if child.tenant == acme), "{child:?}");
        let (system, _) = make(store, of("system", Role::Admin)).await;
        let child = by(store, system.id, of("acme", Role::Viewer)).await;
        assert!(matches!(&child, TokenCreated::Created(child, _) if child.tenant == acme), "{child:?}");

        let serving = |tenant: &str, role, serves| NewToken { serves: Some(serves), ..of(tenant, role) };
        for (tenant, role) in [("acme", Role::Worker), ("system", Role::Admin)] {
            let created =
                store.create_token(Maker::Machine, serving(tenant, role, NewServes::Everyone)).await.expect("works");
            assert!(matches!(created, TokenCreated::Misplaced(_)), "{created:?}");
        }
        make(store, serving("system", Role::Worker, NewServes::Tenants(vec![name("acme")]))).await;

        assert_eq!(store.list_tokens(acme, None, 10).await.expect("works").len(), 3);
        assert!(
            !store.revoke_token(Some(TenantId::DEFAULT), own.id, "x".into()).await.expect("works"),
            "another's is not there"
        );
        assert_eq!(store.list_tokens(acme, None, 10).await.expect("works").last().expect("works").revoked_at, None);
        assert_eq!(store.list_tenants(None, 10).await.expect("works").len(), 3);
    })
    .await;
}

#[tokio::test]
async fn a_token_says_when_it_was_last_used() {
    on_both(async |db| {
        let (_, text) = make(&db.store, a_token(Role::Viewer)).await;
        let used = until_some("the use is written down", async || {
            assert!(is_in(&db.store, &text).await);
            db.store.list_tokens(TenantId::DEFAULT, None, 1).await.expect("works")[0].used_at
        })
        .await;
        assert!(used > Time::from_micros(0));
    })
    .await;
}

#[tokio::test]
async fn granted_rights_and_queues_come_back() {
    on_both(async |db| {
        let access = Access {
            role: Role::Worker,
            granted: Rights::of(&[Right::ReadLogs, Right::ManageTriggers]),
            queues: Some(vec![name("a"), name("b")]),
        };
        let (_, text) = make(&db.store, NewToken { access: access.clone(), ..a_token(Role::Worker) }).await;
        let Caller::Token(known) = db.store.authenticate(Some(text.as_str())).await.expect("works") else {
            panic!("in")
        };
        assert_eq!(known.token.access, access);
    })
    .await;
}

/// Q4 with X6: SQL callers get their tenant from their database role, never from an argument.
#[tokio::test]
async fn x6_a_database_role_speaks_for_its_own_tenant_and_reaches_nothing_else() {
    on_postgres(async |db| {
        let store = &db.store;
        let admin = psql(&db.admin).await;
        let database = texts(store, "", "select current_database()::text").await.remove(0);
        let role = format!("tenant_{database}");
        admin.client.batch_execute(&format!("create role {role} login")).await.expect("the role is made");
        let store::DatabaseUrl::Postgres(url) = &db.admin else { panic!("PostgreSQL") };
        let app = psql_at(&url.replace("postgres@", &format!("{role}@"))).await;
        let call = "select windlass.enqueue('q', 'k')";
        assert!(app.client.batch_execute(call).await.is_err(), "a stranger reaches nothing");

        let TenantCreated::Created(acme) = store.create_tenant(name("acme")).await.expect("works") else {
            panic!("made")
        };
        assert_eq!(store.grant_db_role(name("nobody"), role.clone()).await.expect("works"), RoleGranted::NoSuchTenant);
        assert_eq!(store.grant_db_role(name("acme"), "no such".into()).await.expect("works"), RoleGranted::NoSuchRole);
        assert_eq!(store.grant_db_role(name("acme"), role.clone()).await.expect("works"), RoleGranted::Granted);
        app.client.batch_execute(call).await.expect("works");
        let match_failure = "select * from windlass.match_failure_signature(error_code => 'x')";
        app.client.batch_execute(match_failure).await.expect("the other functions too");
        let tenants = texts(store, "", "select distinct tenant::text from jobs").await;
        assert_eq!(tenants, [acme.0.to_string()]);
        for statement in
            ["select * from windlass.jobs", "select windlass.caller_tenant()", "select * from windlass.tokens"]
        {
            assert!(app.client.batch_execute(statement).await.is_err(), "{statement}");
        }
        let open = "select proname::text from pg_proc p
             cross join lateral aclexplode(coalesce(proacl, acldefault('f', proowner))) a
             where pronamespace = 'windlass'::regnamespace and a.grantee = 0";
        assert_eq!(texts(store, "", open).await, Vec::<String>::new(), "functions that everyone may call");
        admin.client.batch_execute(call).await.expect("works");
        assert_eq!(
            number(store, "select count(*) from jobs where tenant = 2").await,
            1,
            "the owner is the default tenant"
        );
        admin.client.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.expect("works");
    })
    .await;
}

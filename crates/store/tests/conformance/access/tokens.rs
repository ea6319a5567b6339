//! Tokens and tenants, on every node at once.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use domain::limits::ENDED_TOKEN_RETENTION_S;
use domain::{Access, Label, Name, PrincipalRights, Right, Rights, Role, TenantId, Time, TokenId, TokenText};
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::access::tenants::grant_db_role::RoleGranted;
use store::access::tokens::Token;
use store::access::tokens::authenticate::Authentication;
use store::access::tokens::create::{NewServes, NewToken, TokenCreated, TokenIssuer};
use testkit::eventually::eventually;
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

async fn create(store: &Store, token: NewToken) -> (Token, TokenText) {
    match store.create_token(TokenIssuer::Machine, token).await.expect("makes") {
        TokenCreated::Created(token, text) => (*token, text),
        refused => panic!("{refused:?}"),
    }
}

async fn create_by(store: &Store, parent: TokenId, token: NewToken) -> TokenCreated {
    store.create_token(TokenIssuer::Token(parent), token).await.expect("answers")
}

async fn is_authenticated(store: &Store, text: &TokenText) -> bool {
    match store.authenticate(Some(text.as_str())).await.expect("answers") {
        Authentication::Token(_) => true,
        Authentication::Refused => false,
        other => panic!("{other:?}"),
    }
}

/// Requirement X7.
#[tokio::test]
async fn after_the_first_token_every_node_requires_one() {
    on_both(async |db| {
        let other = db.another_node().await;
        for store in [&db.store, &other] {
            assert!(matches!(store.authenticate(None).await.expect("works"), Authentication::Open));
            assert!(matches!(store.authenticate(Some("whatever")).await.expect("works"), Authentication::Open));
        }
        let (token, text) = create(&db.store, a_token(Role::Admin)).await;
        for store in [&db.store, &other] {
            assert!(matches!(store.authenticate(None).await.expect("works"), Authentication::Missing));
            assert!(matches!(store.authenticate(Some("whatever")).await.expect("works"), Authentication::Refused));
            let Authentication::Token(authenticated) = store.authenticate(Some(text.as_str())).await.expect("works")
            else {
                panic!("not authenticated")
            };
            assert_eq!(
                (authenticated.token.id, authenticated.token.tenant, &*authenticated.token.name),
                (token.id, TenantId::DEFAULT, "t")
            );
        }
        db.store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works");
        assert!(
            matches!(other.authenticate(None).await.expect("works"), Authentication::Missing),
            "revoking the last token does not reopen anonymous access"
        );
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn cached_authentications_match_the_database() {
    on_both(async |db| {
        let node = db.another_node().await;
        assert!(node.cached_authentication(None).is_none(), "nothing is cached yet");
        node.authenticate(None).await.expect("works");
        assert!(matches!(node.cached_authentication(None), Some(Authentication::Open)));
        let (token, text) = create(&db.store, a_token(Role::Admin)).await;
        assert!(is_authenticated(&node, &text).await);
        let Some(Authentication::Token(authenticated)) = node.cached_authentication(Some(text.as_str())) else {
            panic!("the token is not cached")
        };
        assert_eq!(authenticated.token.id, token.id);
        assert!(node.cached_authentication(None).is_none() && node.cached_authentication(Some("whatever")).is_none());
        let (_, unseen) = create(&db.store, a_token(Role::Admin)).await;
        assert!(node.cached_authentication(Some(unseen.as_str())).is_none(), "this node never saw the token");
        db.store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works");
        assert!(!is_authenticated(&node, &text).await);
        assert!(node.cached_authentication(Some(text.as_str())).is_none(), "the revocation evicts the token");
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn only_the_hash_of_a_token_is_stored() {
    on_both(async |db| {
        let (_, text) = create(&db.store, a_token(Role::Viewer)).await;
        let random = &text.as_str()[domain::access::token::PREFIX.len()..];
        let all = "select hex(hash) || name || role || rights || created_by from tokens";
        let postgres = "select encode(hash, 'escape') || name || role || rights::text || created_by from tokens";
        for row in texts(&db.store, all, postgres).await {
            assert!(!row.contains(random) && !row.contains(&random[..12]));
        }
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_token_is_refused_after_its_expiry() {
    on_both(async |db| {
        let now = db.store.clock().now();
        let token = NewToken { expires_at: Some(now.plus_s(3_600)), ..a_token(Role::Viewer) };
        let (_, text) = create(&db.store, token).await;
        assert!(is_authenticated(&db.store, &text).await);
        db.pass_ms(3_540_000).await;
        assert!(is_authenticated(&db.store, &text).await);
        db.pass_ms(61_000).await;
        assert!(!is_authenticated(&db.store, &text).await);
        assert!(!is_authenticated(&db.another_node().await, &text).await);
    })
    .await;
}

fn admin_named(name: &str) -> NewToken {
    NewToken { name: Label::stored(name), ..a_token(Role::Admin) }
}

async fn revoke(store: &Store, token: &Token) {
    assert!(store.revoke_token(Some(T), token.id, "me".into()).await.expect("works"));
}

async fn rights_of(store: &Store, name: &str) -> PrincipalRights {
    let named = (T, name.to_owned());
    store
        .principal_rights(BTreeSet::from([named.clone()]))
        .await
        .expect("reads")
        .remove(&named)
        .expect("returned for every requested name")
}

/// Requirement T2.
#[tokio::test]
async fn the_rights_of_a_principal_come_from_its_active_tokens() {
    on_both(async |db| {
        let store = &db.store;
        let (revoked, _) = create(store, admin_named("ann")).await;
        revoke(store, &revoked).await;
        assert_eq!(rights_of(store, "ann").await, PrincipalRights::default());
        create(store, admin_named("ann")).await;
        assert!(rights_of(store, "ann").await.has(Right::ManageTriggers));
        assert_eq!(rights_of(store, "local").await, PrincipalRights::full(), "no token has taken over the name");
        let (local, _) = create(store, admin_named("local")).await;
        revoke(store, &local).await;
        assert_eq!(rights_of(store, "local").await, PrincipalRights::default());
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn tokens_that_ended_long_ago_are_pruned_and_the_pruning_is_recorded() {
    on_both(async |db| {
        let store = &db.store;
        let (revoked, _) = create(store, admin_named("revoked")).await;
        let (local, _) = create(store, admin_named("local")).await;
        let soon = Some(store.clock().now().plus_s(60));
        create(store, NewToken { expires_at: soon, ..admin_named("expired") }).await;
        create(store, admin_named("living")).await;
        revoke(store, &revoked).await;
        revoke(store, &local).await;
        db.pass_ms((ENDED_TOKEN_RETENTION_S - 3_600) * 1_000).await;
        assert_eq!(store.prune_tokens().await.expect("prunes"), 0);
        db.pass_ms(2 * 3_600_000).await;
        assert_eq!(store.prune_tokens().await.expect("prunes"), 2);
        let remaining = store.list_tokens(T, None, 10).await.expect("lists");
        assert_eq!(remaining.iter().map(|token| &*token.name).collect::<Vec<_>>(), ["living", "local"]);
        assert_eq!(rights_of(store, "local").await, PrincipalRights::default(), "the name stays taken");
        let pruning = store.recent_prunings(1).await.expect("reads").remove(0);
        assert_eq!((pruning.kind.as_str(), pruning.rows), ("tokens", 2));
    })
    .await;
}

const RACES_AT_ONCE: usize = 50;

/// After a revocation returns, the token never authenticates again: neither on the revoking node nor on another node
/// that had it cached.
/// Requirement X7.
#[tokio::test]
async fn a_revoked_token_never_authenticates_again_in_a_thousand_races() {
    on_both(async |db| {
        let node = db.another_node().await;
        let mut tokens = Vec::new();
        for _ in 0..500 {
            tokens.push(create(&db.store, a_token(Role::Producer)).await);
        }
        let mut races = tokio::task::JoinSet::new();
        for (token, text) in tokens {
            // Revocations wait for one row and hold a connection meanwhile. Of 500 at once the last one could time out
            // waiting for a connection.
            if races.len() == RACES_AT_ONCE {
                races.join_next().await.expect("a race is running").expect("no race panicked");
            }
            let (store, node) = (db.store.clone(), node.clone());
            races.spawn(async move {
                assert!(is_authenticated(&store, &text).await && is_authenticated(&node, &text).await);
                let revoked = AtomicBool::new(false);
                let use_until_revoked = async |store: &Store| {
                    loop {
                        let was_revoked = revoked.load(Ordering::SeqCst);
                        let got_in = is_authenticated(store, &text).await;
                        assert!(!(was_revoked && got_in), "a revoked token was accepted");
                        if was_revoked {
                            return;
                        }
                        tokio::task::yield_now().await;
                    }
                };
                let revoke_once = async {
                    assert!(store.revoke_token(Some(TenantId::DEFAULT), token.id, "me".into()).await.expect("works"));
                    revoked.store(true, Ordering::SeqCst);
                };
                tokio::join!(revoke_once, use_until_revoked(&store), use_until_revoked(&node));
            });
        }
        races.join_all().await;
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_child_token_cannot_exceed_its_parent() {
    on_both(async |db| {
        let store = &db.store;
        let now = store.clock().now();
        let refused = |created: &TokenCreated| matches!(created, TokenCreated::ExceedsParent(_));
        let (operator, _) = create(store, a_token(Role::Operator)).await;
        assert!(refused(&create_by(store, operator.id, a_token(Role::Viewer)).await), "only admins create tokens");
        let expires = |role, s| NewToken { expires_at: Some(now.plus_s(s)), ..a_token(role) };
        let (parent, _) = create(store, expires(Role::Admin, 100)).await;
        assert!(refused(&create_by(store, parent.id, a_token(Role::Viewer)).await), "it would outlive its parent");
        assert!(refused(&create_by(store, parent.id, expires(Role::Viewer, 101)).await));
        let created = create_by(store, parent.id, expires(Role::Viewer, 100)).await;
        let TokenCreated::Created(child, _) = created else { panic!("{created:?}") };
        assert_eq!((child.parent, &*child.created_by), (Some(parent.id), "t"));
        let narrow = Access { queues: Some(vec![name("a")]), ..Access::full() };
        let (narrow, _) = create(store, NewToken { access: narrow, ..a_token(Role::Admin) }).await;
        assert!(refused(&create_by(store, narrow.id, a_token(Role::Viewer)).await), "it would reach more queues");
        store.revoke_token(None, parent.id, "me".into()).await.expect("works");
        let late = create_by(store, parent.id, expires(Role::Viewer, 50)).await;
        assert!(matches!(late, TokenCreated::ParentEnded), "{late:?}");
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn only_the_built_in_tenant_creates_tokens_for_other_tenants() {
    on_both(async |db| {
        let store = &db.store;
        let TenantCreated::Created(acme) = store.create_tenant(name("acme")).await.expect("works") else {
            panic!("the tenant exists already")
        };
        assert_eq!(store.create_tenant(name("acme")).await.expect("works"), TenantCreated::Exists(acme));
        let of = |tenant: &str, role| NewToken { tenant: Some(Name::stored(tenant)), ..a_token(role) };
        let (own, _) = create(store, of("acme", Role::Admin)).await;
        assert_eq!((own.tenant, own.tenant_name.as_str()), (acme, "acme"));
        for other in ["default", "system", "absent"] {
            let refused = create_by(store, own.id, of(other, Role::Viewer)).await;
            assert!(matches!(&refused, TokenCreated::NoSuchTenant(name) if name.as_str() == other), "{refused:?}");
        }
        let child = create_by(store, own.id, a_token(Role::Viewer)).await;
        assert!(matches!(&child, TokenCreated::Created(child, _) if child.tenant == acme), "{child:?}");
        let (system, _) = create(store, of("system", Role::Admin)).await;
        let child = create_by(store, system.id, of("acme", Role::Viewer)).await;
        assert!(matches!(&child, TokenCreated::Created(child, _) if child.tenant == acme), "{child:?}");

        let serving = |tenant: &str, role, serves| NewToken { serves: Some(serves), ..of(tenant, role) };
        for (tenant, role) in [("acme", Role::Worker), ("system", Role::Admin)] {
            let created = store
                .create_token(TokenIssuer::Machine, serving(tenant, role, NewServes::Everyone))
                .await
                .expect("works");
            assert!(matches!(created, TokenCreated::InvalidServes(_)), "{created:?}");
        }
        create(store, serving("system", Role::Worker, NewServes::Tenants(vec![name("acme")]))).await;

        assert_eq!(store.list_tokens(acme, None, 10).await.expect("works").len(), 3);
        assert!(
            !store.revoke_token(Some(TenantId::DEFAULT), own.id, "x".into()).await.expect("works"),
            "another tenant's token is not found"
        );
        assert_eq!(store.list_tokens(acme, None, 10).await.expect("works").last().expect("works").revoked_at, None);
        assert_eq!(store.list_tenants(None, 10).await.expect("works").len(), 3);
    })
    .await;
}

#[tokio::test]
async fn the_last_use_of_a_token_is_recorded() {
    on_both(async |db| {
        let (_, text) = create(&db.store, a_token(Role::Viewer)).await;
        let used = eventually("the use is recorded", async || {
            assert!(is_authenticated(&db.store, &text).await);
            db.store.list_tokens(TenantId::DEFAULT, None, 1).await.expect("works")[0].used_at
        })
        .await;
        assert!(used > Time::from_micros(0));
    })
    .await;
}

#[tokio::test]
async fn granted_rights_and_queues_round_trip() {
    on_both(async |db| {
        let access = Access {
            role: Role::Worker,
            granted: Rights::of(&[Right::ReadLogs, Right::ManageTriggers]),
            queues: Some(vec![name("a"), name("b")]),
        };
        let (_, text) = create(&db.store, NewToken { access: access.clone(), ..a_token(Role::Worker) }).await;
        let Authentication::Token(authenticated) = db.store.authenticate(Some(text.as_str())).await.expect("works")
        else {
            panic!("not authenticated")
        };
        assert_eq!(authenticated.token.access, access);
    })
    .await;
}

/// SQL callers get their tenant from their database role, never from an argument.
/// Requirement X6.
#[tokio::test]
async fn a_database_role_acts_only_for_its_own_tenant() {
    on_postgres(async |db| {
        let store = &db.store;
        let admin = psql(&db.admin).await;
        let database = texts(store, "", "select current_database()::text").await.remove(0);
        let role = format!("tenant_{database}");
        admin.client.batch_execute(&format!("create role {role} login")).await.expect("creates the role");
        let store::DatabaseUrl::Postgres(url) = &db.admin else { panic!("PostgreSQL") };
        let app = psql_at(&url.replace("postgres@", &format!("{role}@"))).await;
        let call = "select windlass.enqueue('q', 'k')";
        assert!(app.client.batch_execute(call).await.is_err(), "an unknown role has no access");

        let TenantCreated::Created(acme) = store.create_tenant(name("acme")).await.expect("works") else {
            panic!("the tenant exists already")
        };
        assert_eq!(store.grant_db_role(name("absent"), role.clone()).await.expect("works"), RoleGranted::NoSuchTenant);
        assert_eq!(store.grant_db_role(name("acme"), "no such".into()).await.expect("works"), RoleGranted::NoSuchRole);
        assert_eq!(store.grant_db_role(name("acme"), role.clone()).await.expect("works"), RoleGranted::Granted);
        app.client.batch_execute(call).await.expect("works");
        let match_failure = "select * from windlass.match_failure_signature(error_code => 'x')";
        app.client.batch_execute(match_failure).await.expect("the other functions work too");
        for view in ["first_signal_snapshots", "ttfs_hourly_summary", "ttfs_daily_summary", "ttfs_slo_breaches"] {
            let shown = format!("select count(distinct tenant_id) from windlass.{view} where tenant_id <> {}", acme.0);
            let others: i64 = app.client.query_one(&shown, &[]).await.expect("a granted role reads the views").get(0);
            assert_eq!(others, 0, "{view} shows another tenant");
        }
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
        assert_eq!(texts(store, "", open).await, Vec::<String>::new(), "no function is executable by PUBLIC");
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

//! Deletion of a tenant with everything that it owns.

use std::collections::BTreeMap;

use domain::TenantId;
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::access::tenants::delete::TenantDeleted;
use store::queue::claim::Claimed;
use store::queue::enqueue::{EnqueueReply, Extras, NewJob};
use store::queue::settle::{End, Outcome};
use testkit::{Database, job, label, name, on_both};

use crate::support::*;

async fn create(store: &Store, text: &str) -> TenantId {
    match store.create_tenant(name(text)).await.expect("creates") {
        TenantCreated::Created(id) => id,
        other => panic!("{other:?}"),
    }
}

/// Number of rows of the tenant in each table that has some.
async fn rows(store: &Store, tenant: TenantId) -> BTreeMap<String, i64> {
    let tables = texts(
        store,
        "select m.name from sqlite_master m where m.type = 'table'
             and exists (select 1 from pragma_table_info(m.name) where name = 'tenant')",
        "select table_name::text from information_schema.columns join information_schema.tables using (table_schema, table_name)
         where table_schema = 'windlass' and column_name = 'tenant' and table_type = 'BASE TABLE'",
    )
    .await;
    let mut rows = BTreeMap::new();
    for table in tables {
        let count = number(store, &format!("select count(*) from {table} where tenant = {}", tenant.0)).await;
        if count > 0 {
            rows.insert(table, count);
        }
    }
    rows
}

/// Creates rows in many tables: live and ended jobs, a worker with claims, a token, keys, and children without a tenant.
async fn fill(db: &Database, tenant: TenantId) {
    let store = &db.store;
    let extras = Extras {
        subject: Some(label("m")),
        run: Some(label("r")),
        tags: vec![label("t")],
        concurrency_key: Some(label("c")),
        ..Extras::default()
    };
    let guarded = NewJob { extras: Some(Box::new(extras)), ..job("q") };
    let mut jobs = vec![guarded];
    jobs.extend((0..600).map(|_| job("q")));
    let enqueued = store.enqueue(tenant, jobs, None).await.expect("enqueues");
    assert!(matches!(enqueued, EnqueueReply::Accepted(_)));
    let worker = store.register_worker(tenant, new_worker(&["q"])).await.expect("registers");
    for _ in 0..2 {
        let claimed = match store.claim(tenant, worker, 200, None).await.expect("claims") {
            Claimed::Jobs { jobs, .. } => jobs,
            other => panic!("{other:?}"),
        };
        let end =
            |job: &store::queue::claim::ClaimedJob| Outcome { job: job.id, epoch: job.epoch, end: End::Finish(None) };
        let half = claimed.iter().take(100).map(end).collect();
        store.settle(tenant, worker, half).await.expect("settles");
    }
    let (id, now, blob) = match store.is_postgres() {
        true => ("gen_random_uuid()", "now()", "decode(md5(random()::text), 'hex')"),
        false => ("randomblob(16)", "0", "randomblob(16)"),
    };
    let number = tenant.0;
    let statements = format!(
        "insert into kv (tenant, collection, key, value, version, created_at, updated_at)
             values ({number}, 'c', 'it''s', '1', 1, {now}, {now});
         insert into tokens (id, tenant, hash, name, role, rights, created_by, created_at)
             values ({id}, {number}, {blob}, 'ann', 'admin', '[]', 'me', {now});
         insert into sessions (hash, token, began_at, expires_at)
             select {blob}, id, {now}, {now} from tokens where tenant = {number};
         insert into artifacts (job, name, tenant, size, content_type, sha256, location, epoch, created_at)
             select id, 'a', {number}, 1, 'text/plain', {blob}, 'blob-' || {number}, 1, {now}
             from jobs where tenant = {number} limit 1"
    );
    run_sql(store, &statements).await.expect("fills");
}

/// Requirement X13.
#[tokio::test]
async fn a_deleted_tenant_leaves_no_row_and_no_other_tenant_loses_one() {
    on_both(async |db| {
        let store = &db.store;
        let (small, other) = (create(store, "small").await, create(store, "other").await);
        fill(&db, other).await;
        fill(&db, small).await;
        let of_other = rows(store, other).await;
        let full = rows(store, small).await;
        assert_eq!(full, of_other);
        for table in ["artifacts", "claims", "ended", "jobs", "job_tags", "kv", "lanes", "runs", "tokens", "workers"] {
            assert!(full.contains_key(table), "{table} is empty: {full:?}");
        }
        let mut tables = Vec::new();
        let deleted = store.delete_tenant(name("small"), "me", |table, _| tables.push(table.to_owned())).await;
        let expected: i64 = full.values().sum();
        assert_eq!(deleted.expect("deletes"), TenantDeleted::Deleted { rows: expected as u64 });
        assert_eq!(tables[0], "tokens", "first what acts for the tenant");
        assert_eq!(rows(store, small).await, BTreeMap::new());
        assert_eq!(rows(store, other).await, of_other);
        assert_eq!(number(store, "select count(*) from sessions").await, 1, "only the session of the other tenant");
        assert_eq!(number(store, "select count(*) from blob_garbage").await, 1, "its blob is collected");
        assert_eq!(store.tenant_named(&name("small")).await.expect("reads"), None);
        let report = store.verify().await.expect("verifies");
        assert_eq!(report.findings, []);
        let missing = store.delete_tenant(name("small"), "me", |_, _| {}).await.expect("answers");
        assert_eq!(missing, TenantDeleted::NotFound);
        // The highest number was deleted, and is not used again.
        store.delete_tenant(name("other"), "me", |_, _| {}).await.expect("deletes");
        assert!(create(store, "new").await.0 > other.0);
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn an_interrupted_deletion_of_a_tenant_continues() {
    on_both(async |db| {
        let small = create(&db.store, "small").await;
        fill(&db, small).await;
        // As after a crash in the middle: some tables are empty, one is half empty.
        let number = small.0;
        let half = format!("delete from tokens where tenant = {number}; delete from lanes where tenant = {number}");
        run_sql(&db.store, &half).await.expect("deletes");
        db.store.delete_tenant(name("small"), "me", |_, _| {}).await.expect("continues");
        assert_eq!(rows(&db.store, small).await, BTreeMap::new());
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Requirement X13.
#[tokio::test]
async fn built_in_tenants_and_tenants_with_containers_are_not_deleted() {
    on_both(async |db| {
        for built_in in ["default", "system"] {
            let refused = db.store.delete_tenant(name(built_in), "me", |_, _| {}).await.expect("answers");
            assert_eq!(refused, TenantDeleted::BuiltIn, "{built_in}");
        }
        let small = create(&db.store, "small").await;
        let now = if db.store.is_postgres() { "now()" } else { "0" };
        let runtime = format!(
            "insert into runtimes (tenant, name, spec, env, node, status, container_id, principal, created_at, updated_at)
             values ({}, 'model', '{{}}', '{{}}', 'a', 'running', 'c1', 'me', {now}, {now})",
            small.0
        );
        run_sql(&db.store, &runtime).await.expect("declares");
        let refused = db.store.delete_tenant(name("small"), "me", |_, _| {}).await.expect("answers");
        assert_eq!(refused, TenantDeleted::HasContainers(vec!["model".into()]));
        assert_eq!(rows(&db.store, small).await.len(), 1);
    })
    .await;
}

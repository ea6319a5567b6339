//! Row-level security: PostgreSQL separates tenants even if a statement omits its tenant filter. The stores of these
//! tests run as a plain role that owns its schema and nothing else.

use domain::TenantId;
use store::access::tenants::create::TenantCreated;
use store::db::tx::{Operation, Param, Sql, Tx};
use store::queue::enqueue::EnqueueReply;
use store::triggers::kv::Condition;
use store::{Store, StoreError};
use testkit::{job, name, on_postgres};

use crate::support::*;

/// An operation whose statement omits the tenant filter.
struct Unfiltered {
    tenants: Vec<TenantId>,
    text: String,
}

impl Operation for Unfiltered {
    type Output = Vec<String>;

    fn tenants(&self) -> Vec<TenantId> {
        self.tenants.clone()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        tx.query_built(&self.text, &[]).await?.iter().map(|row| row.text(0)).collect()
    }
}

/// Like [`Careless`], with a lazily opened transaction: it reads, or defers an insert until the commit.
struct UnfilteredLazy {
    tenants: Vec<TenantId>,
    insert_for: Option<TenantId>,
}

const INSERT: Sql = Sql::both(&["insert into quotas (tenant) values ($1)"]);

impl Operation for UnfilteredLazy {
    const LAZY_BEGIN: bool = true;
    type Output = Vec<String>;

    fn tenants(&self) -> Vec<TenantId> {
        self.tenants.clone()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        if let Some(to) = self.insert_for {
            tx.defer(&INSERT, &[], &[Param::Int(to.0)]).await?;
            return Ok(Vec::new());
        }
        let rows = tx.query_built("select distinct tenant::text from jobs order by 1", &[]).await?;
        rows.iter().map(|row| row.text(0)).collect()
    }
}

/// Requirement X6.
#[tokio::test]
async fn row_level_security_applies_before_the_first_statement_of_a_lazy_transaction() {
    on_postgres(async |db| {
        let store = &db.store;
        let other = two_tenants(store).await;
        let reads = UnfilteredLazy { tenants: vec![other], insert_for: None };
        assert_eq!(store.read(reads).await.expect("reads"), [other.0.to_string()]);
        let foreign = UnfilteredLazy { tenants: vec![other], insert_for: Some(T) };
        assert!(store.write(foreign).await.is_err(), "a row of another tenant is rejected");
        assert_eq!(texts(store, "", "select tenant::text from quotas").await, Vec::<String>::new());
        let own = UnfilteredLazy { tenants: vec![other, T], insert_for: Some(T) };
        store.write(own).await.expect("inserts its own row");
        assert_eq!(texts(store, "", "select tenant::text from quotas").await, [T.0.to_string()]);
    })
    .await;
}

/// Like [`Careless`], as a single statement without its own `begin`.
struct UnfilteredStatement {
    tenant: TenantId,
}

const UPDATE: Sql = Sql::postgres("update jobs set phase = 'seen' returning tenant::text, now()");

impl Operation for UnfilteredStatement {
    const LAZY_BEGIN: bool = true;
    type Output = Vec<String>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        tx.query_as_transaction(&UPDATE, &[], &[]).await?.iter().map(|row| row.text(0)).collect()
    }
}

/// Requirement X6.
#[tokio::test]
async fn row_level_security_applies_to_a_single_statement_transaction() {
    on_postgres(async |db| {
        let other = two_tenants(&db.store).await;
        let own = db.store.write(UnfilteredStatement { tenant: other }).await.expect("updates");
        assert_eq!(own, [other.0.to_string(), other.0.to_string()]);
        assert_eq!(number(&db.store, "select count(*) from jobs where phase = 'seen'").await, 2, "it is committed");
    })
    .await;
}

async fn two_tenants(store: &Store) -> TenantId {
    let TenantCreated::Created(other) = store.create_tenant(name("other")).await.expect("creates") else {
        panic!("the tenant exists already")
    };
    for (tenant, count) in [(T, 3), (other, 2)] {
        let jobs = (0..count).map(|_| job("q")).collect();
        let made = store.enqueue(tenant, jobs, None).await.expect("enqueues");
        assert!(matches!(made, EnqueueReply::Accepted(jobs) if jobs.len() == count));
    }
    other
}

/// Requirement X6.
#[tokio::test]
async fn a_statement_without_a_tenant_filter_reaches_no_other_tenant() {
    on_postgres(async |db| {
        let store = &db.store;
        let serving =
            "select rolname::text from pg_roles where rolname = current_user and not rolsuper and not rolbypassrls";
        assert_eq!(texts(store, "", serving).await.len(), 1, "the store runs as a plain role");
        let other = two_tenants(store).await;
        let worker = register(store, &["q"]).await;
        let claimed = claim_one(store, worker).await;
        finish(store, worker, &claimed).await;

        let unfiltered = async |tenant: Option<TenantId>, text: &str| {
            store.read(Unfiltered { tenants: tenant.into_iter().collect(), text: text.into() }).await
        };
        let tenants_of_jobs = "select distinct tenant::text from jobs order by 1";
        assert_eq!(unfiltered(Some(other), tenants_of_jobs).await.expect("reads"), [other.0.to_string()]);
        assert_eq!(unfiltered(Some(T), tenants_of_jobs).await.expect("reads"), [T.0.to_string()]);
        assert_eq!(unfiltered(Some(other), "select count(*)::text from ended").await.expect("reads"), ["0"]);
        let update = "with u as (update jobs set phase = 'x' returning 1) select count(*)::text from u";
        assert_eq!(unfiltered(Some(other), update).await.expect("updates"), ["2"]);
        let delete = "with d as (delete from counters returning tenant) select tenant::text from d where tenant <> 2";
        assert_eq!(unfiltered(Some(T), delete).await.expect("deletes"), Vec::<String>::new());
        let foreign = "with i as (insert into quotas (tenant) values (2) returning 1) select count(*)::text from i";
        assert!(unfiltered(Some(other), foreign).await.is_err(), "a row of another tenant is rejected");
        let moved = "with u as (update jobs set tenant = 2 returning 1) select count(*)::text from u";
        assert!(unfiltered(Some(other), moved).await.is_err(), "nor can a row move to another tenant");
        // A group commit is restricted to the tenants that share it.
        let TenantCreated::Created(third) = store.create_tenant(name("third")).await.expect("creates") else {
            panic!("the tenant exists already")
        };
        store.enqueue(third, vec![job("q")], None).await.expect("enqueues");
        let shared = Unfiltered { tenants: vec![other, T, other], text: tenants_of_jobs.into() };
        let mut both = [T.0.to_string(), other.0.to_string()];
        both.sort();
        assert_eq!(store.read(shared).await.expect("reads"), both);
        let text = foreign.replace("(2)", &format!("({})", third.0));
        let shared = Unfiltered { tenants: vec![T, other], text };
        assert!(store.read(shared).await.is_err(), "a third tenant's row is rejected");
        // The restriction ends with its transaction: the next user of the connection sees their own rows.
        assert_eq!(
            unfiltered(None, "select count(*)::text from jobs").await.expect("reads"),
            ["5"],
            "maintenance sees all tenants"
        );
    })
    .await;
}

/// Requirement X6.
#[tokio::test]
async fn every_table_with_a_tenant_forces_row_level_security() {
    on_postgres(async |db| {
        let open =
            "select relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
             where relnamespace = 'windlass'::regnamespace and relkind in ('r', 'p')
                 and not (relrowsecurity and relforcerowsecurity) order by 1";
        // These tables are read before the caller's tenant is known.
        assert_eq!(texts(&db.store, "", open).await, ["database_roles", "tokens"], "tables without row-level security");
        let owned = "select nspname::text from pg_namespace n join pg_roles r on r.oid = n.nspowner
             where r.rolname = current_user";
        assert_eq!(texts(&db.store, "", owned).await, ["windlass"], "the role owns its schema and nothing else");
    })
    .await;
}

/// Caches over all tenants are filled without the restriction of the first caller's tenant.
/// Requirement X6.
#[tokio::test]
async fn the_trigger_cache_is_loaded_for_all_tenants() {
    on_postgres(async |db| {
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.expect("creates") else { panic!("the tenant exists already") };
        for tenant in [T, other] {
            let text = format!(
                "insert into triggers (id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled, principal,
                     created_at, updated_at)
                 values (gen_random_uuid(), {}, 't', 'kv', '{{\"collection\": \"c\"}}',
                     '{{\"job\": {{\"queue\": \"made\", \"kind\": \"k\"}}}}', 'async', '{{}}', 3, true, 'p', now(), now());
                 update trigger_clock set version = version + 7 where id = 1",
                tenant.0
            );
            run_sql(&db.store, &text).await.expect("inserts a trigger");
        }
        let node = db.another_node().await;
        for tenant in [T, other] {
            node.set_kv(tenant, ("c", "k"), "1".into(), Condition::Always, 0).await.expect("sets");
        }
        assert_eq!(number(&db.store, "select count(distinct tenant) from outbox").await, 2);
    })
    .await;
}

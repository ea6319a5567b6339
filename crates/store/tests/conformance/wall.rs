//! X6: on PostgreSQL the database itself keeps tenants apart, whatever a statement forgot. The stores of all these tests are
//! a plain role's, which owns its schema and nothing else: everything works behind the wall.

use domain::TenantId;
use store::jobs::enqueue::EnqueueReply;
use store::kv::Condition;
use store::tenants::create::TenantCreated;
use store::tx::{Operation, Param, Sql, Tx};
use store::{Store, StoreError};
use testkit::{job, name, on_postgres};

use crate::support::*;

/// An operation that forgot to name its tenant in its statement.
struct Careless {
    tenants: Vec<TenantId>,
    text: String,
}

impl Operation for Careless {
    type Output = Vec<String>;

    fn tenants(&self) -> Vec<TenantId> {
        self.tenants.clone()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        tx.query_built(&self.text, &[]).await?.iter().map(|row| row.text(0)).collect()
    }
}

/// The same of one whose transaction opens with what it does first: it reads, or it writes with the commit.
struct Late {
    tenants: Vec<TenantId>,
    gives: Option<TenantId>,
}

const GIVE: Sql = Sql::both(&["insert into quotas (tenant) values ($1)"]);

impl Operation for Late {
    const OPENS_UNHEARD: bool = true;
    type Output = Vec<String>;

    fn tenants(&self) -> Vec<TenantId> {
        self.tenants.clone()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        if let Some(to) = self.gives {
            tx.execute_later(&GIVE, &[], &[Param::Int(to.0)]).await?;
            return Ok(Vec::new());
        }
        let rows = tx.query_built("select distinct tenant::text from jobs order by 1", &[]).await?;
        rows.iter().map(|row| row.text(0)).collect()
    }
}

#[tokio::test]
async fn x6_the_wall_of_what_opens_first_is_up_before_anything_is_done() {
    on_postgres(async |db| {
        let store = &db.store;
        let other = two_tenants(store).await;
        let reads = Late { tenants: vec![other], gives: None };
        assert_eq!(store.read(reads).await.expect("reads"), [other.0.to_string()]);
        let foreign = Late { tenants: vec![other], gives: Some(T) };
        assert!(store.write(foreign).await.is_err(), "a row of another tenant is not taken");
        assert_eq!(texts(store, "", "select tenant::text from quotas").await, Vec::<String>::new());
        let own = Late { tenants: vec![other, T], gives: Some(T) };
        store.write(own).await.expect("takes its own");
        assert_eq!(texts(store, "", "select tenant::text from quotas").await, [T.0.to_string()]);
    })
    .await;
}

/// The same of one that is a single statement, in the form that puts up its own wall.
struct Alone {
    tenant: TenantId,
}

const WHOSE: Sql = Sql::postgres(
    "with seen as (update jobs set phase = 'seen' returning tenant)
     select s.tenant::text, now() from (select set_config('windlass.tenant', $1, true) as wall offset 0) w
         left join lateral (select * from seen where w.wall is not null) s on true",
);

impl Operation for Alone {
    const OPENS_UNHEARD: bool = true;
    type Output = Vec<String>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        tx.query_alone(&WHOSE, &[], &[]).await?.iter().map(|row| row.text(0)).collect()
    }
}

#[tokio::test]
async fn x6_a_statement_that_is_all_of_its_transaction_has_its_wall_up_before_it_reads_and_holds() {
    on_postgres(async |db| {
        let other = two_tenants(&db.store).await;
        let own = db.store.write(Alone { tenant: other }).await.expect("updates");
        assert_eq!(own, [other.0.to_string(), other.0.to_string()]);
        assert_eq!(number(&db.store, "select count(*) from jobs where phase = 'seen'").await, 2, "it is committed");
    })
    .await;
}

async fn two_tenants(store: &Store) -> TenantId {
    let TenantCreated::Created(other) = store.create_tenant(name("other")).await.expect("made") else { panic!("new") };
    for (tenant, count) in [(T, 3), (other, 2)] {
        let jobs = (0..count).map(|_| job("q")).collect();
        let made = store.enqueue(tenant, jobs, None).await.expect("enqueues");
        assert!(matches!(made, EnqueueReply::Accepted(jobs) if jobs.len() == count));
    }
    other
}

#[tokio::test]
async fn x6_a_statement_that_forgets_its_tenant_reaches_no_other() {
    on_postgres(async |db| {
        let store = &db.store;
        let serving =
            "select rolname::text from pg_roles where rolname = current_user and not rolsuper and not rolbypassrls";
        assert_eq!(texts(store, "", serving).await.len(), 1, "a plain role serves");
        let other = two_tenants(store).await;
        let worker = register(store, &["q"]).await;
        let claimed = claim_one(store, worker).await;
        finish(store, worker, &claimed).await;

        let careless = async |tenant: Option<TenantId>, text: &str| {
            store.read(Careless { tenants: tenant.into_iter().collect(), text: text.into() }).await
        };
        let whose = "select distinct tenant::text from jobs order by 1";
        assert_eq!(careless(Some(other), whose).await.expect("reads"), [other.0.to_string()]);
        assert_eq!(careless(Some(T), whose).await.expect("reads"), [T.0.to_string()]);
        assert_eq!(careless(Some(other), "select count(*)::text from ended").await.expect("reads"), ["0"]);
        let update = "with u as (update jobs set phase = 'x' returning 1) select count(*)::text from u";
        assert_eq!(careless(Some(other), update).await.expect("updates"), ["2"]);
        let delete = "with d as (delete from counters returning tenant) select tenant::text from d where tenant <> 2";
        assert_eq!(careless(Some(T), delete).await.expect("deletes"), Vec::<String>::new());
        let foreign = "with i as (insert into quotas (tenant) values (2) returning 1) select count(*)::text from i";
        assert!(careless(Some(other), foreign).await.is_err(), "a row of another tenant is not taken");
        let moved = "with u as (update jobs set tenant = 2 returning 1) select count(*)::text from u";
        assert!(careless(Some(other), moved).await.is_err(), "nor is one given away");
        // A commit that tenants share is walled in around those that share it.
        let TenantCreated::Created(third) = store.create_tenant(name("third")).await.expect("made") else {
            panic!("new")
        };
        store.enqueue(third, vec![job("q")], None).await.expect("enqueues");
        let shared = Careless { tenants: vec![other, T, other], text: whose.into() };
        let mut both = [T.0.to_string(), other.0.to_string()];
        both.sort();
        assert_eq!(store.read(shared).await.expect("reads"), both);
        let text = foreign.replace("(2)", &format!("({})", third.0));
        let shared = Careless { tenants: vec![T, other], text };
        assert!(store.read(shared).await.is_err(), "nor does it take a row of a third");
        // The wall goes with its transaction: whoever comes next on the same connection sees what is theirs.
        assert_eq!(
            careless(None, "select count(*)::text from jobs").await.expect("reads"),
            ["5"],
            "maintenance sees all"
        );
    })
    .await;
}

#[tokio::test]
async fn x6_every_table_with_a_tenant_has_the_wall_and_it_is_forced() {
    on_postgres(async |db| {
        let open =
            "select relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant'
             where relnamespace = 'windlass'::regnamespace and relkind in ('r', 'p')
                 and not (relrowsecurity and relforcerowsecurity) order by 1";
        // Who speaks, and for whom, is asked before it is known whose it is.
        assert_eq!(texts(&db.store, "", open).await, ["database_roles", "tokens"], "tables without the wall");
        let owned = "select nspname::text from pg_namespace n join pg_roles r on r.oid = n.nspowner
             where r.rolname = current_user";
        assert_eq!(texts(&db.store, "", owned).await, ["windlass"], "X9: it owns its schema and nothing else");
    })
    .await;
}

/// What a node remembers of every tenant is read past the wall of whoever happens to ask first.
#[tokio::test]
async fn x6_a_wall_around_one_tenant_hides_no_other_tenants_triggers() {
    on_postgres(async |db| {
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.expect("made") else { panic!("new") };
        for tenant in [T, other] {
            let text = format!(
                "insert into triggers (id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled, principal,
                     created_at, updated_at)
                 values (gen_random_uuid(), {}, 't', 'kv', '{{\"collection\": \"c\"}}',
                     '{{\"job\": {{\"queue\": \"made\", \"kind\": \"k\"}}}}', 'async', '{{}}', 3, true, 'p', now(), now());
                 update trigger_clock set version = version + 7 where id = 1",
                tenant.0
            );
            run_sql(&db.store, &text).await.expect("a trigger is there");
        }
        let node = db.another_node().await;
        for tenant in [T, other] {
            node.set_kv(tenant, ("c", "k"), "1".into(), Condition::Always, 0).await.expect("sets");
        }
        assert_eq!(number(&db.store, "select count(distinct tenant) from outbox").await, 2);
    })
    .await;
}

//! Declares or changes a runtime. The running container does not change until an operation updates it.

use domain::limits::RUNTIMES_PER_TENANT;
use domain::runtimes::{RuntimeSpec, RuntimeStatus};
use domain::{RuntimeName, TenantId};

use crate::access::secrets::Purpose;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::codec;
use crate::runtimes::pools;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimePut {
    Created,
    Changed,
    /// The tenant already has the maximum number of runtimes.
    TooMany,
    /// The runtime is being deleted.
    Deleting,
    /// The runtime would exceed the memory budget of this pool.
    OverBudget(String),
}

impl Store {
    /// Creates or replaces the declaration of a runtime. The values of its environment are encrypted.
    pub async fn put_runtime(
        &self,
        tenant: TenantId,
        name: RuntimeName,
        mut spec: RuntimeSpec,
        actor: String,
    ) -> Result<RuntimePut, StoreError> {
        for value in spec.env.values_mut() {
            *value = self.seal(tenant, Purpose::Environment { runtime: name.as_str() }, value).await?;
        }
        self.write(PutRuntime { tenant, name, spec, actor }).await
    }
}

struct PutRuntime {
    tenant: TenantId,
    name: RuntimeName,
    spec: RuntimeSpec,
    actor: String,
}

const COUNT: Sql = Sql::both(&["select count(*) as runtimes from runtimes where tenant = $1"]);
const LOCK: Sql = Sql::new(
    &["select deleting from runtimes where tenant = $1 and name = $2"],
    "select deleting from runtimes where tenant = $1 and name = $2 for update",
);
const INSERT: Sql =
    Sql::both(&["insert into runtimes (tenant, name, spec, env, status, principal, created_at, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $7)"]);
const UPDATE: Sql = Sql::both(&["update runtimes set spec = $3, env = $4, principal = $5, updated_at = $6
     where tenant = $1 and name = $2"]);

impl Operation for PutRuntime {
    type Output = RuntimePut;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RuntimePut, StoreError> {
        tx.lock(&[&format!("windlass runtimes {}", self.tenant.0)]).await?;
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let (spec, env) = codec::write(&self.spec);
        let (spec, env, actor, now) =
            (Param::Json(&spec), Param::Json(&env), Param::Text(&self.actor), Param::Time(tx.now()));
        let put = match tx.query_opt(&LOCK, &id).await? {
            Some(row) if row.bool("deleting")? => return Ok(RuntimePut::Deleting),
            Some(_) => {
                if let Some(pool) =
                    pools::put::pool_exceeded_by(tx, self.tenant, &self.name, self.spec.memory_mb).await?
                {
                    return Ok(RuntimePut::OverBudget(pool));
                }
                tx.execute(&UPDATE, &[id[0], id[1], spec, env, actor, now]).await?;
                RuntimePut::Changed
            }
            None => {
                let count =
                    tx.query_opt(&COUNT, &id[..1]).await?.map(|row| row.int("runtimes")).transpose()?.unwrap_or(0);
                if count as usize >= RUNTIMES_PER_TENANT {
                    return Ok(RuntimePut::TooMany);
                }
                let status = Param::Text(RuntimeStatus::Removed.as_str());
                tx.execute(&INSERT, &[id[0], id[1], spec, env, status, actor, now]).await?;
                subjects::insert_missing(tx, self.tenant, &[&self.name.subject()]).await?;
                RuntimePut::Created
            }
        };
        let event = if put == RuntimePut::Created { "declared" } else { "redeclared" };
        let subject = self.name.subject();
        let entry = Entry {
            actor: Some(&self.actor),
            runtime: Some(self.name.as_str()),
            ..Entry::of_subject(self.tenant, &subject, event)
        };
        timeline::write(tx, &[entry]).await?;
        Ok(put)
    }
}

//! Declares a runtime, or changes what is declared. What runs is left alone: an operation brings it up to date.

use domain::limits::RUNTIMES_PER_TENANT;
use domain::runtime::{RuntimeSpec, RuntimeStatus};
use domain::{RuntimeName, TenantId};

use crate::error::StoreError;
use crate::pools;
use crate::runtimes::codec;
use crate::secrets::Purpose;
use crate::store::Store;
use crate::subjects;
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimePut {
    Created,
    Changed,
    /// The tenant has as many as it may have.
    TooMany,
    /// It is being deleted.
    Deleting,
    /// The memory budget of this pool would not hold any more.
    OverBudget(String),
}

impl Store {
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

const COUNT: Sql = Sql::both(&["select count(*) from runtimes where tenant = $1"]);
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
            Some(row) if row.bool(0)? => return Ok(RuntimePut::Deleting),
            Some(_) => {
                if let Some(pool) = pools::put::outgrown_by(tx, self.tenant, &self.name, self.spec.memory_mb).await? {
                    return Ok(RuntimePut::OverBudget(pool));
                }
                tx.execute(&UPDATE, &[id[0], id[1], spec, env, actor, now]).await?;
                RuntimePut::Changed
            }
            None => {
                let count = tx.query_opt(&COUNT, &id[..1]).await?.map(|row| row.int(0)).transpose()?.unwrap_or(0);
                if count as usize >= RUNTIMES_PER_TENANT {
                    return Ok(RuntimePut::TooMany);
                }
                let status = Param::Text(RuntimeStatus::Removed.as_str());
                tx.execute(&INSERT, &[id[0], id[1], spec, env, status, actor, now]).await?;
                subjects::make(tx, self.tenant, &[&self.name.subject()]).await?;
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

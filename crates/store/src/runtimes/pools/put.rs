//! Declares, changes and deletes pools. The runtimes of the members do not change.

use domain::limits::POOLS_PER_TENANT;
use domain::runtimes::SpecError;
use domain::runtimes::pool::PoolSpec;
use domain::{Name, RuntimeName, TenantId};

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes;
use crate::runtimes::pools::codec;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolPut {
    Done,
    /// The tenant already has the maximum number of pools.
    TooMany,
    /// The member with this index names a runtime that is not declared.
    NoRuntime(usize),
    /// Another pool has the runtime of a member, or serves the queue. The text says which.
    Conflict(String),
    /// The memory that the slots may use exceeds the pool's budget, or is unknown.
    OverBudget(SpecError),
}

impl Store {
    /// Creates or replaces the declaration of a pool.
    pub async fn put_pool(
        &self,
        tenant: TenantId,
        name: Name,
        spec: PoolSpec,
        actor: String,
    ) -> Result<PoolPut, StoreError> {
        let queue = spec.queue.clone();
        let put = self.write(PutPool { tenant, name, spec, actor }).await?;
        self.queue_snapshot_cache().invalidate(&(tenant, queue));
        self.notifier().notify_local(&Topic::Runtimes);
        Ok(put)
    }

    /// Returns true if the pool existed.
    pub async fn delete_pool(&self, tenant: TenantId, name: &Name) -> Result<bool, StoreError> {
        let deleted = self.write(DeletePool { tenant, name: name.clone() }).await?;
        self.notifier().notify_local(&Topic::Runtimes);
        Ok(deleted)
    }
}

struct PutPool {
    tenant: TenantId,
    name: Name,
    spec: PoolSpec,
    actor: String,
}

const OTHERS: Sql = Sql::both(&["select name, spec from pools where tenant = $1 and name <> $2"]);
// `updated_at` changes only with the spec, because the pool's slots restart when it changes.
const UPSERT: Sql = Sql::both(&["insert into pools (tenant, name, spec, state, principal, created_at, updated_at)
     values ($1, $2, $3, '{}', $4, $5, $5)
     on conflict (tenant, name) do update set spec = excluded.spec, principal = excluded.principal,
         updated_at = case when cast(pools.spec as text) = cast(excluded.spec as text) then pools.updated_at
             else excluded.updated_at end"]);
// Claims use the setting of the queue, so the pool's setting is copied there.
const STARVATION: Sql =
    Sql::both(&["insert into queues (tenant, name, starvation_s, updated_at) values ($1, $2, $3, $4)
     on conflict (tenant, name) do update set starvation_s = excluded.starvation_s, updated_at = excluded.updated_at"]);

impl Operation for PutPool {
    type Output = PoolPut;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PoolPut, StoreError> {
        tx.lock(&[&format!("windlass pools {}", self.tenant.0)]).await?;
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let mut memory_mb = Vec::with_capacity(self.spec.members.len());
        for (number, member) in self.spec.members.iter().enumerate() {
            match runtimes::get::memory_of(tx, self.tenant, member.runtime.as_str()).await? {
                Some(size) => memory_mb.push(size),
                None => return Ok(PoolPut::NoRuntime(number)),
            }
        }
        if let Err(over) = self.spec.fits(&memory_mb) {
            return Ok(PoolPut::OverBudget(over));
        }
        let others = tx.query(&OTHERS, &id).await?;
        if others.len() >= POOLS_PER_TENANT {
            return Ok(PoolPut::TooMany);
        }
        for row in &others {
            let (other, spec) = (row.text("name")?, codec::read(&row.text("spec")?)?);
            if spec.queue == self.spec.queue {
                return Ok(PoolPut::Conflict(format!("pool {other} already serves queue {}", spec.queue)));
            }
            let shared = |member: &&domain::runtimes::pool::Member| {
                spec.members.iter().any(|theirs| theirs.runtime == member.runtime)
            };
            if let Some(member) = self.spec.members.iter().find(shared) {
                return Ok(PoolPut::Conflict(format!(
                    "runtime {} is already a member of pool {other}",
                    member.runtime
                )));
            }
        }
        let spec = codec::write(&self.spec);
        let now = Param::Time(tx.now());
        tx.execute(&UPSERT, &[id[0], id[1], Param::Json(&spec), Param::Text(&self.actor), now]).await?;
        if let Some(starvation_s) = self.spec.starvation_s {
            let queue = Param::Text(self.spec.queue.as_str());
            tx.execute(&STARVATION, &[id[0], queue, Param::Int(starvation_s), now]).await?;
        }
        Ok(PoolPut::Done)
    }
}

/// Returns the pool whose memory budget a runtime would exceed if it were declared with this memory limit.
pub(crate) async fn pool_exceeded_by(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    runtime: &RuntimeName,
    size: Option<i64>,
) -> Result<Option<String>, StoreError> {
    for row in tx.query(&OTHERS, &[Param::Int(tenant.0), Param::Text("")]).await? {
        let spec = codec::read(&row.text("spec")?)?;
        if spec.memory_mb.is_none() || !spec.members.iter().any(|member| member.runtime == *runtime) {
            continue;
        }
        let mut memory_mb = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let declared = runtimes::get::memory_of(tx, tenant, member.runtime.as_str()).await?.flatten();
            memory_mb.push(if member.runtime == *runtime { size } else { declared });
        }
        if spec.fits(&memory_mb).is_err() {
            return row.text("name").map(Some);
        }
    }
    Ok(None)
}

struct DeletePool {
    tenant: TenantId,
    name: Name,
}

const DELETE: Sql = Sql::both(&["delete from pools where tenant = $1 and name = $2"]);

impl Operation for DeletePool {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.execute(&DELETE, &[Param::Int(self.tenant.0), Param::Text(self.name.as_str())]).await? > 0)
    }
}

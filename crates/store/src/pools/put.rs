//! Declares a pool, changes it, and takes it away. Its runtimes stay as they are.

use domain::limits::POOLS_PER_TENANT;
use domain::pool::PoolSpec;
use domain::runtime::SpecError;
use domain::{Name, RuntimeName, TenantId};

use crate::error::StoreError;
use crate::hints::Topic;
use crate::pools::codec;
use crate::runtimes;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolPut {
    Done,
    TooMany,
    /// A member names a runtime that is not declared.
    NoRuntime(usize),
    /// Another pool has the member's runtime, or the queue.
    Taken(String),
    /// What its slots may take is more than its memory budget, or is not known.
    OverBudget(SpecError),
}

impl Store {
    pub async fn put_pool(
        &self,
        tenant: TenantId,
        name: Name,
        spec: PoolSpec,
        actor: String,
    ) -> Result<PoolPut, StoreError> {
        let queue = spec.queue.clone();
        let put = self.write(PutPool { tenant, name, spec, actor }).await?;
        self.kept_surroundings().forget(&(tenant, queue));
        self.hints().wake(&Topic::Runtimes);
        Ok(put)
    }

    /// Whether there was one.
    pub async fn delete_pool(&self, tenant: TenantId, name: &Name) -> Result<bool, StoreError> {
        let deleted = self.write(DeletePool { tenant, name: name.clone() }).await?;
        self.hints().wake(&Topic::Runtimes);
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
// A pool that is declared as it was goes on as it is: its slots begin anew when it has changed.
const UPSERT: Sql = Sql::both(&["insert into pools (tenant, name, spec, state, principal, created_at, updated_at)
     values ($1, $2, $3, '{}', $4, $5, $5)
     on conflict (tenant, name) do update set spec = excluded.spec, principal = excluded.principal,
         updated_at = case when cast(pools.spec as text) = cast(excluded.spec as text) then pools.updated_at
             else excluded.updated_at end"]);
// The queue's own bound is what claims go by.
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
            let (other, spec) = (row.text(0)?, codec::read(&row.text(1)?)?);
            if spec.queue == self.spec.queue {
                return Ok(PoolPut::Taken(format!("the pool {other} runs the jobs of the queue {}", spec.queue)));
            }
            let shared =
                |member: &&domain::pool::Member| spec.members.iter().any(|theirs| theirs.runtime == member.runtime);
            if let Some(member) = self.spec.members.iter().find(shared) {
                return Ok(PoolPut::Taken(format!("the pool {other} has the runtime {}", member.runtime)));
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

/// The pool whose budget would not hold any more if a runtime were declared with so much memory.
pub(crate) async fn outgrown_by(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    runtime: &RuntimeName,
    size: Option<i64>,
) -> Result<Option<String>, StoreError> {
    for row in tx.query(&OTHERS, &[Param::Int(tenant.0), Param::Text("")]).await? {
        let spec = codec::read(&row.text(1)?)?;
        if spec.memory_mb.is_none() || !spec.members.iter().any(|member| member.runtime == *runtime) {
            continue;
        }
        let mut memory_mb = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let of_another = runtimes::get::memory_of(tx, tenant, member.runtime.as_str()).await?.flatten();
            memory_mb.push(if member.runtime == *runtime { size } else { of_another });
        }
        if spec.fits(&memory_mb).is_err() {
            return row.text(0).map(Some);
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

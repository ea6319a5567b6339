//! A worker leaves, or is asked to. What it still holds goes back without burning an attempt (Q7).

use domain::{TenantId, WorkerId};

use crate::counters::Changes;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::queues::drained;
use crate::lanes::LaneCache;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::workers::load;
use crate::workers::sweep::{Fate, take_claims_from};

impl Store {
    /// Takes a worker out. Gives `false` when there is no such worker.
    pub async fn remove_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<bool, StoreError> {
        let (found, effects) = self.write(Remove { tenant, worker, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(found)
    }

    /// Asks a worker to take no more work and to stop when it is done.
    pub async fn drain_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<bool, StoreError> {
        let found = self.write(Drain { tenant, worker }).await?;
        self.announce(&Effects { workers: [worker].into(), ..Effects::default() });
        Ok(found)
    }
}

struct Remove {
    tenant: TenantId,
    worker: WorkerId,
    lanes: LaneCache,
}

const DELETE: Sql = Sql::both(&["delete from workers where id = $1 and tenant = $2"]);
const DRAIN: Sql = Sql::both(&["update workers set draining = $3 where id = $1 and tenant = $2 and dead_at is null"]);

impl Operation for Remove {
    type Output = (bool, Effects);

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, Effects), StoreError> {
        let mut effects = Effects::default();
        let known = load(tx, &[self.worker]).await?.pop().filter(|worker| worker.tenant == self.tenant);
        let Some(worker) = known else { return Ok((false, effects)) };
        let fate = if worker.is_alive(tx.now()) { Fate::Released } else { Fate::Expired };
        let mut changes = Changes::default();
        take_claims_from(tx, &self.lanes, self.worker, fate, &mut changes, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &changes, &mut effects).await?;
        changes.write(tx).await?;
        tx.execute(&DELETE, &[Param::from(self.worker), Param::Int(self.tenant.0)]).await?;
        Ok((true, effects))
    }
}

struct Drain {
    tenant: TenantId,
    worker: WorkerId,
}

impl Operation for Drain {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let params = [Param::from(self.worker), Param::Int(self.tenant.0), Param::Bool(true)];
        Ok(tx.execute(&DRAIN, &params).await? > 0)
    }
}

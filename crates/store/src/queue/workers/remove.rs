//! Removes and drains workers. Claims of a removed worker are released without counting an attempt.

use domain::{TenantId, WorkerId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::workers::load;
use crate::queue::workers::sweep::{WorkerExit, end_claims};
use crate::store::Store;
use crate::triggers::events::queues::drained;

impl Store {
    /// Removes a worker and releases its claims. Returns `false` when there is no such worker.
    pub async fn remove_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<bool, StoreError> {
        let (found, effects) = self.write(RemoveWorker { tenant, worker, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(found)
    }

    /// Marks a worker as draining: it claims no more jobs and stops when its jobs are done. Returns `false` when there
    /// is no such live worker.
    pub async fn drain_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<bool, StoreError> {
        let found = self.write(DrainWorker { tenant, worker }).await?;
        self.announce(&Effects { workers: [worker].into(), ..Effects::default() });
        Ok(found)
    }
}

struct RemoveWorker {
    tenant: TenantId,
    worker: WorkerId,
    lanes: LaneCache,
}

const DELETE: Sql = Sql::both(&["delete from workers where id = $1 and tenant = $2"]);
const DRAIN: Sql = Sql::both(&["update workers set draining = $3 where id = $1 and tenant = $2 and dead_at is null"]);

impl Operation for RemoveWorker {
    type Output = (bool, Effects);

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, Effects), StoreError> {
        let mut effects = Effects::default();
        let found = load(tx, &[self.worker]).await?.pop().filter(|worker| worker.tenant == self.tenant);
        let Some(worker) = found else { return Ok((false, effects)) };
        let exit = if worker.is_alive(tx.now()) { WorkerExit::Released } else { WorkerExit::Expired };
        let mut counters = CounterDeltas::default();
        end_claims(tx, &self.lanes, self.worker, exit, &mut counters, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &counters, &mut effects).await?;
        counters.write(tx).await?;
        tx.execute(&DELETE, &[Param::from(self.worker), Param::Int(self.tenant.0)]).await?;
        Ok((true, effects))
    }
}

struct DrainWorker {
    tenant: TenantId,
    worker: WorkerId,
}

impl Operation for DrainWorker {
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

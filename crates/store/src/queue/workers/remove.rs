//! Removes and drains workers. Claims of a removed worker are released without counting an attempt.

use domain::{TenantId, WorkerId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::queue::workers::load;
use crate::queue::workers::sweep::{WorkerExit, end_claims};
use crate::store::Store;

impl Store {
    /// Removes a worker and releases its claims. Returns `false` when there is no such worker.
    pub async fn remove_worker(&self, tenant: TenantId, worker: WorkerId) -> Result<bool, StoreError> {
        let (found, effects) = self.write(RemoveWorker { tenant, worker, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(found)
    }

    /// Removes the workers that an earlier process of this node left behind, and releases their claims. Call it when the
    /// node starts, before it registers workers. A crash of the node therefore uses up no attempt of its own jobs.
    /// Returns the number of workers.
    pub async fn release_node_workers(&self, node: &str) -> Result<usize, StoreError> {
        let left = self.read(ListNodeWorkers { node: node.to_owned() }).await?;
        for (tenant, worker) in &left {
            let release = ReleaseNodeWorker { tenant: *tenant, worker: *worker, lanes: self.lanes().clone() };
            let effects = self.write(release).await?;
            self.announce(&effects);
        }
        Ok(left.len())
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
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        tx.execute(&DELETE, &[Param::from(self.worker), Param::Int(self.tenant.0)]).await?;
        Ok((true, effects))
    }
}

struct ListNodeWorkers {
    node: String,
}

const NODE_WORKERS: Sql = Sql::both(&["select id, tenant from workers where node = $1 order by id"]);

impl Operation for ListNodeWorkers {
    type Output = Vec<(TenantId, WorkerId)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query(&NODE_WORKERS, &[Param::Text(&self.node)]).await?;
        rows.iter().map(|row| Ok((TenantId(row.int("tenant")?), WorkerId::new(row.uuid("id")?)))).collect()
    }
}

struct ReleaseNodeWorker {
    tenant: TenantId,
    worker: WorkerId,
    lanes: LaneCache,
}

impl Operation for ReleaseNodeWorker {
    type Output = Effects;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Effects, StoreError> {
        let mut effects = Effects::default();
        let mut counters = CounterDeltas::default();
        // The process is gone, so its attempts do not count, even if the lease has expired.
        end_claims(tx, &self.lanes, self.worker, WorkerExit::Released, &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        tx.execute(&DELETE, &[Param::from(self.worker), Param::Int(self.tenant.0)]).await?;
        Ok(effects)
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

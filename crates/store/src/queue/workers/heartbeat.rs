//! Heartbeats: a worker renews its lease and learns which of its jobs were canceled.

use domain::{Affinity, JobId, TenantId, Time, WorkerId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::workers::load;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    Alive {
        lease_until: Time,
        /// Jobs whose claims the server revoked and that the worker has not settled yet.
        cancel: Vec<JobId>,
        drain: bool,
    },
    /// The lease expired. The worker's jobs may have new claims.
    LeaseExpired,
    NotFound,
}

impl Store {
    /// Renews the lease and returns the jobs that the worker must stop.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        affinity: Affinity,
    ) -> Result<Heartbeat, StoreError> {
        self.write(SendHeartbeat { tenant, worker, affinity }).await
    }

    /// Returns the same as [`Store::heartbeat`] without renewing the lease. Long-polling requests use it.
    pub async fn revocations(&self, tenant: TenantId, worker: WorkerId) -> Result<Heartbeat, StoreError> {
        self.read(ReadRevocations { tenant, worker }).await
    }
}

struct SendHeartbeat {
    tenant: TenantId,
    worker: WorkerId,
    affinity: Affinity,
}

struct ReadRevocations {
    tenant: TenantId,
    worker: WorkerId,
}

const REVOKED: Sql = Sql::both(&["select distinct job from revocations where worker = $1 order by job"]);

impl Operation for SendHeartbeat {
    type Output = Heartbeat;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Heartbeat, StoreError> {
        let state = read_state(tx, self.tenant, self.worker).await?;
        let Heartbeat::Alive { cancel, drain, .. } = state else { return Ok(state) };
        let worker = load(tx, &[self.worker]).await?.pop();
        let worker = worker.ok_or_else(|| StoreError::unexpected("a worker vanished in its own heartbeat"))?;
        let lease_until = worker.renew(tx, &self.affinity, None).await?;
        Ok(Heartbeat::Alive { lease_until, cancel, drain })
    }
}

impl Operation for ReadRevocations {
    type Output = Heartbeat;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Heartbeat, StoreError> {
        read_state(tx, self.tenant, self.worker).await
    }
}

async fn read_state(tx: &mut Tx<'_>, tenant: TenantId, id: WorkerId) -> Result<Heartbeat, StoreError> {
    let Some(worker) = load(tx, &[id]).await?.pop().filter(|worker| worker.tenant == tenant) else {
        return Ok(Heartbeat::NotFound);
    };
    if !worker.is_alive(tx.now()) {
        return Ok(Heartbeat::LeaseExpired);
    }
    let rows = tx.query(&REVOKED, &[Param::from(id)]).await?;
    let cancel = rows.iter().map(|row| row.job("job")).collect::<Result<_, _>>()?;
    Ok(Heartbeat::Alive { lease_until: worker.lease.until, cancel, drain: worker.draining })
}

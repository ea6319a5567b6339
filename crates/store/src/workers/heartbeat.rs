//! A worker says that it lives, and hears what was called off (Q11).

use domain::{Affinity, JobId, TenantId, Time, WorkerId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::workers::load;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    Alive {
        lease_until: Time,
        /// Jobs the server took from this worker and that it has not answered for yet.
        cancel: Vec<JobId>,
        drain: bool,
    },
    /// The lease has passed: its jobs belong to others now.
    Gone,
    NotFound,
}

impl Store {
    /// Renews the lease and tells what the worker must stop.
    pub async fn heartbeat(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        affinity: Affinity,
    ) -> Result<Heartbeat, StoreError> {
        self.write(Beat { tenant, worker, affinity }).await
    }

    /// What a heartbeat would hear, without renewing anything: for one that waits for news.
    pub async fn revocations(&self, tenant: TenantId, worker: WorkerId) -> Result<Heartbeat, StoreError> {
        self.read(Look { tenant, worker }).await
    }
}

struct Beat {
    tenant: TenantId,
    worker: WorkerId,
    affinity: Affinity,
}

struct Look {
    tenant: TenantId,
    worker: WorkerId,
}

const REVOKED: Sql = Sql::both(&["select distinct job from revocations where worker = $1 order by job"]);

impl Operation for Beat {
    type Output = Heartbeat;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Heartbeat, StoreError> {
        let seen = look(tx, self.tenant, self.worker).await?;
        let Heartbeat::Alive { cancel, drain, .. } = seen else { return Ok(seen) };
        let worker = load(tx, &[self.worker]).await?.pop();
        let worker = worker.ok_or_else(|| StoreError::unexpected("a worker vanished in its own heartbeat"))?;
        let lease_until = worker.renew(tx, &self.affinity, None).await?;
        Ok(Heartbeat::Alive { lease_until, cancel, drain })
    }
}

impl Operation for Look {
    type Output = Heartbeat;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Heartbeat, StoreError> {
        look(tx, self.tenant, self.worker).await
    }
}

async fn look(tx: &mut Tx<'_>, tenant: TenantId, id: WorkerId) -> Result<Heartbeat, StoreError> {
    let Some(worker) = load(tx, &[id]).await?.pop().filter(|worker| worker.tenant == tenant) else {
        return Ok(Heartbeat::NotFound);
    };
    if !worker.is_alive(tx.now()) {
        return Ok(Heartbeat::Gone);
    }
    let rows = tx.query(&REVOKED, &[Param::from(id)]).await?;
    let cancel = rows.iter().map(|row| row.job(0)).collect::<Result<_, _>>()?;
    Ok(Heartbeat::Alive { lease_until: worker.lease.until, cancel, drain: worker.draining })
}

//! Decides which jobs the holder of a claim may read besides the claimed job: those that its handler gets references to.
//! The HTTP API calls `Store::may_read_by_claim`.

use domain::limits::FORK_ORIGINS;
use domain::workflows::journal::CANCEL_KEY;
use domain::{JobId, TenantId, WorkerId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// A claim as its holder names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    pub worker: WorkerId,
    pub job: JobId,
}

impl Store {
    /// True if the worker holds the claim, and the claimed job is `read`, needs it, has started it as a child, or has
    /// entries of its journal or of its parent's as a fork.
    pub async fn may_read_by_claim(&self, tenant: TenantId, claim: HeldClaim, read: JobId) -> Result<bool, StoreError> {
        self.read(CheckClaimAccess { tenant, claim, read }).await
    }
}

struct CheckClaimAccess {
    tenant: TenantId,
    claim: HeldClaim,
    read: JobId,
}

const CLAIMED: Sql = Sql::both(&["select 1 from jobs where id = $1 and tenant = $2 and worker = $3"]);
const NEEDS: Sql = Sql::both(&["select 1 from run_needs where need = $1 and node = $2"]);
const STARTED: Sql = Sql::both(&["select 1 from journal_children where child = $1 and job = $2"]);
// Only the entries that a fork has copied have the epoch 0, and the request to undo the steps.
const FORKED_FROM: Sql = Sql::both(&["select parent from jobs where id = $1 and parent is not null and exists
         (select 1 from journal_entries where job = $1 and epoch = 0 and key <> $2)
     union all select parent from ended where id = $1 and parent is not null and exists
         (select 1 from journal_entries where job = $1 and epoch = 0 and key <> $2)"]);

impl Operation for CheckClaimAccess {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let (claimed, read) = (Param::from(self.claim.job), Param::from(self.read));
        let params = [claimed, Param::Int(self.tenant.0), Param::from(self.claim.worker)];
        if tx.query_opt(&CLAIMED, &params).await?.is_none() {
            return Ok(false);
        }
        if tx.query_opt(&NEEDS, &[read, claimed]).await?.is_some() {
            return Ok(true);
        }
        // The journal of a fork of a fork refers to the artifacts and the children of the first job.
        let mut job = self.claim.job;
        for _ in 0..FORK_ORIGINS {
            if job == self.read || tx.query_opt(&STARTED, &[read, Param::from(job)]).await?.is_some() {
                return Ok(true);
            }
            let forked_from = tx.query_opt(&FORKED_FROM, &[Param::from(job), Param::Text(CANCEL_KEY)]).await?;
            let Some(row) = forked_from else { break };
            job = row.job("parent")?;
        }
        Ok(false)
    }
}

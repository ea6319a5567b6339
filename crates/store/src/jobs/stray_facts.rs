//! Facts are for the subject of a job. An outcome that brings some for a job without one is refused before anything is
//! settled, so that its worker can say something else and nothing is lost (W1).

use std::collections::HashSet;

use domain::{Epoch, JobId, TenantId, WorkerId};

use crate::error::StoreError;
use crate::jobs::settle::{End, Outcome};
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

impl Store {
    /// The first outcome of this tenant's worker whose facts have no subject to go to. The database is asked only where facts are given, which most
    /// outcomes are not.
    pub(crate) async fn stray_facts(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        outcomes: &[Outcome],
    ) -> Result<Option<usize>, StoreError> {
        let with_facts =
            |outcome: &&Outcome| matches!(&outcome.end, End::FinishWith { facts, .. } if !facts.is_empty());
        let claims: Vec<(JobId, Epoch)> =
            outcomes.iter().filter(with_facts).map(|outcome| (outcome.job, outcome.epoch)).collect();
        if claims.is_empty() {
            return Ok(None);
        }
        let without = self.read(WithoutSubject { tenant, worker, claims }).await?;
        Ok(outcomes.iter().position(|outcome| with_facts(&outcome) && without.contains(&outcome.job)))
    }
}

struct WithoutSubject {
    tenant: TenantId,
    worker: WorkerId,
    claims: Vec<(JobId, Epoch)>,
}

// Only what the worker has: of any other job it hears what it always did.
const WITHOUT_SUBJECT: Sql = Sql::new(
    &["select id from jobs where id = $1 and epoch = $2 and worker = $3 and subject is null
           and exists (select 1 from workers w where w.id = $3 and w.tenant = $4)"],
    "select j.id from unnest($1::uuid[], $2::bigint[]) as c(id, epoch) join jobs j on j.id = c.id
     where j.epoch = c.epoch and j.worker = $3 and j.subject is null
         and exists (select 1 from workers w where w.id = $3 and w.tenant = $4)",
);

impl Operation for WithoutSubject {
    type Output = HashSet<JobId>;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.tenant).filter(|tenant| *tenant != TenantId::SYSTEM)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<HashSet<JobId>, StoreError> {
        let columns = [
            Column::jobs(self.claims.iter().map(|(job, _)| *job)),
            Column::ints(self.claims.iter().map(|(_, epoch)| epoch.0)),
        ];
        let params = [Param::from(self.worker), Param::Int(self.tenant.0)];
        let rows = tx.query_each(&WITHOUT_SUBJECT, &columns, &params).await?;
        rows.iter().map(|row| row.job(0)).collect()
    }
}

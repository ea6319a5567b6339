//! Rejects facts that have no subject. Facts are stored on the job's subject, so an outcome with facts is rejected for
//! a job without one. The check runs before anything is settled: the worker can then settle with another outcome, and
//! no fact is lost.

use std::collections::HashSet;

use domain::{Epoch, JobId, TenantId, WorkerId};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::settle::{End, Outcome};
use crate::store::Store;

impl Store {
    /// Returns the index of the first of this worker's outcomes with facts for a job without a subject. Queries the
    /// database only if some outcome has facts, which most do not.
    pub(crate) async fn facts_without_subject(
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
        let subjectless = self.read(WithoutSubject { tenant, worker, claims }).await?;
        Ok(outcomes.iter().position(|outcome| with_facts(&outcome) && subjectless.contains(&outcome.job)))
    }
}

struct WithoutSubject {
    tenant: TenantId,
    worker: WorkerId,
    claims: Vec<(JobId, Epoch)>,
}

// Only jobs that the worker has claimed: outcomes for other jobs get their own status.
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
        rows.iter().map(|row| row.job("id")).collect()
    }
}

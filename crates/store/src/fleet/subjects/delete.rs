//! Deletes a subject with its facts, backoffs and credential. Its timeline remains. The deletion is refused while a job
//! on the subject is unfinished.

use domain::{Label, RuntimeName, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects;
use crate::fleet::subjects::get::{LiveWork, live_work};
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectDeleted {
    Deleted,
    /// Nothing was deleted: these jobs are unfinished, or canceled but still running on a worker.
    Busy(Vec<LiveWork>),
    /// The subject belongs to a runtime that is still declared.
    OfRuntime(RuntimeName),
    NotFound,
}

impl Store {
    /// Deletes a subject, or returns why it cannot be deleted.
    pub async fn delete_subject(
        &self,
        tenant: TenantId,
        id: Label,
        actor: String,
    ) -> Result<SubjectDeleted, StoreError> {
        self.write(DeleteSubject { tenant, id, actor }).await
    }
}

struct DeleteSubject {
    tenant: TenantId,
    id: Label,
    actor: String,
}

// The lock prevents the scan from making a job for the subject in between.
const LOCK_STANDINGS: Sql = Sql::new(
    &["select process from standings where tenant = $1 and subject = $2"],
    "select process from standings where tenant = $1 and subject = $2 order by process for update",
);
// Jobs that were canceled, but whose worker has not stopped yet.
const REVOKED: Sql =
    Sql::both(&["select e.id, coalesce(e.process, l.kind) as process, e.state, r.worker, e.started_at
     from revocations r join ended e on e.id = r.job join lanes l on l.lane = e.lane
     where r.tenant = $1 and e.subject = $2 limit 100"]);
const RUNTIME: Sql = Sql::both(&["select name from runtimes where tenant = $1 and name = $2"]);
const DELETE: Sql = Sql::new(
    &[
        "delete from standings where tenant = $1 and subject = $2",
        "delete from backoffs where tenant = $1 and subject = $2",
        "delete from subject_credentials where tenant = $1 and subject = $2",
        "delete from subjects where tenant = $1 and id = $2",
    ],
    "with no_standings as (delete from standings where tenant = $1 and subject = $2),
     no_backoffs as (delete from backoffs where tenant = $1 and subject = $2),
     no_credentials as (delete from subject_credentials where tenant = $1 and subject = $2)
     delete from subjects where tenant = $1 and id = $2",
);

impl Operation for DeleteSubject {
    type Output = SubjectDeleted;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<SubjectDeleted, StoreError> {
        let subject = self.id.as_str();
        if subjects::lock(tx, self.tenant, &[subject]).await?.is_empty() {
            return Ok(SubjectDeleted::NotFound);
        }
        if let Some(runtime) = RuntimeName::of_subject(subject)
            && tx.query_opt(&RUNTIME, &[Param::Int(self.tenant.0), Param::Text(runtime.as_str())]).await?.is_some()
        {
            return Ok(SubjectDeleted::OfRuntime(runtime));
        }
        let id = [Param::Int(self.tenant.0), Param::Text(subject)];
        tx.query(&LOCK_STANDINGS, &id).await?;
        let mut work = live_work(tx, self.tenant, subject).await?;
        let revoked = tx.query(&REVOKED, &id).await?;
        work.extend(revoked.iter().map(LiveWork::read).collect::<Result<Vec<_>, _>>()?);
        if !work.is_empty() {
            return Ok(SubjectDeleted::Busy(work));
        }
        tx.execute(&DELETE, &id).await?;
        let entry = Entry { actor: Some(&self.actor), ..Entry::of_subject(self.tenant, subject, "deleted") };
        timeline::write(tx, &[entry]).await?;
        Ok(SubjectDeleted::Deleted)
    }
}

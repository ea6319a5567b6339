//! Deletes a subject with its facts, backoffs and credentials. Its timeline stays (W6). Not while work is under way.

use domain::{Label, RuntimeName, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::subjects;
use crate::subjects::get::{LiveWork, live_work};
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubjectDeleted {
    Deleted,
    /// Nothing was deleted: these are unfinished, or still in a worker's hands.
    Busy(Vec<LiveWork>),
    /// It is a runtime's, which is still declared.
    OfRuntime(RuntimeName),
    NotFound,
}

impl Store {
    pub async fn delete_subject(
        &self,
        tenant: TenantId,
        id: Label,
        actor: String,
    ) -> Result<SubjectDeleted, StoreError> {
        self.write(Delete { tenant, id, actor }).await
    }
}

struct Delete {
    tenant: TenantId,
    id: Label,
    actor: String,
}

// Locking the standings keeps the scan from making a job in between.
const LOCK_STANDINGS: Sql = Sql::new(
    &["select process from standings where tenant = $1 and subject = $2"],
    "select process from standings where tenant = $1 and subject = $2 order by process for update",
);
// Called off, but the worker has not let go.
const REVOKED: Sql = Sql::both(&["select e.id, coalesce(e.process, l.kind), e.state, r.worker, e.started_at
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

impl Operation for Delete {
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
        let read = |row: &Row| {
            Ok(LiveWork {
                job: row.job(0)?,
                process: row.text(1)?,
                state: row.text(2)?,
                worker: Some(domain::WorkerId::new(row.uuid(3)?)),
                started_at: row.opt_time(4)?,
            })
        };
        work.extend(revoked.iter().map(read).collect::<Result<Vec<_>, StoreError>>()?);
        if !work.is_empty() {
            return Ok(SubjectDeleted::Busy(work));
        }
        tx.execute(&DELETE, &id).await?;
        let entry = Entry { actor: Some(&self.actor), ..Entry::of_subject(self.tenant, subject, "deleted") };
        timeline::write(tx, &[entry]).await?;
        Ok(SubjectDeleted::Deleted)
    }
}

//! Reads one dead letter.

use domain::{DeadLetterId, JobId, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::dead_letters::{DeadLetter, handlers, read};

impl Store {
    pub async fn dead_letter(&self, tenant: TenantId, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.read(GetDeadLetter { tenant, id }).await
    }

    /// Returns the dead letter of a failed job, if it has one.
    pub async fn dead_letter_of(&self, tenant: TenantId, job: JobId) -> Result<Option<DeadLetterId>, StoreError> {
        self.read(FindDeadLetterOfJob { tenant, job }).await
    }
}

struct GetDeadLetter {
    tenant: TenantId,
    id: DeadLetterId,
}

const GET: Sql =
    Sql::both(&["select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth,
         attempts, last_error, created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
     from dead_letters where id = $1 and tenant = $2"]);
const GET_LOCKED: Sql = Sql::new(
    &["select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
           created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
       from dead_letters where id = $1 and tenant = $2"],
    "select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
         created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
     from dead_letters where id = $1 and tenant = $2 for update",
);

impl Operation for GetDeadLetter {
    type Output = Option<DeadLetter>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<DeadLetter>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Uuid(self.id.uuid()), Param::Int(self.tenant.0)]).await?;
        let Some(row) = row else { return Ok(None) };
        let mut letters = [read(&row)?];
        handlers::load(tx, &mut letters).await?;
        Ok(letters.into_iter().next())
    }
}

/// Reads a letter and locks its row until the end of the transaction, so that concurrent changes of it serialize.
pub(crate) async fn lock(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
) -> Result<Option<DeadLetter>, StoreError> {
    let row = tx.query_opt(&GET_LOCKED, &[Param::Uuid(id.uuid()), Param::Int(tenant.0)]).await?;
    row.as_ref().map(read).transpose()
}

struct FindDeadLetterOfJob {
    tenant: TenantId,
    job: JobId,
}

const OF_JOB: Sql = Sql::both(&["select id from dead_letters where job = $1 and tenant = $2 and queue is not null"]);

impl Operation for FindDeadLetterOfJob {
    type Output = Option<DeadLetterId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<DeadLetterId>, StoreError> {
        let row = tx.query_opt(&OF_JOB, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        row.map(|row| row.uuid("id").map(DeadLetterId::new)).transpose()
    }
}

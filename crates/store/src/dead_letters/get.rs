//! One dead letter.

use domain::{DeadLetterId, JobId, TenantId};

use crate::dead_letters::{DeadLetter, read};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn dead_letter(&self, tenant: TenantId, id: DeadLetterId) -> Result<Option<DeadLetter>, StoreError> {
        self.read(Get { tenant, id }).await
    }

    /// The letter of a job, if it left one.
    pub async fn dead_letter_of(&self, tenant: TenantId, job: JobId) -> Result<Option<DeadLetterId>, StoreError> {
        self.read(OfJob { tenant, job }).await
    }
}

struct Get {
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

impl Operation for Get {
    type Output = Option<DeadLetter>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<DeadLetter>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Uuid(self.id.uuid()), Param::Int(self.tenant.0)]).await?;
        row.as_ref().map(read).transpose()
    }
}

/// The letter, locked until the end of the transaction: of two who deal with it, the second sees what the first did.
pub(crate) async fn lock(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    id: DeadLetterId,
) -> Result<Option<DeadLetter>, StoreError> {
    let row = tx.query_opt(&GET_LOCKED, &[Param::Uuid(id.uuid()), Param::Int(tenant.0)]).await?;
    row.as_ref().map(read).transpose()
}

struct OfJob {
    tenant: TenantId,
    job: JobId,
}

const OF_JOB: Sql = Sql::both(&["select id from dead_letters where job = $1 and tenant = $2 and queue is not null"]);

impl Operation for OfJob {
    type Output = Option<DeadLetterId>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<DeadLetterId>, StoreError> {
        let row = tx.query_opt(&OF_JOB, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        row.map(|row| row.uuid(0).map(DeadLetterId::new)).transpose()
    }
}

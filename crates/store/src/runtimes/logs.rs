//! Transfers a container's log from its node to another node through the database. `read` is the reading side, `serve`
//! the node that has the container. A part is deleted when it is read, a reading when its reader closes it or times
//! out.

pub mod read;
pub mod serve;

use domain::TenantId;
use domain::limits::{LOG_IDLE_TIMEOUT_S, LOG_READING_RETENTION_S, MAINTENANCE_ROWS};
use domain::runtimes::OperationCode;
use uuid::Uuid;

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Identifies one transfer of a log to one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReading {
    pub tenant: TenantId,
    pub id: Uuid,
}

/// Why the engine did not return the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFault {
    pub code: OperationCode,
    pub message: String,
}

impl LogReading {
    fn params(&self) -> [Param<'static>; 2] {
        [Param::Uuid(self.id), Param::Int(self.tenant.0)]
    }
}

/// Returns the time before which a reader's last renewal means that the reader has disappeared.
fn reader_timeout(tx: &Tx<'_>) -> Param<'static> {
    Param::Time(tx.now().plus_s(-LOG_IDLE_TIMEOUT_S))
}

impl Store {
    /// Deletes one bounded batch of readings that both sides have abandoned. Returns the number of readings deleted.
    pub async fn prune_log_readings(&self) -> Result<u64, StoreError> {
        self.write(PruneLogReadings).await
    }
}

struct PruneLogReadings;

const DELETE: Sql = Sql::both(&["delete from log_readings where read_at < $1 and id in (
         select id from log_readings where read_at < $1 order by id limit $2)
     returning id"]);
const DELETE_PARTS: Sql =
    Sql::new(&["delete from log_parts where reading = $1"], "delete from log_parts where reading = any($1::uuid[])");

impl Operation for PruneLogReadings {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let before = Param::Time(tx.now().plus_s(-LOG_READING_RETENTION_S));
        let rows = tx.query(&DELETE, &[before, Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        let deleted = rows.iter().map(|row| row.uuid("id")).collect::<Result<Vec<_>, _>>()?;
        tx.execute_each(&DELETE_PARTS, &[Column::uuids(deleted.iter().copied())], &[]).await?;
        Ok(deleted.len() as u64)
    }
}

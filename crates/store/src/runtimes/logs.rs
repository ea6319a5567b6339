//! The log of a container on another node, on its way through the database (R9): `read` is the side that asks, `serve` the
//! node that has the container. Parts are gone once they are read, readings once nobody is left at them.

pub mod read;
pub mod serve;

use domain::TenantId;
use domain::limits::{LOG_READING_KEPT_S, LOG_SILENCE_S, MAINTENANCE_ROWS};
use domain::runtime::OperationCode;
use uuid::Uuid;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// Someone reads a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReading {
    pub tenant: TenantId,
    pub id: Uuid,
}

/// Why an engine does not tell a log.
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

/// Who was heard last before this is gone.
fn gone_before(tx: &Tx<'_>) -> Param<'static> {
    Param::Time(tx.now().plus_s(-LOG_SILENCE_S))
}

impl Store {
    /// Forgets what both sides left behind.
    pub async fn prune_log_readings(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct Prune;

const FORGET: Sql = Sql::both(&["delete from log_readings where read_at < $1 and id in (
         select id from log_readings where read_at < $1 order by id limit $2)
     returning id"]);
const FORGET_PARTS: Sql =
    Sql::new(&["delete from log_parts where reading = $1"], "delete from log_parts where reading = any($1::uuid[])");

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let before = Param::Time(tx.now().plus_s(-LOG_READING_KEPT_S));
        let rows = tx.query(&FORGET, &[before, Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        let gone = rows.iter().map(|row| row.uuid(0)).collect::<Result<Vec<_>, _>>()?;
        tx.execute_each(&FORGET_PARTS, &[Column::uuids(gone.iter().copied())], &[]).await?;
        Ok(gone.len() as u64)
    }
}

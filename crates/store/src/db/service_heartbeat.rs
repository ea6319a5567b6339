//! The heartbeat of the service. It reveals downtime of all nodes, which must not count against leases, timeouts or the
//! age of facts.

use domain::Time;
use domain::limits::SERVICE_HEARTBEAT_MS;
use domain::queue::lease::{service_since, service_since_at_start};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Records that a node serves. Returns true if this ends a downtime.
    pub async fn beat(&self) -> Result<bool, StoreError> {
        self.write(RecordHeartbeat { since: service_since }).await
    }

    /// Records the first heartbeat of a starting node. On SQLite it always ends a downtime, however short, because no
    /// other node can have served.
    pub async fn first_beat(&self) -> Result<bool, StoreError> {
        let single_node = |_, _, now| now;
        self.write(RecordHeartbeat { since: if self.is_postgres() { service_since_at_start } else { single_node } })
            .await
    }
}

struct RecordHeartbeat {
    /// Computes the start of the service period from the stored start, the last heartbeat and the current time.
    since: fn(Time, Time, Time) -> Time,
}

const SERVED: Sql = Sql::both(&["select since, beat_at from service where id = 1"]);

/// Returns since when the service has been up. During a downtime, before the next heartbeat, this is the current time.
pub(crate) async fn served_since(tx: &mut Tx<'_>) -> Result<Time, StoreError> {
    let row = tx.query_opt(&SERVED, &[]).await?;
    let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
    Ok(service_since(row.time("since")?, row.time("beat_at")?, tx.now()))
}

const READ: Sql = Sql::new(
    &["select since, beat_at from service where id = 1"],
    "select since, beat_at from service where id = 1 for update",
);
const WRITE: Sql = Sql::both(&["update service set since = $1, beat_at = $2 where id = 1"]);

impl Operation for RecordHeartbeat {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = tx.now();
        let row = tx.query_opt(&READ, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
        let (since, last) = (row.time("since")?, row.time("beat_at")?);
        let new = (self.since)(since, last, now);
        // Another node may have written a heartbeat just now.
        if new == since && now.ms_since(last) < SERVICE_HEARTBEAT_MS / 2 && now >= last {
            return Ok(false);
        }
        tx.execute(&WRITE, &[Param::Time(new), Param::Time(now)]).await?;
        Ok(new != since)
    }
}

//! The service's own heartbeat: how an outage of ours is noticed, so that it burns nobody's attempts.

use domain::Time;
use domain::lease::{service_since, service_since_at_start};
use domain::limits::SERVICE_BEAT_MS;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Says that a node serves. Gives whether this ended an outage.
    pub async fn beat(&self) -> Result<bool, StoreError> {
        self.write(Beat { since: service_since }).await
    }

    /// The first beat of a node that starts. On SQLite it ends an outage, however short: no other node can have served.
    pub async fn first_beat(&self) -> Result<bool, StoreError> {
        let alone = |_, _, now| now;
        self.write(Beat { since: if self.is_postgres() { service_since_at_start } else { alone } }).await
    }
}

struct Beat {
    /// From since when, the last beat and now.
    since: fn(Time, Time, Time) -> Time,
}

const SERVED: Sql = Sql::both(&["select since, beat_at from service where id = 1"]);

/// Since when service has been up. In an outage that no beat has ended yet, that is only now.
pub(crate) async fn served_since(tx: &mut Tx<'_>) -> Result<Time, StoreError> {
    let row = tx.query_opt(&SERVED, &[]).await?;
    let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
    Ok(service_since(row.time(0)?, row.time(1)?, tx.now()))
}

const READ: Sql = Sql::new(
    &["select since, beat_at from service where id = 1"],
    "select since, beat_at from service where id = 1 for update",
);
const WRITE: Sql = Sql::both(&["update service set since = $1, beat_at = $2 where id = 1"]);

impl Operation for Beat {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = tx.now();
        let row = tx.query_opt(&READ, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
        let (since, last) = (row.time(0)?, row.time(1)?);
        let new = (self.since)(since, last, now);
        // Another node may have said it just now.
        if new == since && now.ms_since(last) < SERVICE_BEAT_MS / 2 && now >= last {
            return Ok(false);
        }
        tx.execute(&WRITE, &[Param::Time(new), Param::Time(now)]).await?;
        Ok(new != since)
    }
}

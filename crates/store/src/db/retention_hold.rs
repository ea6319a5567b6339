//! Holds retention back while the clock is in doubt. A clock that is days ahead makes every row look old, and what is deleted
//! by mistake does not come back when the clock is corrected. Called by the tasks that delete by age.

use std::time::Instant;

use domain::Time;
use domain::limits::{CLOCK_STEP_MS, RETENTION_HOLD_S, UNSERVED_IN_DOUBT_MS};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// The time of the database, and when it was read on the monotonic clock of this node.
#[derive(Clone, Copy, Debug)]
pub struct ClockReading {
    pub at: Time,
    read_at: Instant,
}

impl ClockReading {
    /// How far the clock was set forward between the two readings, if that is more than the clocks of two nodes can differ.
    pub fn forward_step_ms(&self, earlier: &ClockReading) -> Option<i64> {
        let elapsed_ms = self.read_at.duration_since(earlier.read_at).as_millis() as i64;
        Some(self.at.ms_since(earlier.at) - elapsed_ms).filter(|ahead_ms| *ahead_ms > CLOCK_STEP_MS)
    }
}

impl Store {
    pub async fn read_clock(&self) -> Result<ClockReading, StoreError> {
        let at = self.read(ReadClock).await?;
        Ok(ClockReading { at, read_at: Instant::now() })
    }

    /// Returns until when nothing may be deleted by age, if that is later than now.
    pub async fn retention_held_until(&self) -> Result<Option<Time>, StoreError> {
        self.read(ReadRetentionHold).await
    }

    /// Makes all nodes delete nothing by age for `RETENTION_HOLD_S`.
    pub async fn hold_retention(&self) -> Result<(), StoreError> {
        self.write(HoldRetention).await
    }

    /// Holds retention if the last heartbeat is so old that the clock may have been set forward while no node served. Call it
    /// before the first heartbeat of a node. Returns whether it is held for that reason.
    pub async fn hold_retention_after_a_gap(&self) -> Result<bool, StoreError> {
        let is_in_doubt = self.read(ReadGap).await? > UNSERVED_IN_DOUBT_MS;
        if is_in_doubt {
            self.hold_retention().await?;
        }
        Ok(is_in_doubt)
    }
}

struct ReadClock;

impl Operation for ReadClock {
    type Output = Time;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Time, StoreError> {
        Ok(tx.now())
    }
}

struct ReadRetentionHold;

const HOLD: Sql = Sql::both(&["select retention_held_until from service where id = 1 and retention_held_until > $1"]);

impl Operation for ReadRetentionHold {
    type Output = Option<Time>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Time>, StoreError> {
        let now = tx.now();
        tx.query_opt(&HOLD, &[Param::Time(now)]).await?.map(|row| row.time("retention_held_until")).transpose()
    }
}

struct HoldRetention;

const SET_HOLD: Sql = Sql::both(&["update service set retention_held_until = $1 where id = 1"]);

impl Operation for HoldRetention {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let until = tx.now().plus_s(RETENTION_HOLD_S);
        tx.execute(&SET_HOLD, &[Param::Time(until)]).await?;
        Ok(())
    }
}

struct ReadGap;

const LAST_HEARTBEAT: Sql = Sql::both(&["select beat_at from service where id = 1"]);

impl Operation for ReadGap {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&LAST_HEARTBEAT, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
        Ok(tx.now().ms_since(row.time("beat_at")?))
    }
}

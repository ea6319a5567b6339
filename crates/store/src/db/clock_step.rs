//! Repairs stored times after the database clock was set back. Leases, retry times and schedule slots that were written
//! while the clock was ahead would otherwise last for as long as the step. They are recomputed from the current time.
//! Backoffs of subjects are not changed.

use domain::TriggerId;
use domain::limits::{CIRCUIT_PAUSE_MAX_S, CLOCK_STEP_MS, DELIVERY_LEASE_MARGIN_MS, DISPATCH_LEASE_MS, POOL_LEASE_MS};
use domain::triggers::trigger::Source;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::filter;
use crate::triggers::schedule::Slots;

impl Store {
    /// Repairs stored times if the clock was set back, and returns the step in milliseconds. Must be called before the
    /// service heartbeat is written, because the step is detected by the last heartbeat being in the future.
    pub async fn repair_clock_step(&self) -> Result<Option<i64>, StoreError> {
        // The read avoids a write transaction in the normal case.
        match self.read(DetectClockStep).await? {
            Some(_) => self.write(RepairClockStep).await,
            None => Ok(None),
        }
    }
}

struct DetectClockStep;

const LAST_HEARTBEAT: Sql = Sql::both(&["select beat_at from service where id = 1"]);
const LOCK: Sql =
    Sql::new(&["select beat_at from service where id = 1"], "select beat_at from service where id = 1 for update");

impl Operation for DetectClockStep {
    type Output = Option<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<i64>, StoreError> {
        step(tx, &LAST_HEARTBEAT).await
    }
}

/// Returns how far the last heartbeat is in the future, if it is more than the clocks of two nodes can differ.
async fn step(tx: &mut Tx<'_>, last_beat: &Sql) -> Result<Option<i64>, StoreError> {
    let row = tx.query_opt(last_beat, &[]).await?;
    let row = row.ok_or_else(|| StoreError::unexpected("the service row is missing"))?;
    Ok(Some(row.time("beat_at")?.ms_since(tx.now())).filter(|ahead_ms| *ahead_ms > CLOCK_STEP_MS))
}

struct RepairClockStep;

// Each statement limits a time to now plus its own maximum term.
const WORKERS: Sql = Sql::new(
    &["update workers set lease_until = $1 + lease_ms * 1000
       where dead_at is null and lease_until > $1 + lease_ms * 1000"],
    "update workers set lease_until = $1::timestamptz + lease_ms * interval '1 millisecond'
     where dead_at is null and lease_until > $1::timestamptz + lease_ms * interval '1 millisecond'",
);
const OUTBOX: Sql = Sql::new(
    &["update outbox set due_at = $1 + max(coalesce(wait_s, 0) * 1000, $2) * 1000
       where due_at > $1 + max(coalesce(wait_s, 0) * 1000, $2) * 1000"],
    "update outbox set due_at = $1::timestamptz
         + greatest(coalesce(wait_s, 0) * 1000, $2::bigint) * interval '1 millisecond'
     where due_at > $1::timestamptz + greatest(coalesce(wait_s, 0) * 1000, $2::bigint) * interval '1 millisecond'",
);
const DELIVERIES: Sql = Sql::new(
    &["update deliveries set due_at = $1 + max(coalesce(wait_s, 0) * 1000, timeout_ms + $2) * 1000
       where due_at > $1 + max(coalesce(wait_s, 0) * 1000, timeout_ms + $2) * 1000"],
    "update deliveries set due_at = $1::timestamptz
         + greatest(coalesce(wait_s, 0) * 1000, timeout_ms + $2::bigint) * interval '1 millisecond'
     where due_at > $1::timestamptz
         + greatest(coalesce(wait_s, 0) * 1000, timeout_ms + $2::bigint) * interval '1 millisecond'",
);
const CIRCUITS: Sql = Sql::both(&["update endpoints set open_until = $1 where open_until > $1"]);
const POOLS: Sql = Sql::both(&["update pools set lease_until = $1 where lease_until > $1"]);
// Retries and snoozes only: a `run_at` that the producer set is not changed.
const JOBS: Sql = Sql::new(
    &["update jobs set run_at = $1 + (due_at - updated_at), due_at = $1 + (due_at - updated_at), version = version + 1,
           updated_at = $1
       where due_at is not null and updated_at > $1 and updated_at > created_at"],
    "update jobs set run_at = $1::timestamptz + (due_at - updated_at), due_at = $1::timestamptz + (due_at - updated_at),
         version = version + 1, updated_at = $1::timestamptz
     where due_at is not null and updated_at > $1::timestamptz and updated_at > created_at",
);
// Lanes are ordered by `run_at`. Jobs enqueued while the clock was ahead would otherwise come after all new jobs.
const WAITING: Sql =
    Sql::both(&["update jobs set run_at = $1 where due_at is null and worker is null and run_at > $1"]);
const ATTEMPT_TIMEOUTS: Sql = Sql::new(
    &["update jobs set deadline_at = $1 + (deadline_at - started_at)
       where deadline_at is not null and started_at > $1"],
    "update jobs set deadline_at = $1::timestamptz + (deadline_at - started_at)
     where deadline_at is not null and started_at > $1::timestamptz",
);
// A correction of the clock ends the doubt about it.
const END_HOLD: Sql = Sql::both(&["update service set retention_held_until = null where retention_held_until > $1"]);
const SET_HEARTBEAT: Sql = Sql::both(&["update service set beat_at = $1 where id = 1"]);

impl Operation for RepairClockStep {
    type Output = Option<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<i64>, StoreError> {
        // Another node may have repaired it in the meantime.
        let Some(ahead_ms) = step(tx, &LOCK).await? else { return Ok(None) };
        let now = tx.now();
        let from_now = Param::Time(now);
        tx.execute(&WORKERS, &[from_now]).await?;
        for jobs in [&JOBS, &WAITING, &ATTEMPT_TIMEOUTS] {
            tx.execute(jobs, &[from_now]).await?;
        }
        tx.execute(&OUTBOX, &[from_now, Param::Int(DISPATCH_LEASE_MS)]).await?;
        tx.execute(&DELIVERIES, &[from_now, Param::Int(DELIVERY_LEASE_MARGIN_MS)]).await?;
        tx.execute(&CIRCUITS, &[Param::Time(now.plus_s(CIRCUIT_PAUSE_MAX_S))]).await?;
        tx.execute(&POOLS, &[Param::Time(now.plus_ms(POOL_LEASE_MS))]).await?;
        repair_schedules(tx).await?;
        tx.execute(&END_HOLD, &[from_now]).await?;
        tx.execute(&SET_HEARTBEAT, &[from_now]).await?;
        Ok(Some(ahead_ms))
    }
}

const SCHEDULES: Sql = Sql::both(&["select id, filter from triggers where next_at > $1"]);
const NEXT_AT: Sql = Sql::both(&["update triggers set next_at = $2 where id = $1 and next_at > $2"]);

/// Recomputes the next slot of each schedule. A schedule that cannot be decoded is skipped.
async fn repair_schedules(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let now = tx.now();
    for row in tx.query(&SCHEDULES, &[Param::Time(now)]).await? {
        let id = TriggerId::new(row.uuid("id")?);
        let filter = filter::read(Source::Cron, id, &row.text("filter")?).ok();
        let slots = filter.and_then(|filter| filter.schedule).and_then(|schedule| Slots::read(&schedule).ok());
        if let Some(next) = slots.and_then(|slots| slots.after(now)) {
            tx.execute(&NEXT_AT, &[Param::Uuid(id.uuid()), Param::Time(next)]).await?;
        }
    }
    Ok(())
}

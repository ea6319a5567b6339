//! Folds the rows of `counter_deltas` into one row per queue and one row per minute, and verifies the stored counters
//! against the jobs. The engine's background tasks and `windlass verify` call it.

use domain::{Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Folds pending changes. Returns the number of folded rows.
    pub async fn fold_counters(&self) -> Result<u64, StoreError> {
        self.write(FoldCounters).await
    }

    /// Returns the queues whose stored counters differ from the live jobs. Scans all live jobs. One statement reads
    /// one snapshot, so writers are not blocked.
    pub async fn check_counters(&self) -> Result<Vec<CounterMismatch>, StoreError> {
        self.read(CheckCounters).await
    }

    /// Runs [`Store::check_counters`] unless another node is running it. `None` means that another node is.
    pub async fn try_check_counters(&self) -> Result<Option<Vec<CounterMismatch>>, StoreError> {
        self.read(TryCheckCounters).await
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterMismatch {
    pub tenant: TenantId,
    pub queue: Name,
    /// Stored counts: scheduled, queued, running, waiting.
    pub stored: [i64; 4],
    /// Counts of the live jobs, in the same order.
    pub counted: [i64; 4],
}

struct FoldCounters;

const FOLD: Sql = Sql::new(
    &[
        "insert into counters (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided, waiting)
         select tenant, queue, sum(scheduled), sum(queued), sum(running), sum(succeeded), sum(failed), sum(canceled),
             sum(swaps_made), sum(swaps_avoided), sum(waiting)
         from counter_deltas where id <= $1 group by tenant, queue
         on conflict (tenant, queue) do update set scheduled = counters.scheduled + excluded.scheduled,
             queued = counters.queued + excluded.queued, running = counters.running + excluded.running,
             succeeded = counters.succeeded + excluded.succeeded, failed = counters.failed + excluded.failed,
             canceled = counters.canceled + excluded.canceled, swaps_made = counters.swaps_made + excluded.swaps_made,
             swaps_avoided = counters.swaps_avoided + excluded.swaps_avoided,
             waiting = counters.waiting + excluded.waiting",
        "insert into throughput (tenant, minute_at, queue, enqueued, succeeded, failed)
         select tenant, $2, queue, sum(waiting + scheduled + queued + running + succeeded + failed + canceled), sum(succeeded),
             sum(failed)
         from counter_deltas where id <= $1 group by tenant, queue
         on conflict (tenant, minute_at, queue) do update set enqueued = throughput.enqueued + excluded.enqueued,
             succeeded = throughput.succeeded + excluded.succeeded, failed = throughput.failed + excluded.failed",
        "delete from counter_deltas where id <= $1",
    ],
    "with folded as (
         delete from counter_deltas where id in (
             select id from counter_deltas where id <= $1 order by id limit 10000 for update skip locked)
         returning *),
     totals as (
         insert into counters (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided, waiting)
         select tenant, queue, sum(scheduled), sum(queued), sum(running), sum(succeeded), sum(failed), sum(canceled),
             sum(swaps_made), sum(swaps_avoided), sum(waiting)
         from folded group by tenant, queue order by tenant, queue
         on conflict (tenant, queue) do update set scheduled = counters.scheduled + excluded.scheduled,
             queued = counters.queued + excluded.queued, running = counters.running + excluded.running,
             succeeded = counters.succeeded + excluded.succeeded, failed = counters.failed + excluded.failed,
             canceled = counters.canceled + excluded.canceled, swaps_made = counters.swaps_made + excluded.swaps_made,
             swaps_avoided = counters.swaps_avoided + excluded.swaps_avoided,
             waiting = counters.waiting + excluded.waiting),
     applied as (
         insert into throughput (tenant, minute_at, queue, enqueued, succeeded, failed)
         select tenant, $2, queue, sum(waiting + scheduled + queued + running + succeeded + failed + canceled), sum(succeeded),
             sum(failed)
         from folded group by tenant, queue order by tenant, queue
         on conflict (tenant, minute_at, queue) do update set enqueued = throughput.enqueued + excluded.enqueued,
             succeeded = throughput.succeeded + excluded.succeeded, failed = throughput.failed + excluded.failed)
     select count(*) from folded",
);
const NEWEST: Sql = Sql::both(&["select coalesce(max(id), 0) as newest, count(*) as deltas from counter_deltas"]);

impl Operation for FoldCounters {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        // Only one transaction folds at a time; two would wait for each other's rows.
        tx.lock(&["windlass fold counters"]).await?;
        let row = tx.query_opt(&NEWEST, &[]).await?;
        let (newest, count) = row
            .map(|row| Ok::<_, StoreError>((row.int("newest")?, row.int("deltas")?)))
            .transpose()?
            .unwrap_or_default();
        if count == 0 {
            return Ok(0);
        }
        tx.query(&FOLD, &[Param::Int(newest), Param::Time(minute(tx.now()))]).await?;
        Ok(count as u64)
    }
}

/// Returns the start of the minute that contains `at`.
pub(crate) fn minute(at: Time) -> Time {
    Time::from_seconds(at.millis().div_euclid(60_000) * 60)
}

struct CheckCounters;

const CHECK: Sql = Sql::new(
    &["select tenant, queue, sum(ks) as stored_scheduled, sum(kq) as stored_queued, sum(kr) as stored_running,
           sum(kw) as stored_waiting, sum(cs) as counted_scheduled, sum(cq) as counted_queued,
           sum(cr) as counted_running, sum(cw) as counted_waiting
       from (
           select tenant, queue, scheduled as ks, queued as kq, running as kr, waiting as kw,
               0 as cs, 0 as cq, 0 as cr, 0 as cw from counters
           union all
           select tenant, queue, scheduled, queued, running, waiting, 0, 0, 0, 0 from counter_deltas
           union all
           select l.tenant, l.queue, 0, 0, 0, 0, sum(j.state = 'scheduled'), sum(j.state = 'queued'),
               sum(j.state in ('loading', 'working')), sum(j.state = 'waiting')
           from jobs j join lanes l on l.lane = j.lane group by l.tenant, l.queue)
       group by tenant, queue
       having sum(ks) <> sum(cs) or sum(kq) <> sum(cq) or sum(kr) <> sum(cr) or sum(kw) <> sum(cw)"],
    "select tenant, queue, sum(ks)::bigint as stored_scheduled, sum(kq)::bigint as stored_queued,
         sum(kr)::bigint as stored_running, sum(kw)::bigint as stored_waiting, sum(cs)::bigint as counted_scheduled,
         sum(cq)::bigint as counted_queued, sum(cr)::bigint as counted_running, sum(cw)::bigint as counted_waiting
     from (
         select tenant, queue, scheduled as ks, queued as kq, running as kr, waiting as kw, 0::bigint as cs,
             0::bigint as cq, 0::bigint as cr, 0::bigint as cw from counters
         union all
         select tenant, queue, scheduled, queued, running, waiting, 0, 0, 0, 0 from counter_deltas
         union all
         select l.tenant, l.queue, 0, 0, 0, 0, count(*) filter (where j.state = 'scheduled'),
             count(*) filter (where j.state = 'queued'), count(*) filter (where j.state in ('loading', 'working')),
             count(*) filter (where j.state = 'waiting')
         from jobs j join lanes l on l.lane = j.lane group by l.tenant, l.queue) both_sides
     group by tenant, queue
     having sum(ks) <> sum(cs) or sum(kq) <> sum(cq) or sum(kr) <> sum(cr) or sum(kw) <> sum(cw)",
);

impl Operation for CheckCounters {
    type Output = Vec<CounterMismatch>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<CounterMismatch>, StoreError> {
        tx.allow_all_plans().await?;
        let rows = tx.query(&CHECK, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(CounterMismatch {
                    tenant: TenantId(row.int("tenant")?),
                    queue: Name::stored(&row.text("queue")?),
                    stored: [
                        row.int("stored_scheduled")?,
                        row.int("stored_queued")?,
                        row.int("stored_running")?,
                        row.int("stored_waiting")?,
                    ],
                    counted: [
                        row.int("counted_scheduled")?,
                        row.int("counted_queued")?,
                        row.int("counted_running")?,
                        row.int("counted_waiting")?,
                    ],
                })
            })
            .collect()
    }
}

struct TryCheckCounters;

impl Operation for TryCheckCounters {
    type Output = Option<Vec<CounterMismatch>>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        match tx.try_lock("windlass check counters").await? {
            true => CheckCounters.run(tx).await.map(Some),
            false => Ok(None),
        }
    }
}

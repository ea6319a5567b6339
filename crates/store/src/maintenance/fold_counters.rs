//! Folds what each commit appended into one row per queue and one per minute, and checks the kept figures against the jobs
//! themselves.

use domain::{Name, TenantId, Time};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Gives how many rows were folded.
    pub async fn fold_counters(&self) -> Result<u64, StoreError> {
        self.write(Fold).await
    }

    /// Queues whose kept figures are not what the live jobs say. Looks at every live job: for `verify` and a slow task. One
    /// statement sees one moment, so nobody's writing waits for it.
    pub async fn check_counters(&self) -> Result<Vec<CounterFault>, StoreError> {
        self.read(Check).await
    }

    /// The same, unless another node is at it.
    pub async fn check_counters_alone(&self) -> Result<Option<Vec<CounterFault>>, StoreError> {
        self.read(CheckAlone).await
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterFault {
    pub tenant: TenantId,
    pub queue: Name,
    /// Kept and counted: scheduled, queued, running.
    pub kept: [i64; 3],
    pub counted: [i64; 3],
}

struct Fold;

const FOLD: Sql = Sql::new(
    &[
        "insert into counters (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided)
         select tenant, queue, sum(scheduled), sum(queued), sum(running), sum(succeeded), sum(failed), sum(canceled),
             sum(swaps_made), sum(swaps_avoided)
         from counter_deltas where id <= $1 group by tenant, queue
         on conflict (tenant, queue) do update set scheduled = counters.scheduled + excluded.scheduled,
             queued = counters.queued + excluded.queued, running = counters.running + excluded.running,
             succeeded = counters.succeeded + excluded.succeeded, failed = counters.failed + excluded.failed,
             canceled = counters.canceled + excluded.canceled, swaps_made = counters.swaps_made + excluded.swaps_made,
             swaps_avoided = counters.swaps_avoided + excluded.swaps_avoided",
        "insert into throughput (tenant, minute_at, queue, enqueued, succeeded, failed)
         select tenant, $2, queue, sum(scheduled + queued + running + succeeded + failed + canceled), sum(succeeded),
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
     kept as (
         insert into counters (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided)
         select tenant, queue, sum(scheduled), sum(queued), sum(running), sum(succeeded), sum(failed), sum(canceled),
             sum(swaps_made), sum(swaps_avoided)
         from folded group by tenant, queue order by tenant, queue
         on conflict (tenant, queue) do update set scheduled = counters.scheduled + excluded.scheduled,
             queued = counters.queued + excluded.queued, running = counters.running + excluded.running,
             succeeded = counters.succeeded + excluded.succeeded, failed = counters.failed + excluded.failed,
             canceled = counters.canceled + excluded.canceled, swaps_made = counters.swaps_made + excluded.swaps_made,
             swaps_avoided = counters.swaps_avoided + excluded.swaps_avoided),
     told as (
         insert into throughput (tenant, minute_at, queue, enqueued, succeeded, failed)
         select tenant, $2, queue, sum(scheduled + queued + running + succeeded + failed + canceled), sum(succeeded),
             sum(failed)
         from folded group by tenant, queue order by tenant, queue
         on conflict (tenant, minute_at, queue) do update set enqueued = throughput.enqueued + excluded.enqueued,
             succeeded = throughput.succeeded + excluded.succeeded, failed = throughput.failed + excluded.failed)
     select count(*) from folded",
);
const NEWEST: Sql = Sql::both(&["select coalesce(max(id), 0), count(*) from counter_deltas"]);

impl Operation for Fold {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        // One folder at a time: two would wait for each other's rows.
        tx.lock(&["windlass fold counters"]).await?;
        let row = tx.query_opt(&NEWEST, &[]).await?;
        let (newest, count) =
            row.map(|row| Ok::<_, StoreError>((row.int(0)?, row.int(1)?))).transpose()?.unwrap_or_default();
        if count == 0 {
            return Ok(0);
        }
        tx.query(&FOLD, &[Param::Int(newest), Param::Time(minute(tx.now()))]).await?;
        Ok(count as u64)
    }
}

/// The minute that a moment lies in.
pub(crate) fn minute(at: Time) -> Time {
    Time::from_seconds(at.millis().div_euclid(60_000) * 60)
}

struct Check;

const CHECK: Sql = Sql::new(
    &["select tenant, queue, sum(ks), sum(kq), sum(kr), sum(cs), sum(cq), sum(cr) from (
           select tenant, queue, scheduled as ks, queued as kq, running as kr, 0 as cs, 0 as cq, 0 as cr from counters
           union all
           select tenant, queue, scheduled, queued, running, 0, 0, 0 from counter_deltas
           union all
           select l.tenant, l.queue, 0, 0, 0, sum(j.state = 'scheduled'), sum(j.state = 'queued'),
               sum(j.state in ('loading', 'working'))
           from jobs j join lanes l on l.lane = j.lane group by l.tenant, l.queue)
       group by tenant, queue having sum(ks) <> sum(cs) or sum(kq) <> sum(cq) or sum(kr) <> sum(cr)"],
    "select tenant, queue, sum(ks)::bigint, sum(kq)::bigint, sum(kr)::bigint, sum(cs)::bigint, sum(cq)::bigint,
         sum(cr)::bigint
     from (
         select tenant, queue, scheduled as ks, queued as kq, running as kr, 0::bigint as cs, 0::bigint as cq,
             0::bigint as cr from counters
         union all
         select tenant, queue, scheduled, queued, running, 0, 0, 0 from counter_deltas
         union all
         select l.tenant, l.queue, 0, 0, 0, count(*) filter (where j.state = 'scheduled'),
             count(*) filter (where j.state = 'queued'), count(*) filter (where j.state in ('loading', 'working'))
         from jobs j join lanes l on l.lane = j.lane group by l.tenant, l.queue) both_sides
     group by tenant, queue having sum(ks) <> sum(cs) or sum(kq) <> sum(cq) or sum(kr) <> sum(cr)",
);

impl Operation for Check {
    type Output = Vec<CounterFault>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<CounterFault>, StoreError> {
        tx.read_whole().await?;
        let rows = tx.query(&CHECK, &[]).await?;
        rows.iter()
            .map(|row| {
                Ok(CounterFault {
                    tenant: TenantId(row.int(0)?),
                    queue: Name::stored(&row.text(1)?),
                    kept: [row.int(2)?, row.int(3)?, row.int(4)?],
                    counted: [row.int(5)?, row.int(6)?, row.int(7)?],
                })
            })
            .collect()
    }
}

struct CheckAlone;

impl Operation for CheckAlone {
    type Output = Option<Vec<CounterFault>>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        match tx.try_lock("windlass check counters").await? {
            true => Check.run(tx).await.map(Some),
            false => Ok(None),
        }
    }
}

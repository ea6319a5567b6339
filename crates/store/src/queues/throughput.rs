//! What came in and what ended, minute by minute, as the fold of the counters wrote it. Nothing is counted.

use std::collections::BTreeMap;

use domain::limits::{THROUGHPUT_MINUTES, THROUGHPUT_S};
use domain::{Name, TenantId, Time};

use crate::counters::Counts;
use crate::error::StoreError;
use crate::maintenance::fold_counters::minute;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// One minute of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    pub enqueued: i64,
    pub succeeded: i64,
    pub failed: i64,
}

/// The last hour: the beginning of each of its minutes, and what happened in each queue.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    pub minutes: Vec<Time>,
    pub by_queue: BTreeMap<Name, Vec<Minute>>,
}

impl Throughput {
    /// All queues together, a minute each.
    pub fn sums(&self) -> Vec<Minute> {
        let mut sums = vec![Minute::default(); self.minutes.len()];
        for minutes in self.by_queue.values() {
            for (sum, minute) in sums.iter_mut().zip(minutes) {
                sum.enqueued += minute.enqueued;
                sum.succeeded += minute.succeeded;
                sum.failed += minute.failed;
            }
        }
        sums
    }
}

impl Store {
    pub async fn throughput(&self, tenant: TenantId) -> Result<Throughput, StoreError> {
        self.read(Read { tenant }).await
    }

    /// The kept figures of all queues of a tenant together.
    pub async fn totals(&self, tenant: TenantId) -> Result<Counts, StoreError> {
        self.read(Totals { tenant }).await
    }

    /// Removes what is older than anyone asks for.
    pub async fn prune_throughput(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct Read {
    tenant: TenantId,
}

const SINCE: Sql = Sql::both(&["select minute_at, queue, enqueued, succeeded, failed from throughput
     where tenant = $1 and minute_at >= $2 order by minute_at, queue"]);

impl Operation for Read {
    type Output = Throughput;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Throughput, StoreError> {
        let last = minute(tx.now());
        let first = last.plus_s(-60 * (THROUGHPUT_MINUTES - 1));
        let minutes: Vec<Time> = (0..THROUGHPUT_MINUTES).map(|number| first.plus_s(60 * number)).collect();
        let mut by_queue: BTreeMap<Name, Vec<Minute>> = BTreeMap::new();
        for row in tx.query(&SINCE, &[Param::Int(self.tenant.0), Param::Time(first)]).await? {
            // A node whose clock is ahead may have written of a minute that has not begun here.
            let Some(place) = minutes.iter().position(|minute| row.time(0).is_ok_and(|at| at == *minute)) else {
                continue;
            };
            let queue =
                by_queue.entry(Name::stored(&row.text(1)?)).or_insert_with(|| vec![Minute::default(); minutes.len()]);
            queue[place] = Minute { enqueued: row.int(2)?, succeeded: row.int(3)?, failed: row.int(4)? };
        }
        Ok(Throughput { minutes, by_queue })
    }
}

struct Totals {
    tenant: TenantId,
}

const TOTALS: Sql = Sql::new(
    &["select coalesce(sum(scheduled), 0), coalesce(sum(queued), 0), coalesce(sum(running), 0),
           coalesce(sum(succeeded), 0), coalesce(sum(failed), 0), coalesce(sum(canceled), 0),
           coalesce(sum(swaps_made), 0), coalesce(sum(swaps_avoided), 0)
       from (select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
             from counters where tenant = $1
             union all
             select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
             from counter_deltas where tenant = $1)"],
    "select coalesce(sum(scheduled), 0)::bigint, coalesce(sum(queued), 0)::bigint, coalesce(sum(running), 0)::bigint,
         coalesce(sum(succeeded), 0)::bigint, coalesce(sum(failed), 0)::bigint, coalesce(sum(canceled), 0)::bigint,
         coalesce(sum(swaps_made), 0)::bigint, coalesce(sum(swaps_avoided), 0)::bigint
     from (select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
           from counters where tenant = $1
           union all
           select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
           from counter_deltas where tenant = $1) kept",
);

impl Operation for Totals {
    type Output = Counts;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Counts, StoreError> {
        let row = tx.query_opt(&TOTALS, &[Param::Int(self.tenant.0)]).await?;
        row.map(|row| Counts::at(&row, 0)).transpose().map(Option::unwrap_or_default)
    }
}

struct Prune;

const PRUNE: Sql = Sql::both(&["delete from throughput where minute_at < $1"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.execute(&PRUNE, &[Param::Time(tx.now().plus_s(-THROUGHPUT_S))]).await
    }
}

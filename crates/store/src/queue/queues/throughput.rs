//! Throughput per minute, as written by the fold of the counters. Nothing is counted at read time.

use std::collections::BTreeMap;

use domain::limits::{THROUGHPUT_MINUTES, THROUGHPUT_RETENTION_S};
use domain::{Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::Counts;
use crate::queue::fold_counters::minute;
use crate::store::Store;

/// Counts of one minute of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Minute {
    pub enqueued: i64,
    pub succeeded: i64,
    pub failed: i64,
}

/// The last hour: the start of each minute, and the counts of each queue by minute.
#[derive(Clone, Debug, Default)]
pub struct Throughput {
    pub minutes: Vec<Time>,
    pub by_queue: BTreeMap<Name, Vec<Minute>>,
}

impl Throughput {
    /// Returns the sum over all queues for each minute.
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
        self.read(ReadThroughput { tenant }).await
    }

    /// Returns the minutes of one queue since a time. A minute without jobs is missing.
    pub async fn queue_throughput(
        &self,
        tenant: TenantId,
        queue: Name,
        since: Time,
    ) -> Result<Vec<(Time, Minute)>, StoreError> {
        self.read(ReadQueueThroughput { tenant, queue, since }).await
    }

    /// Returns the sum of the stored counters of all queues of a tenant.
    pub async fn totals(&self, tenant: TenantId) -> Result<Counts, StoreError> {
        self.read(ReadTotals { tenant }).await
    }

    /// Deletes minutes older than `THROUGHPUT_RETENTION_S`.
    pub async fn prune_throughput(&self) -> Result<u64, StoreError> {
        self.write(PruneThroughput).await
    }
}

struct ReadThroughput {
    tenant: TenantId,
}

const SINCE: Sql = Sql::both(&["select minute_at, queue, enqueued, succeeded, failed from throughput
     where tenant = $1 and minute_at >= $2 order by minute_at, queue"]);

impl Operation for ReadThroughput {
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
            // A node whose clock is ahead may have written a minute that has not begun here.
            let Some(index) = minutes.iter().position(|minute| row.time("minute_at").is_ok_and(|at| at == *minute))
            else {
                continue;
            };
            let queue = by_queue
                .entry(Name::stored(&row.text("queue")?))
                .or_insert_with(|| vec![Minute::default(); minutes.len()]);
            queue[index] =
                Minute { enqueued: row.int("enqueued")?, succeeded: row.int("succeeded")?, failed: row.int("failed")? };
        }
        Ok(Throughput { minutes, by_queue })
    }
}

struct ReadQueueThroughput {
    tenant: TenantId,
    queue: Name,
    since: Time,
}

const OF_QUEUE: Sql = Sql::both(&["select minute_at, enqueued, succeeded, failed from throughput
     where tenant = $1 and queue = $2 and minute_at >= $3 order by minute_at limit $4"]);

impl Operation for ReadQueueThroughput {
    type Output = Vec<(Time, Minute)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let limit = Param::Int(THROUGHPUT_RETENTION_S / 60 + 60);
        let params = [Param::Int(self.tenant.0), Param::Text(self.queue.as_str()), Param::Time(self.since), limit];
        let minute = |row: &Row| {
            let counts =
                Minute { enqueued: row.int("enqueued")?, succeeded: row.int("succeeded")?, failed: row.int("failed")? };
            Ok((row.time("minute_at")?, counts))
        };
        tx.query(&OF_QUEUE, &params).await?.iter().map(minute).collect()
    }
}

struct ReadTotals {
    tenant: TenantId,
}

const TOTALS: Sql = Sql::new(
    &["select coalesce(sum(scheduled), 0) as scheduled, coalesce(sum(queued), 0) as queued,
           coalesce(sum(running), 0) as running, coalesce(sum(succeeded), 0) as succeeded,
           coalesce(sum(failed), 0) as failed, coalesce(sum(canceled), 0) as canceled,
           coalesce(sum(swaps_made), 0) as swaps_made, coalesce(sum(swaps_avoided), 0) as swaps_avoided,
           coalesce(sum(waiting), 0) as waiting
       from (select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
             from counters where tenant = $1
             union all
             select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
             from counter_deltas where tenant = $1)"],
    "select coalesce(sum(scheduled), 0)::bigint as scheduled, coalesce(sum(queued), 0)::bigint as queued,
         coalesce(sum(running), 0)::bigint as running, coalesce(sum(succeeded), 0)::bigint as succeeded,
         coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(canceled), 0)::bigint as canceled,
         coalesce(sum(swaps_made), 0)::bigint as swaps_made, coalesce(sum(swaps_avoided), 0)::bigint as swaps_avoided,
         coalesce(sum(waiting), 0)::bigint as waiting
     from (select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
           from counters where tenant = $1
           union all
           select scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
           from counter_deltas where tenant = $1) kept",
);

impl Operation for ReadTotals {
    type Output = Counts;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Counts, StoreError> {
        let row = tx.query_opt(&TOTALS, &[Param::Int(self.tenant.0)]).await?;
        row.map(|row| Counts::read(&row)).transpose().map(Option::unwrap_or_default)
    }
}

struct PruneThroughput;

const PRUNE: Sql = Sql::both(&["delete from throughput where minute_at < $1"]);

impl Operation for PruneThroughput {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.execute(&PRUNE, &[Param::Time(tx.now().plus_s(-THROUGHPUT_RETENTION_S))]).await
    }
}

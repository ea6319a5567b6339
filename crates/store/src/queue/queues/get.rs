//! Reads one queue or lists queues, with settings and stored counters.

use std::collections::BTreeMap;

use domain::{Name, QueueSettings, TenantId, Time};

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::Counts;
use crate::queue::queues::read_settings;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct Queue {
    pub name: Name,
    pub settings: QueueSettings,
    pub paused: Option<Pause>,
    pub counts: Counts,
    /// Since when the oldest runnable job has been waiting.
    pub oldest_waiting_at: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub struct Pause {
    pub at: Time,
    pub by: Option<String>,
    pub reason: Option<String>,
}

impl Store {
    /// Returns the queue. A queue exists once it has settings or has had a job, until it is deleted.
    pub async fn queue(&self, tenant: TenantId, name: &Name) -> Result<Option<Queue>, StoreError> {
        let list = ListQueues { tenant, only: Some(name.clone()), after: None, limit: 1 };
        Ok(self.read(list).await?.pop())
    }

    /// Returns the queues that follow `after`, by name.
    pub async fn list_queues(
        &self,
        tenant: TenantId,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<Queue>, StoreError> {
        self.read(ListQueues { tenant, only: None, after, limit }).await
    }
}

struct ListQueues {
    tenant: TenantId,
    only: Option<Name>,
    after: Option<Name>,
    limit: usize,
}

const NAMES: Sql = Sql::both(&["select name from (
         select name from queues where tenant = $1 union select queue from counters where tenant = $1
         union select queue from counter_deltas where tenant = $1) names
     where ($2 = '' or name = $2) and name > $3 order by name limit $4"]);
// Reads the name range of the page, so that a page takes the same number of round trips whatever its size.
const SETTINGS: Sql = Sql::both(&["select name, settings, concurrency, per_key, rate_per_s, starvation_s,
         paused_at, paused_by, paused_reason
     from queues where tenant = $1 and name >= $2 and name <= $3"]);
const COUNTS: Sql = Sql::new(
    &["select queue, coalesce(sum(scheduled), 0) as scheduled, coalesce(sum(queued), 0) as queued,
           coalesce(sum(running), 0) as running, coalesce(sum(succeeded), 0) as succeeded,
           coalesce(sum(failed), 0) as failed, coalesce(sum(canceled), 0) as canceled,
           coalesce(sum(swaps_made), 0) as swaps_made, coalesce(sum(swaps_avoided), 0) as swaps_avoided,
           coalesce(sum(waiting), 0) as waiting
       from (select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
             from counters where tenant = $1 and queue >= $2 and queue <= $3
             union all
             select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
             from counter_deltas where tenant = $1 and queue >= $2 and queue <= $3) group by queue"],
    "select queue, coalesce(sum(scheduled), 0)::bigint as scheduled, coalesce(sum(queued), 0)::bigint as queued,
         coalesce(sum(running), 0)::bigint as running, coalesce(sum(succeeded), 0)::bigint as succeeded,
         coalesce(sum(failed), 0)::bigint as failed, coalesce(sum(canceled), 0)::bigint as canceled,
         coalesce(sum(swaps_made), 0)::bigint as swaps_made, coalesce(sum(swaps_avoided), 0)::bigint as swaps_avoided,
         coalesce(sum(waiting), 0)::bigint as waiting
     from (select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
           from counters where tenant = $1 and queue >= $2 and queue <= $3
           union all
           select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting
           from counter_deltas where tenant = $1 and queue >= $2 and queue <= $3) kept group by queue",
);
const OLDEST: Sql = Sql::both(&["select queue, min(head) as oldest_waiting_at from (
         select l.queue, (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                     and j.worker is null order by j.run_at, j.id limit 1) as head
         from lanes l where l.tenant = $1 and l.queue >= $2 and l.queue <= $3) heads group by queue"]);

impl Operation for ListQueues {
    type Output = Vec<Queue>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Queue>, StoreError> {
        let only = self.only.as_ref().map_or("", Name::as_str);
        let after = self.after.as_ref().map_or("", Name::as_str);
        let params = [Param::Int(self.tenant.0), Param::Text(only), Param::Text(after), Param::Int(self.limit as i64)];
        let rows = tx.query(&NAMES, &params).await?;
        let names: Vec<String> = rows.iter().map(|row| row.text("name")).collect::<Result<_, _>>()?;
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Vec::new()) };
        let range = [Param::Int(self.tenant.0), Param::Text(first), Param::Text(last)];
        let mut queues: BTreeMap<String, Queue> =
            names.iter().map(|name| (name.clone(), default_queue(name))).collect();
        for row in tx.query(&SETTINGS, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text("name")?) {
                (queue.settings, queue.paused) = (read_settings(&row)?, paused(&row)?);
            }
        }
        for row in tx.query(&COUNTS, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text("queue")?) {
                queue.counts = Counts::read(&row)?;
            }
        }
        for row in tx.query(&OLDEST, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text("queue")?) {
                queue.oldest_waiting_at = row.opt_time("oldest_waiting_at")?;
            }
        }
        Ok(queues.into_values().collect())
    }
}

/// A queue with default settings and no jobs.
fn default_queue(name: &str) -> Queue {
    Queue {
        name: Name::stored(name),
        settings: QueueSettings::default(),
        paused: None,
        counts: Counts::default(),
        oldest_waiting_at: None,
    }
}

/// Returns the stored counters of a queue without the unwritten changes of this transaction.
pub(crate) async fn counts(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<Counts, StoreError> {
    let name = Param::Text(queue.as_str());
    let row = tx.query_opt(&COUNTS, &[Param::Int(tenant.0), name, name]).await?;
    row.map(|row| Counts::read(&row)).transpose().map(Option::unwrap_or_default)
}

fn paused(row: &Row) -> Result<Option<Pause>, StoreError> {
    let Some(at) = row.opt_time("paused_at")? else { return Ok(None) };
    Ok(Some(Pause { at, by: row.opt_text("paused_by")?, reason: row.opt_text("paused_reason")? }))
}

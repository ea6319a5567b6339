//! One queue or all of them, with kept counts (Q12).

use std::collections::BTreeMap;

use domain::{Name, QueueSettings, TenantId, Time};

use crate::counters::Counts;
use crate::error::StoreError;
use crate::queues::settings_at;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug)]
pub struct Queue {
    pub name: Name,
    pub settings: QueueSettings,
    pub paused: Option<Pause>,
    pub counts: Counts,
    /// Since when the oldest job that could run has been waiting.
    pub oldest_waiting_at: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub struct Pause {
    pub at: Time,
    pub by: Option<String>,
    pub reason: Option<String>,
}

impl Store {
    /// A queue exists once it was told something or has had a job.
    pub async fn queue(&self, tenant: TenantId, name: &Name) -> Result<Option<Queue>, StoreError> {
        let list = List { tenant, only: Some(name.clone()), after: None, limit: 1 };
        Ok(self.read(list).await?.pop())
    }

    /// By name, after `after`.
    pub async fn list_queues(
        &self,
        tenant: TenantId,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<Queue>, StoreError> {
        self.read(List { tenant, only: None, after, limit }).await
    }
}

struct List {
    tenant: TenantId,
    only: Option<Name>,
    after: Option<Name>,
    limit: usize,
}

const NAMES: Sql = Sql::both(&["select name from (
         select name from queues where tenant = $1 union select queue from lanes where tenant = $1) names
     where ($2 = '' or name = $2) and name > $3 order by name limit $4"]);
// Of all queues from the first to the last of a page, so that a page of many costs as few round trips as one of one.
const SETTINGS: Sql = Sql::both(&["select name, settings, concurrency, per_key, rate_per_s, starvation_s,
         paused_at, paused_by, paused_reason
     from queues where tenant = $1 and name >= $2 and name <= $3"]);
const COUNTS: Sql = Sql::new(
    &["select queue, coalesce(sum(scheduled), 0), coalesce(sum(queued), 0), coalesce(sum(running), 0),
           coalesce(sum(succeeded), 0), coalesce(sum(failed), 0), coalesce(sum(canceled), 0),
           coalesce(sum(swaps_made), 0), coalesce(sum(swaps_avoided), 0)
       from (select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
             from counters where tenant = $1 and queue >= $2 and queue <= $3
             union all
             select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
             from counter_deltas where tenant = $1 and queue >= $2 and queue <= $3) group by queue"],
    "select queue, coalesce(sum(scheduled), 0)::bigint, coalesce(sum(queued), 0)::bigint,
         coalesce(sum(running), 0)::bigint, coalesce(sum(succeeded), 0)::bigint, coalesce(sum(failed), 0)::bigint,
         coalesce(sum(canceled), 0)::bigint, coalesce(sum(swaps_made), 0)::bigint, coalesce(sum(swaps_avoided), 0)::bigint
     from (select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
           from counters where tenant = $1 and queue >= $2 and queue <= $3
           union all
           select queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided
           from counter_deltas where tenant = $1 and queue >= $2 and queue <= $3) kept group by queue",
);
const OLDEST: Sql = Sql::both(&["select queue, min(head) from (
         select l.queue, (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                     and j.worker is null order by j.run_at, j.id limit 1) as head
         from lanes l where l.tenant = $1 and l.queue >= $2 and l.queue <= $3) heads group by queue"]);

impl Operation for List {
    type Output = Vec<Queue>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Queue>, StoreError> {
        let only = self.only.as_ref().map_or("", Name::as_str);
        let after = self.after.as_ref().map_or("", Name::as_str);
        let params = [Param::Int(self.tenant.0), Param::Text(only), Param::Text(after), Param::Int(self.limit as i64)];
        let rows = tx.query(&NAMES, &params).await?;
        let names: Vec<String> = rows.iter().map(|row| row.text(0)).collect::<Result<_, _>>()?;
        let (Some(first), Some(last)) = (names.first(), names.last()) else { return Ok(Vec::new()) };
        let range = [Param::Int(self.tenant.0), Param::Text(first), Param::Text(last)];
        let mut queues: BTreeMap<String, Queue> = names.iter().map(|name| (name.clone(), untold(name))).collect();
        for row in tx.query(&SETTINGS, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text(0)?) {
                (queue.settings, queue.paused) = (settings_at(&row, 1)?, paused(&row)?);
            }
        }
        for row in tx.query(&COUNTS, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text(0)?) {
                queue.counts = Counts::at(&row, 1)?;
            }
        }
        for row in tx.query(&OLDEST, &range).await? {
            if let Some(queue) = queues.get_mut(&row.text(0)?) {
                queue.oldest_waiting_at = row.opt_time(1)?;
            }
        }
        Ok(queues.into_values().collect())
    }
}

/// A queue that was told nothing and has had nothing.
fn untold(name: &str) -> Queue {
    Queue {
        name: Name::stored(name),
        settings: QueueSettings::default(),
        paused: None,
        counts: Counts::default(),
        oldest_waiting_at: None,
    }
}

/// What is kept of a queue's jobs, without what this transaction has yet to write.
pub(crate) async fn counts(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<Counts, StoreError> {
    let name = Param::Text(queue.as_str());
    let row = tx.query_opt(&COUNTS, &[Param::Int(tenant.0), name, name]).await?;
    row.map(|row| Counts::at(&row, 1)).transpose().map(Option::unwrap_or_default)
}

fn paused(row: &Row) -> Result<Option<Pause>, StoreError> {
    let Some(at) = row.opt_time(6)? else { return Ok(None) };
    Ok(Some(Pause { at, by: row.opt_text(7)?, reason: row.opt_text(8)? }))
}

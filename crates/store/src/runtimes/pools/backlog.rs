//! Counts the waiting jobs of a queue by affinity, up to a bound.

use std::collections::BTreeMap;

use domain::limits::BACKLOG_COUNTED_JOBS;
use domain::{Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// The waiting jobs of one affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of waiting jobs, at most `BACKLOG_COUNTED_JOBS`.
    pub waiting: i64,
    /// When the oldest waiting job became ready.
    pub oldest: Option<Time>,
}

impl Store {
    /// Returns the backlog by affinity. Jobs without an affinity are under the empty string.
    pub async fn backlog(&self, tenant: TenantId, queue: &Name) -> Result<BTreeMap<String, Backlog>, StoreError> {
        self.read(CountBacklog { tenant, queue: queue.clone() }).await
    }
}

struct CountBacklog {
    tenant: TenantId,
    queue: Name,
}

const COUNT: Sql = Sql::both(&["select l.affinity,
         (select count(*) from (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null limit $3) waiting) as waiting,
         (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null order by j.run_at, j.id limit 1) as oldest
     from lanes l where l.tenant = $1 and l.queue = $2"]);

impl Operation for CountBacklog {
    type Output = BTreeMap<String, Backlog>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let limit = BACKLOG_COUNTED_JOBS as i64;
        let params = [Param::Int(self.tenant.0), Param::Text(self.queue.as_str()), Param::Int(limit)];
        let mut all: BTreeMap<String, Backlog> = BTreeMap::new();
        for row in tx.query(&COUNT, &params).await? {
            let (waiting, oldest) = (row.int("waiting")?, row.opt_time("oldest")?);
            let backlog = all.entry(row.text("affinity")?).or_default();
            backlog.waiting = (backlog.waiting + waiting).min(limit);
            backlog.oldest = backlog.oldest.into_iter().chain(oldest).min();
        }
        Ok(all)
    }
}

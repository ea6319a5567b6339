//! How much waits for each affinity of a queue, and since when: counted up to a bound.

use std::collections::BTreeMap;

use domain::limits::BACKLOG_COUNTED;
use domain::{Name, TenantId, Time};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Up to `BACKLOG_COUNTED`.
    pub waiting: i64,
    pub oldest: Option<Time>,
}

impl Store {
    /// By affinity; jobs without one are under the empty text.
    pub async fn backlog(&self, tenant: TenantId, queue: &Name) -> Result<BTreeMap<String, Backlog>, StoreError> {
        self.read(Count { tenant, queue: queue.clone() }).await
    }
}

struct Count {
    tenant: TenantId,
    queue: Name,
}

const COUNT: Sql = Sql::both(&["select l.affinity,
         (select count(*) from (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null limit $3) waiting),
         (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null order by j.run_at, j.id limit 1)
     from lanes l where l.tenant = $1 and l.queue = $2"]);

impl Operation for Count {
    type Output = BTreeMap<String, Backlog>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let most = BACKLOG_COUNTED as i64;
        let params = [Param::Int(self.tenant.0), Param::Text(self.queue.as_str()), Param::Int(most)];
        let mut all: BTreeMap<String, Backlog> = BTreeMap::new();
        for row in tx.query(&COUNT, &params).await? {
            let (waiting, oldest) = (row.int(1)?, row.opt_time(2)?);
            let known = all.entry(row.text(0)?).or_default();
            known.waiting = (known.waiting + waiting).min(most);
            known.oldest = known.oldest.into_iter().chain(oldest).min();
        }
        Ok(all)
    }
}

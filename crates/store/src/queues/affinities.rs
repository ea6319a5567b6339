//! What waits for each affinity, in queues whose jobs have some: for whoever watches how models take turns (Q6).

use domain::limits::{AFFINITY_COUNTED, AFFINITY_LANES};
use domain::{Affinity, Label, Name, TenantId, Time};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// One lane with work in it, or that has had some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityLane {
    pub queue: Name,
    pub priority: i32,
    pub affinity: Affinity,
    /// Counted up to `AFFINITY_COUNTED`.
    pub waiting: i64,
    pub oldest: Option<Time>,
}

impl Store {
    /// The lanes of all queues that have an affinity in any of them, by queue and affinity, up to a bound.
    pub async fn affinity_lanes(&self, tenant: TenantId) -> Result<Vec<AffinityLane>, StoreError> {
        self.read(List { tenant }).await
    }
}

struct List {
    tenant: TenantId,
}

const LIST: Sql = Sql::both(&["select l.queue, l.priority, l.affinity,
         (select count(*) from (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null limit $2) counted),
         (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null order by j.run_at, j.id limit 1)
     from lanes l
     where l.tenant = $1 and l.queue in (select a.queue from lanes a where a.tenant = $1 and a.affinity <> '')
     order by l.queue, l.affinity, l.priority desc limit $3"]);

impl Operation for List {
    type Output = Vec<AffinityLane>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<AffinityLane>, StoreError> {
        let params =
            [Param::Int(self.tenant.0), Param::Int(AFFINITY_COUNTED as i64), Param::Int(AFFINITY_LANES as i64)];
        let rows = tx.query(&LIST, &params).await?;
        let read = |row: &crate::tx::Row| {
            let affinity = row.text(2)?;
            Ok(AffinityLane {
                queue: Name::stored(&row.text(0)?),
                priority: row.int(1)? as i32,
                affinity: (!affinity.is_empty()).then(|| Label::stored(&affinity)),
                waiting: row.int(3)?,
                oldest: row.opt_time(4)?,
            })
        };
        rows.iter().map(read).collect()
    }
}

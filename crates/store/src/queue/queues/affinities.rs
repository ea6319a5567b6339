//! Lists waiting jobs per affinity in queues that use affinities. The dashboard shows how models take turns.

use domain::limits::{AFFINITY_COUNTED_JOBS, AFFINITY_LANES};
use domain::{Affinity, Label, Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// One lane of such a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityLane {
    pub queue: Name,
    pub priority: i32,
    pub affinity: Affinity,
    /// Counted up to `AFFINITY_COUNTED_JOBS`.
    pub waiting: i64,
    pub oldest: Option<Time>,
}

impl Store {
    /// Returns all lanes of the queues in which some lane has an affinity, by queue and affinity, up to
    /// `AFFINITY_LANES`.
    pub async fn affinity_lanes(&self, tenant: TenantId) -> Result<Vec<AffinityLane>, StoreError> {
        self.read(ListAffinityLanes { tenant }).await
    }
}

struct ListAffinityLanes {
    tenant: TenantId,
}

const LIST: Sql = Sql::both(&["select l.queue, l.priority, l.affinity,
         (select count(*) from (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null limit $2) counted) as waiting,
         (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
              and j.worker is null order by j.run_at, j.id limit 1) as oldest
     from lanes l
     where l.tenant = $1 and l.queue in (select a.queue from lanes a where a.tenant = $1 and a.affinity <> '')
     order by l.queue, l.affinity, l.priority desc limit $3"]);

impl Operation for ListAffinityLanes {
    type Output = Vec<AffinityLane>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<AffinityLane>, StoreError> {
        let params =
            [Param::Int(self.tenant.0), Param::Int(AFFINITY_COUNTED_JOBS as i64), Param::Int(AFFINITY_LANES as i64)];
        let rows = tx.query(&LIST, &params).await?;
        let read = |row: &crate::db::tx::Row| {
            let affinity = row.text("affinity")?;
            Ok(AffinityLane {
                queue: Name::stored(&row.text("queue")?),
                priority: row.int("priority")? as i32,
                affinity: (!affinity.is_empty()).then(|| Label::stored(&affinity)),
                waiting: row.int("waiting")?,
                oldest: row.opt_time("oldest")?,
            })
        };
        rows.iter().map(read).collect()
    }
}

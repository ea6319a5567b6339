//! Reads the times of the newest ended jobs of a queue or a kind. The dashboard computes latencies from them.

use std::collections::{BTreeMap, HashMap};

use domain::limits::{LISTED_LANES, RECENT_ENDS};
use domain::{JobState, TenantId, Time};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Selects lanes. An absent field matches every lane.
#[derive(Clone, Debug, Default)]
pub struct LaneFilter {
    pub queue: Option<String>,
    pub kind: Option<String>,
}

/// The times of an ended job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentEnd {
    pub queue: String,
    pub kind: String,
    pub state: JobState,
    pub ready_at: Time,
    /// `None` for a job that never started.
    pub started_at: Option<Time>,
    pub finished_at: Time,
}

#[derive(Clone, Debug, Default)]
pub struct RecentEnds {
    /// In no particular order, at most `RECENT_ENDS`.
    pub ends: Vec<RecentEnd>,
    /// Queues and kinds that match, also those without ended jobs.
    pub lanes: Vec<(String, String)>,
    /// Older jobs ended since, or more lanes match than were read.
    pub is_partial: bool,
}

impl Store {
    /// Returns the newest ended jobs that ended after `since`. The lanes share the number of rows.
    pub async fn recent_ends(
        &self,
        tenant: TenantId,
        filter: LaneFilter,
        since: Time,
    ) -> Result<RecentEnds, StoreError> {
        self.read(ReadRecentEnds { tenant, filter, since }).await
    }
}

struct ReadRecentEnds {
    tenant: TenantId,
    filter: LaneFilter,
    since: Time,
}

const LANES: Sql = Sql::both(&["select lane, queue, kind from lanes
     where tenant = $1 and ($2 = '' or queue = $2) and ($3 = '' or kind = $3) order by lane desc limit $4"]);
const ENDS: Sql = Sql::new(
    &["select lane, state, run_at, started_at, finished_at from ended where lane = $1 order by id desc limit $2"],
    "select e.lane, e.state, e.run_at, e.started_at, e.finished_at
     from unnest($1::bigint[]) l(lane) cross join lateral (
         select lane, state, run_at, started_at, finished_at from ended where lane = l.lane order by id desc limit $2) e",
);

impl Operation for ReadRecentEnds {
    type Output = RecentEnds;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RecentEnds, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.filter.queue.as_deref().unwrap_or_default()),
            Param::Text(self.filter.kind.as_deref().unwrap_or_default()),
            Param::Int(LISTED_LANES as i64 + 1),
        ];
        let mut rows = tx.query(&LANES, &params).await?;
        let mut is_partial = rows.len() > LISTED_LANES;
        rows.truncate(LISTED_LANES);
        let mut names = BTreeMap::new();
        for row in &rows {
            names.insert(row.int("lane")?, (row.text("queue")?, row.text("kind")?));
        }
        let each = (RECENT_ENDS / names.len().max(1)).max(1);
        let lanes = Column::ints(names.keys().copied());
        let mut ends = Vec::new();
        let mut read_of: HashMap<i64, usize> = HashMap::new();
        for row in tx.query_each(&ENDS, &[lanes], &[Param::Int(each as i64)]).await? {
            let lane = row.int("lane")?;
            *read_of.entry(lane).or_default() += 1;
            let (Some((queue, kind)), finished_at) = (names.get(&lane), row.time("finished_at")?) else { continue };
            if finished_at < self.since {
                continue;
            }
            let state = row.text("state")?;
            ends.push(RecentEnd {
                queue: queue.clone(),
                kind: kind.clone(),
                state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
                ready_at: row.time("run_at")?,
                started_at: row.opt_time("started_at")?,
                finished_at,
            });
        }
        // A full lane may have more rows. If all of its rows are new enough, some were left out.
        let kept = |lane: &i64| {
            let (queue, kind) = &names[lane];
            ends.iter().filter(|end| (&end.queue, &end.kind) == (queue, kind)).count()
        };
        is_partial |= read_of.iter().any(|(lane, read)| *read >= each && kept(lane) >= each);
        let mut lanes: Vec<(String, String)> = names.into_values().collect();
        lanes.sort();
        lanes.dedup();
        Ok(RecentEnds { ends, lanes, is_partial })
    }
}

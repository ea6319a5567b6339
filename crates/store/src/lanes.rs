//! Lanes: one per (tenant, queue, kind, priority, affinity, guarded). Made on first use, never changed, cached for good.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use domain::{Affinity, Label, Name, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Column, Operation, Row, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    pub tenant: TenantId,
    pub queue: Name,
    pub kind: Name,
    pub priority: i32,
    pub affinity: Affinity,
    /// Its jobs have a subject or a concurrency key and must take holds before they run.
    pub guarded: bool,
}

#[derive(Clone, Default)]
pub(crate) struct LaneCache {
    known: Arc<RwLock<Known>>,
    /// What listens to jobs: whoever moves a job has its lane in hand and asks both.
    pub(crate) triggers: TriggerCache,
}

#[derive(Default)]
struct Known {
    by_key: HashMap<Lane, i64>,
    by_id: HashMap<i64, Arc<Lane>>,
}

const INSERT: Sql = Sql::new(
    &["insert into lanes (tenant, queue, kind, priority, affinity, guarded) values ($1, $2, $3, $4, $5, $6)
       on conflict do nothing"],
    "insert into lanes (tenant, queue, kind, priority, affinity, guarded)
     select t, q, k, p, a, g <> 0
     from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[]) as n(t, q, k, p, a, g)
     order by t, q, k, p, a, g
     on conflict do nothing",
);
const FIND: Sql = Sql::new(
    &["select lane, tenant, queue, kind, priority, affinity, guarded from lanes
       where tenant = $1 and queue = $2 and kind = $3 and priority = $4 and affinity = $5 and guarded = $6"],
    "select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded
     from unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::bigint[]) as n(t, q, k, p, a, g)
     join lanes l on l.tenant = n.t and l.queue = n.q and l.kind = n.k and l.priority = n.p and l.affinity = n.a
         and l.guarded = (n.g <> 0)",
);
const BY_ID: Sql = Sql::new(
    &["select lane, tenant, queue, kind, priority, affinity, guarded from lanes where lane = $1"],
    "select lane, tenant, queue, kind, priority, affinity, guarded from lanes where lane = any($1::bigint[])",
);

impl Store {
    /// The lanes' ids, in order; lanes that do not exist yet are made in a transaction of their own, so that what is
    /// cached is always committed.
    pub(crate) async fn lane_ids(&self, lanes: &[Lane]) -> Result<Vec<i64>, StoreError> {
        let cache = self.lanes();
        let missing: Vec<Lane> = {
            let known = cache.known.read().expect("no reader panics");
            let mut missing: Vec<Lane> =
                lanes.iter().filter(|lane| !known.by_key.contains_key(*lane)).cloned().collect();
            missing.dedup();
            missing
        };
        if !missing.is_empty() {
            let found = self.write(MakeLanes { lanes: missing }).await?;
            cache.learn(found);
        }
        let known = cache.known.read().expect("no reader panics");
        let id = |lane: &Lane| known.by_key.get(lane).copied();
        lanes.iter().map(|lane| id(lane).ok_or_else(|| StoreError::unexpected("a lane is missing"))).collect()
    }
}

struct MakeLanes {
    lanes: Vec<Lane>,
}

impl Operation for MakeLanes {
    type Output = Vec<(i64, Lane)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let of = || self.lanes.iter();
        let affinity = |lane: &'_ Lane| lane.affinity.as_ref().map_or(String::new(), |label| label.as_str().to_owned());
        let affinities: Vec<String> = of().map(affinity).collect();
        let columns = [
            Column::ints(of().map(|lane| lane.tenant.0)),
            Column::texts(of().map(|lane| lane.queue.as_str())),
            Column::texts(of().map(|lane| lane.kind.as_str())),
            Column::ints(of().map(|lane| i64::from(lane.priority))),
            Column::texts(affinities.iter().map(String::as_str)),
            Column::ints(of().map(|lane| i64::from(lane.guarded))),
        ];
        tx.execute_each(&INSERT, &columns, &[]).await?;
        let rows = tx.query_each(&FIND, &columns, &[]).await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<(i64, Lane), StoreError> {
    Ok((row.int(0)?, lane_at(row, 1)?))
}

/// A lane's six columns, from `first` on.
pub(crate) fn lane_at(row: &Row, first: usize) -> Result<Lane, StoreError> {
    let affinity = row.text(first + 4)?;
    Ok(Lane {
        tenant: TenantId(row.int(first)?),
        queue: Name::stored(&row.text(first + 1)?),
        kind: Name::stored(&row.text(first + 2)?),
        priority: row.int(first + 3)? as i32,
        affinity: (!affinity.is_empty()).then(|| Label::stored(&affinity)),
        guarded: row.bool(first + 5)?,
    })
}

impl LaneCache {
    /// The lanes with these ids, asked of the database where they are not known yet.
    pub(crate) async fn of(&self, tx: &mut Tx<'_>, ids: &[i64]) -> Result<HashMap<i64, Arc<Lane>>, StoreError> {
        let (mut found, missing) = self.split(ids);
        if !missing.is_empty() {
            let rows = tx.query_each(&BY_ID, &[Column::ints(missing)], &[]).await?;
            let read: Vec<(i64, Lane)> = rows.iter().map(read).collect::<Result<_, _>>()?;
            found.extend(read.iter().map(|(id, lane)| (*id, Arc::new(lane.clone()))));
            self.learn(read);
        }
        match ids.iter().find(|id| !found.contains_key(id)) {
            Some(id) => Err(StoreError::unexpected(format!("lane {id} is missing"))),
            None => Ok(found),
        }
    }

    fn split(&self, ids: &[i64]) -> (HashMap<i64, Arc<Lane>>, Vec<i64>) {
        let known = self.known.read().expect("no reader panics");
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for id in ids {
            match known.by_id.get(id) {
                Some(lane) => drop(found.insert(*id, lane.clone())),
                None => missing.push(*id),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        (found, missing)
    }

    fn learn(&self, lanes: Vec<(i64, Lane)>) {
        let mut known = self.known.write().expect("no writer panics");
        for (id, lane) in lanes {
            known.by_key.insert(lane.clone(), id);
            known.by_id.insert(id, Arc::new(lane));
        }
    }
}

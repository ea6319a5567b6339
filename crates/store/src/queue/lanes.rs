//! Lanes. A lane is one combination of tenant, queue, kind, priority, affinity and guarded; ready jobs are indexed per
//! lane. Lanes are created on first use and never change, so they are cached without expiry.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use domain::{Affinity, Label, Name, TenantId};

use crate::db::tx::{Column, Operation, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    pub tenant: TenantId,
    pub queue: Name,
    pub kind: Name,
    pub priority: i32,
    pub affinity: Affinity,
    /// The jobs of the lane have a subject or a concurrency key, so a claim must acquire holds for them.
    pub guarded: bool,
}

/// In-process cache of lanes by id and by key. Never evicts.
#[derive(Clone, Default)]
pub(crate) struct LaneCache {
    maps: Arc<RwLock<LaneMaps>>,
    /// Cached triggers. They are here because code that changes a job's state needs its lane and its triggers.
    pub(crate) triggers: TriggerCache,
}

#[derive(Default)]
struct LaneMaps {
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
    /// The lane with this id, if this node has cached it.
    pub fn cached_lane(&self, lane: i64) -> Option<Arc<Lane>> {
        self.lanes().maps.read().expect("lock poisoned").by_id.get(&lane).cloned()
    }

    /// Returns the ids of the lanes, in order. Creates missing lanes in their own transaction, so that the cache holds
    /// committed lanes only.
    pub(crate) async fn lane_ids(&self, lanes: &[Lane]) -> Result<Vec<i64>, StoreError> {
        let cache = self.lanes();
        let missing: Vec<Lane> = {
            let maps = cache.maps.read().expect("lock poisoned");
            let mut missing: Vec<Lane> =
                lanes.iter().filter(|lane| !maps.by_key.contains_key(*lane)).cloned().collect();
            missing.dedup();
            missing
        };
        if !missing.is_empty() {
            let found = self.write(CreateLanes { lanes: missing }).await?;
            cache.insert_all(found);
        }
        let maps = cache.maps.read().expect("lock poisoned");
        let id = |lane: &Lane| maps.by_key.get(lane).copied();
        lanes.iter().map(|lane| id(lane).ok_or_else(|| StoreError::unexpected("a lane is missing"))).collect()
    }
}

struct CreateLanes {
    lanes: Vec<Lane>,
}

impl Operation for CreateLanes {
    type Output = Vec<(i64, Lane)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let lanes = || self.lanes.iter();
        let affinity = |lane: &'_ Lane| lane.affinity.as_ref().map_or(String::new(), |label| label.as_str().to_owned());
        let affinities: Vec<String> = lanes().map(affinity).collect();
        let columns = [
            Column::ints(lanes().map(|lane| lane.tenant.0)),
            Column::texts(lanes().map(|lane| lane.queue.as_str())),
            Column::texts(lanes().map(|lane| lane.kind.as_str())),
            Column::ints(lanes().map(|lane| i64::from(lane.priority))),
            Column::texts(affinities.iter().map(String::as_str)),
            Column::ints(lanes().map(|lane| i64::from(lane.guarded))),
        ];
        tx.execute_each(&INSERT, &columns, &[]).await?;
        let rows = tx.query_each(&FIND, &columns, &[]).await?;
        rows.iter().map(read_with_id).collect()
    }
}

fn read_with_id(row: &Row) -> Result<(i64, Lane), StoreError> {
    Ok((row.int("lane")?, Lane::read(row)?))
}

impl Lane {
    /// Reads the columns of a lane except its id.
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        let affinity = row.text("affinity")?;
        Ok(Self {
            tenant: TenantId(row.int("tenant")?),
            queue: Name::stored(&row.text("queue")?),
            kind: Name::stored(&row.text("kind")?),
            priority: row.int("priority")? as i32,
            affinity: (!affinity.is_empty()).then(|| Label::stored(&affinity)),
            guarded: row.bool("guarded")?,
        })
    }
}

impl LaneCache {
    /// Returns the lanes with these ids. Lanes that are not cached are read from the database.
    pub(crate) async fn of(&self, tx: &mut Tx<'_>, ids: &[i64]) -> Result<HashMap<i64, Arc<Lane>>, StoreError> {
        let (mut found, missing) = self.split(ids);
        if !missing.is_empty() {
            let rows = tx.query_each(&BY_ID, &[Column::ints(missing)], &[]).await?;
            let read: Vec<(i64, Lane)> = rows.iter().map(read_with_id).collect::<Result<_, _>>()?;
            found.extend(read.iter().map(|(id, lane)| (*id, Arc::new(lane.clone()))));
            self.insert_all(read);
        }
        match ids.iter().find(|id| !found.contains_key(id)) {
            Some(id) => Err(StoreError::unexpected(format!("lane {id} is missing"))),
            None => Ok(found),
        }
    }

    /// Returns the lane with this id.
    pub(crate) async fn one(&self, tx: &mut Tx<'_>, id: i64) -> Result<Arc<Lane>, StoreError> {
        Ok(self.of(tx, &[id]).await?.remove(&id).expect("`of` returns every requested lane"))
    }

    /// Splits ids into cached lanes and the ids missing from the cache.
    fn split(&self, ids: &[i64]) -> (HashMap<i64, Arc<Lane>>, Vec<i64>) {
        let maps = self.maps.read().expect("lock poisoned");
        let mut found = HashMap::new();
        let mut missing = Vec::new();
        for id in ids {
            match maps.by_id.get(id) {
                Some(lane) => drop(found.insert(*id, lane.clone())),
                None => missing.push(*id),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        (found, missing)
    }

    fn insert_all(&self, lanes: Vec<(i64, Lane)>) {
        let mut maps = self.maps.write().expect("lock poisoned");
        for (id, lane) in lanes {
            maps.by_key.insert(lane.clone(), id);
            maps.by_id.insert(id, Arc::new(lane));
        }
    }
}

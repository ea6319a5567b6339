//! The lanes that have work for a claim, and where the waiting jobs of their queues begin.

use std::collections::HashMap;

use domain::limits::LANES;
use domain::{LaneHead, Name, QueueSettings, TenantId, Time};
use uuid::Uuid;

use super::Claim;
use crate::codec::settings_from_json;
use crate::error::StoreError;
use crate::floors::{Floor, Floors, Place};
use crate::lanes::{Lane, lane_at};
use crate::tx::{Column, First, Param, Sql, Tx};
use crate::workers::Worker;

/// Queues whose lanes are looked at, each from where its waiting jobs begin.
pub(super) struct Look {
    queues: Vec<Name>,
    floors: HashMap<Name, Floor>,
}

impl Look {
    fn new(queues: &[Name], floor: impl Fn(&Name) -> Floor) -> Self {
        Self { queues: queues.to_vec(), floors: queues.iter().map(|queue| (queue.clone(), floor(queue))).collect() }
    }

    pub(super) fn above(floors: &Floors, tenant: TenantId, queues: &[Name]) -> Self {
        Self::new(queues, |queue| floors.of(tenant, queue))
    }

    fn from_the_beginning(queues: &[Name]) -> Self {
        Self::new(queues, |_| Floor::none())
    }

    /// What it asks. The names are these queues', which are its own.
    pub(super) fn asks<'q>(&self, queues: &'q [Name], tenant: TenantId) -> First<'q> {
        First { sql: HEADS, columns: self.columns(queues), params: vec![Param::Int(tenant.0)] }
    }

    /// The queues, and where each is looked at from.
    pub(super) fn columns<'q>(&self, queues: &'q [Name]) -> Vec<Column<'q>> {
        let places = || self.queues.iter().map(|queue| self.floors[queue].place);
        vec![
            Column::texts(queues.iter().map(Name::as_str)),
            Column::Time(places().map(|place| Some(place.run_at)).collect()),
            Column::uuids(places().map(|place| place.id)),
        ]
    }

    pub(super) fn floor(&self, queue: &Name) -> Floor {
        self.floors[queue]
    }
}

/// A lane with work, and what its queue says about it.
#[derive(Clone)]
pub(super) struct Head {
    pub(super) head: LaneHead,
    pub(super) lane: Lane,
    pub(super) settings: QueueSettings,
    /// The settings as they are stored.
    pub(super) stored: Option<String>,
    /// Every job of the lane that waits is behind it.
    pub(super) floor: Place,
    /// The first of them.
    pub(super) first: Place,
}

const HEADS: Sql = Sql::new(
    &["select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
           q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings,
           (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                and j.worker is null order by j.run_at, j.id limit 1),
           (select j.id from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                and j.worker is null order by j.run_at, j.id limit 1)
       from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
       where l.tenant = $4 and l.queue = $1 and q.paused_at is null
           and exists (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
               and j.worker is null)
       limit 10000"],
    "select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
         q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings, h.run_at, h.id
     from unnest($1::text[], $2::timestamptz[], $3::uuid[]) as n(queue, run_at, id)
         join lanes l on l.tenant = $4 and l.queue = n.queue
         left join queues q on q.tenant = l.tenant and q.name = l.queue
         cross join lateral (select j.run_at, j.id from jobs j where j.lane = l.lane and j.due_at is null
             and j.parked is null and j.worker is null and (j.run_at, j.id) > (n.run_at, n.id)
             order by j.run_at, j.id limit 1) h
     where q.paused_at is null limit 10000",
);

/// The lanes with work, as one look found them.
pub(super) struct Seen {
    pub(super) heads: Vec<Head>,
    /// Where each queue was looked at from.
    floors: HashMap<Name, Floor>,
}

impl Claim {
    pub(super) async fn see(&self, tx: &mut Tx<'_>, queues: &[Name]) -> Result<Seen, StoreError> {
        // On SQLite the index holds jobs that wait and nothing else: there is nothing to walk over.
        let asked = self.asked.lock().expect("nobody panics with it in hand").take();
        let look = match asked {
            Some(asked) if asked.queues == queues => asked,
            _ if tx.is_postgres() => Look::above(&self.floors, self.of, queues),
            _ => Look::from_the_beginning(queues),
        };
        let seen = self.look(tx, look).await?;
        if !seen.heads.is_empty() || seen.floors.values().all(Floor::is_none) {
            return Ok(seen);
        }
        self.look(tx, Look::from_the_beginning(queues)).await
    }

    async fn look(&self, tx: &mut Tx<'_>, look: Look) -> Result<Seen, StoreError> {
        let First { sql, columns, params } = look.asks(&look.queues, self.of);
        let rows = tx.query_each(&sql, &columns, &params).await?;
        let floors = look.floors;
        let mut heads = Vec::with_capacity(rows.len());
        for row in &rows {
            let waiting_since = row.time(12)?;
            let lane = lane_at(row, 1)?;
            let stored = row.opt_text(11)?;
            let mut settings = settings_from_json(stored.as_deref())?;
            settings.starvation_s = row.opt_int(7)?;
            settings.concurrency = row.opt_int(8)?.map(|limit| limit as u32);
            settings.per_key = row.opt_int(9)?.map(|limit| limit as u32);
            settings.rate_per_s = row.opt_real(10)?;
            let first = Place { run_at: waiting_since, id: row.opt_uuid(13)?.unwrap_or_default() };
            let head = LaneHead {
                lane: row.int(0)?,
                priority: lane.priority,
                affinity: lane.affinity.clone(),
                waiting_since,
                order: first.id.as_u128(),
                starvation_ms: settings.starvation_ms(),
            };
            let floor = floors[&lane.queue].place;
            heads.push(Head { head, lane, settings, stored, floor, first });
        }
        Ok(Seen { heads, floors })
    }
}

impl Seen {
    /// Where the queues that had work begin now. Of one that had none it is not known why: it may be paused.
    pub(super) fn raised(self, reached: &HashMap<i64, Place>, now: Time) -> Vec<(Name, Floor)> {
        if self.heads.len() >= LANES {
            return Vec::new();
        }
        let mut places: HashMap<Name, Place> = HashMap::new();
        for head in self.heads {
            // The first job that was seen still waits, unless jobs were taken from there on.
            let before = Place { id: Uuid::nil(), ..head.first };
            let place = reached.get(&head.head.lane).copied().unwrap_or(before).min(Place::settled(now));
            places.entry(head.lane.queue).and_modify(|least| *least = place.min(*least)).or_insert(place);
        }
        places.into_iter().map(|(queue, place)| (queue.clone(), self.floors[&queue].raised(place))).collect()
    }
}

impl Head {
    pub(super) fn is_served_by(&self, worker: &Worker) -> bool {
        let serves_kind = worker.kinds.as_ref().is_none_or(|kinds| kinds.contains(&self.lane.kind));
        let serves_affinity = match (&worker.affinities, &self.lane.affinity) {
            (Some(affinities), Some(affinity)) => affinities.contains(affinity),
            _ => true,
        };
        serves_kind && serves_affinity
    }
}

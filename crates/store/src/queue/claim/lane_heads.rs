//! The lanes that have work for a claim: for each, its first waiting job and the settings of its queue.

use std::collections::HashMap;

use domain::limits::LANES;
use domain::{Label, LaneHead, Name, QueueSettings, TenantId, Time};
use uuid::Uuid;

use super::Claim;
use super::fast_path::watermarks::{JobCursor, Watermark, Watermarks};
use crate::db::codec::to_json;
use crate::db::tx::{Column, Param, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::Lane;
use crate::queue::queues::read_settings_of;
use crate::queue::workers::Worker;

/// The queues whose lanes are queried, and the position from which each is searched.
pub(super) struct LaneQuery {
    queues: Vec<Name>,
    watermarks: HashMap<Name, Watermark>,
}

impl LaneQuery {
    fn new(queues: &[Name], watermark: impl Fn(&Name) -> Watermark) -> Self {
        Self {
            queues: queues.to_vec(),
            watermarks: queues.iter().map(|queue| (queue.clone(), watermark(queue))).collect(),
        }
    }

    pub(super) fn above_watermarks(watermarks: &Watermarks, tenant: TenantId, queues: &[Name]) -> Self {
        Self::new(queues, |queue| watermarks.of(tenant, queue))
    }

    fn from_the_beginning(queues: &[Name]) -> Self {
        Self::new(queues, |_| Watermark::none())
    }

    /// The statement and its parameters. `queues` are the query's own, borrowed from the caller.
    pub(super) fn prefetch<'q>(&self, queues: &'q [Name], tenant: TenantId) -> Prefetch<'q> {
        Prefetch { sql: HEADS, columns: self.columns(queues), params: vec![Param::Int(tenant.0)] }
    }

    /// The queues and their positions.
    pub(super) fn columns<'q>(&self, queues: &'q [Name]) -> Vec<Column<'q>> {
        let cursors = || self.queues.iter().map(|queue| self.watermarks[queue].cursor);
        vec![
            Column::texts(queues.iter().map(Name::as_str)),
            Column::Time(cursors().map(|cursor| Some(cursor.run_at)).collect()),
            Column::uuids(cursors().map(|cursor| cursor.id)),
        ]
    }

    pub(super) fn watermark(&self, queue: &Name) -> Watermark {
        self.watermarks[queue]
    }
}

/// A lane with waiting jobs, and the settings of its queue.
#[derive(Clone)]
pub(super) struct WaitingLane {
    pub(super) head: LaneHead,
    pub(super) lane: Lane,
    pub(super) settings: QueueSettings,
    /// The settings as they are stored.
    pub(super) stored: Option<String>,
    /// Every waiting job of the lane is behind this position.
    pub(super) watermark: JobCursor,
    /// The position of the first waiting job.
    pub(super) first: JobCursor,
}

const HEADS: Sql = Sql::new(
    &["select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
           q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings,
           (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                and j.worker is null order by j.run_at, j.id limit 1) as run_at,
           (select j.id from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                and j.worker is null order by j.run_at, j.id limit 1) as id
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

// With more than `LANES` lanes with work, only those that the worker serves count, the highest priority and the oldest job
// first.
const SERVED_HEADS: Sql = Sql::new(
    &["select lane, tenant, queue, kind, priority, affinity, guarded, starvation_s, concurrency, per_key, rate_per_s,
           settings, run_at, id from (
           select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
               q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings,
               (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                    and j.worker is null order by j.run_at, j.id limit 1) as run_at,
               (select j.id from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                    and j.worker is null order by j.run_at, j.id limit 1) as id
           from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
           where l.tenant = $2 and l.queue = $1 and q.paused_at is null
               and ($3 is null or l.kind in (select value from json_each($3)))
               and ($4 is null or l.affinity = '' or l.affinity in (select value from json_each($4)))) heads
       where id is not null order by priority desc, run_at, id limit $5"],
    "select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
         q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings, h.run_at, h.id
     from unnest($1::text[]) as n(queue)
         join lanes l on l.tenant = $2 and l.queue = n.queue
         left join queues q on q.tenant = l.tenant and q.name = l.queue
         cross join lateral (select j.run_at, j.id from jobs j where j.lane = l.lane and j.due_at is null
             and j.parked is null and j.worker is null order by j.run_at, j.id limit 1) h
     where q.paused_at is null
         and ($3::json is null or l.kind = any(array(select json_array_elements_text($3::json))))
         and ($4::json is null or l.affinity = '' or l.affinity = any(array(select json_array_elements_text($4::json))))
     order by l.priority desc, h.run_at, h.id limit $5",
);

/// The result of one query of lane heads.
pub(super) struct LaneHeads {
    pub(super) heads: Vec<WaitingLane>,
    /// The watermarks that the query used.
    watermarks: HashMap<Name, Watermark>,
    /// Not all lanes with work are in `heads`.
    is_truncated: bool,
}

impl Claim {
    /// Queries the lanes with work: above the watermarks first, and from the beginning if that finds nothing.
    pub(super) async fn lane_heads(&self, tx: &mut Tx<'_>, queues: &[Name]) -> Result<LaneHeads, StoreError> {
        let prefetched = self.prefetched.lock().expect("lock poisoned").take();
        let query = match prefetched {
            Some(prefetched) if prefetched.queues == queues => prefetched,
            _ if tx.is_postgres() => LaneQuery::above_watermarks(self.fast_path.watermarks(), self.request.of, queues),
            // On SQLite the index holds waiting jobs only, so there are no entries to skip.
            _ => LaneQuery::from_the_beginning(queues),
        };
        let found = self.run_query(tx, query).await?;
        if !found.heads.is_empty() || found.watermarks.values().all(Watermark::is_none) {
            return Ok(found);
        }
        self.run_query(tx, LaneQuery::from_the_beginning(queues)).await
    }

    /// Queries the lanes that the worker serves, if there were too many to query all.
    pub(super) async fn served_heads(
        &self,
        tx: &mut Tx<'_>,
        worker: &Worker,
        found: LaneHeads,
    ) -> Result<LaneHeads, StoreError> {
        if found.heads.len() < LANES {
            return Ok(found);
        }
        let queues = Column::texts(worker.queues.iter().map(Name::as_str));
        let kinds = worker.kinds.as_ref().map(|kinds| to_json(&kinds.iter().map(Name::as_str).collect::<Vec<_>>()));
        let affinities = worker.affinities.as_ref();
        let affinities = affinities.map(|all| to_json(&all.iter().map(Label::as_str).collect::<Vec<_>>()));
        let params = [
            Param::Int(self.request.of.0),
            Param::json(kinds.as_deref()),
            Param::json(affinities.as_deref()),
            Param::Int(LANES as i64),
        ];
        let rows = tx.query_each(&SERVED_HEADS, &[queues], &params).await?;
        let query = LaneQuery::from_the_beginning(&worker.queues);
        // The watermark of a queue needs all of its lanes.
        Ok(LaneHeads { is_truncated: true, ..Self::read_heads(&rows, query)? })
    }

    async fn run_query(&self, tx: &mut Tx<'_>, query: LaneQuery) -> Result<LaneHeads, StoreError> {
        let Prefetch { sql, columns, params } = query.prefetch(&query.queues, self.request.of);
        let rows = tx.query_each(&sql, &columns, &params).await?;
        Self::read_heads(&rows, query)
    }

    fn read_heads(rows: &[Row], query: LaneQuery) -> Result<LaneHeads, StoreError> {
        let watermarks = query.watermarks;
        let mut heads = Vec::with_capacity(rows.len());
        for row in rows {
            let waiting_since = row.time("run_at")?;
            let lane = Lane::read(row)?;
            let stored = row.opt_text("settings")?;
            let settings = read_settings_of(row, stored.as_deref())?;
            let first = JobCursor { run_at: waiting_since, id: row.opt_uuid("id")?.unwrap_or_default() };
            let head = LaneHead {
                lane: row.int("lane")?,
                priority: lane.priority,
                affinity: lane.affinity.clone(),
                waiting_since,
                order: first.id.as_u128(),
                starvation_ms: settings.starvation_ms(),
            };
            let watermark = watermarks[&lane.queue].cursor;
            heads.push(WaitingLane { head, lane, settings, stored, watermark, first });
        }
        Ok(LaneHeads { is_truncated: heads.len() >= LANES, heads, watermarks })
    }
}

impl LaneHeads {
    /// The new watermarks of the queues that had work. A queue without work keeps its watermark: it may be paused.
    pub(super) fn watermarks_after(self, taken_up_to: &HashMap<i64, JobCursor>, now: Time) -> Vec<(Name, Watermark)> {
        if self.is_truncated {
            return Vec::new();
        }
        let mut cursors: HashMap<Name, JobCursor> = HashMap::new();
        for head in self.heads {
            // The first job still waits, unless the claim took jobs from there on.
            let before = JobCursor { id: Uuid::nil(), ..head.first };
            let cursor = taken_up_to.get(&head.head.lane).copied().unwrap_or(before).min(JobCursor::settled(now));
            cursors.entry(head.lane.queue).and_modify(|least| *least = cursor.min(*least)).or_insert(cursor);
        }
        let raise = |(queue, cursor): (Name, JobCursor)| (queue.clone(), self.watermarks[&queue].raised(cursor));
        cursors.into_iter().map(raise).collect()
    }
}

impl WaitingLane {
    pub(super) fn is_served_by(&self, worker: &Worker) -> bool {
        let serves_kind = worker.kinds.as_ref().is_none_or(|kinds| kinds.contains(&self.lane.kind));
        let serves_affinity = match (&worker.affinities, &self.lane.affinity) {
            (Some(affinities), Some(affinity)) => affinities.contains(affinity),
            _ => true,
        };
        serves_kind && serves_affinity
    }
}

//! A claim in one statement and one round trip, on PostgreSQL.
//!
//! Most claims of a worker are like its last one: its queues have work in one lane, without guards, limits or anybody who hears
//! of it. The statement takes from that lane if it is so again, or tells that nothing waits at all. Where it finds anything else it
//! changes nothing, and the whole claim is made, which learns what is usual now.

use std::sync::Arc;

use domain::{Affinity, Label, Name, TenantId, WorkerId};

use super::heads::{Head, Look};
use super::room::is_limited;
use super::taken::Found;
use super::{Claimed, ClaimedJob, Done};
use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::floors::Place;
use crate::habits::Lesson;
use crate::lanes::Lane;
use crate::lines::Takes;
use crate::tx::{Column, Operation, Param, Sql, Tx};
use crate::workers::Worker;

/// The lane that a worker's jobs came from, with all that a claim must know of it.
pub(crate) struct Usual {
    id: i64,
    lane: Lane,
    takes: Takes,
    timeout_s: Option<i64>,
    /// The settings of its queue, as they are stored.
    settings: Option<String>,
}

impl Usual {
    /// What a claim teaches that saw these heads, of lanes that its worker serves and of others: where the waiting jobs of a
    /// queue begin is known only to who looks at all of them.
    pub(super) fn seen(heads: &[Head], worker: &Worker) -> Lesson {
        match heads {
            [] => Lesson::Nothing,
            [only] if only.is_plain() && only.is_served_by(worker) => {
                let Head { head, lane, settings, stored, .. } = only.clone();
                let timeout_s = settings.timeout_s_for(&lane.kind);
                Lesson::Usual(Self { id: head.lane, lane, takes: worker.takes(), timeout_s, settings: stored })
            }
            _ => Lesson::Unusual,
        }
    }

    pub(super) fn lane(&self) -> &Lane {
        &self.lane
    }

    pub(super) fn queues(&self) -> &[Name] {
        &self.takes.queues
    }
}

impl Head {
    /// Whether its jobs are there for whoever comes, and nobody hears of that.
    fn is_plain(&self) -> bool {
        let is_free = !self.lane.guarded && self.lane.affinity.is_none();
        is_free && !is_limited(&self.settings) && self.settings.webhook.is_none()
    }
}

pub(super) struct AtOnce {
    pub(super) tenant: TenantId,
    pub(super) worker: WorkerId,
    pub(super) max: usize,
    pub(super) affinity: Affinity,
    pub(super) usual: Arc<Usual>,
    pub(super) look: Look,
    /// The clock of the triggers at which nobody listened to such jobs.
    pub(super) triggers: i64,
    pub(super) shift_ms: i64,
}

// Whether nothing waits is asked where all is as usual: from the beginning of each lane, that may be a long way.
//
// Whose lease has passed may still live, after an outage: the whole claim looks closer. A lease is renewed as `Worker::claimed`
// does it. The columns of jobs come in the order in which `Found::read` reads them.
//
// What is read comes by way of `taken`, and PostgreSQL asks for that once it has the other side of its join, which puts up the
// wall. That is how it does it and not what it promises: the tests of the wall hold a new version of it to that.
const AT_ONCE: Sql = Sql::postgres(
    "with clock as materialized (select now() + $6::bigint * interval '1 millisecond' as at),
     living as materialized (
         select w.lease_until - c.at >= (w.lease_ms - w.lease_ms / 10) * interval '1 millisecond' as is_fresh
         from workers w, clock c
         where w.id = $7 and w.tenant = $5 and w.dead_at is null and not w.draining and w.lease_until >= c.at),
     usual as materialized (
         select exists (select 1 from living)
             and (select version from trigger_clock where id = 1) = $8::bigint
             and coalesce((select q.paused_at is null and q.concurrency is null and q.rate_per_s is null
                               and q.settings::text is not distinct from $10::text
                           from queues q where q.tenant = $5 and q.name = $9::text), $10::text is null)
             and not exists (
                 select 1 from unnest($1::text[], $2::timestamptz[], $3::uuid[]) as n(queue, run_at, id)
                 cross join lateral (select l.lane from lanes l
                     where l.tenant = $5 and l.queue = n.queue and l.lane <> $11::bigint offset 0) l
                 cross join lateral (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                     and j.worker is null and (j.run_at, j.id) > (n.run_at, n.id) order by j.run_at, j.id limit 1) h) as so),
     due as materialized (
         select j.id, j.webhook from jobs j
         where j.lane = $11 and j.due_at is null and j.parked is null and j.worker is null
             and (j.run_at, j.id) > ($12::timestamptz, $13::uuid) and (select so from usual)
         order by j.run_at, j.id limit $14 for update skip locked),
     taken as (
         update jobs j set state = 'working', worker = $7, claim = $16, epoch = epoch + 1, attempt = attempt + 1,
             started_at = c.at, deadline_at = c.at + coalesce(timeout_s, $17::bigint) * interval '1 second',
             version = version + 1, updated_at = c.at
         from due d, clock c where j.id = d.id and not exists (select 1 from due where webhook is not null)
         returning j.id, j.epoch, j.payload, j.process, j.run, j.attempt, j.max_attempts,
             coalesce(j.timeout_s, $17::bigint) as timeout_s, j.created_at, j.run_at, j.lane, j.subject, j.webhook),
     renewed as (
         update workers w set lease_until = c.at + w.lease_ms * interval '1 millisecond',
             affinity = coalesce($15, w.affinity), last_claim_at = c.at
         from clock c where w.id = $7 and w.dead_at is null and exists (select 1 from taken)
             and (not exists (select 1 from living where is_fresh) or w.affinity is distinct from coalesce($15, w.affinity)
                 or w.last_claim_at is null or c.at - w.last_claim_at not between interval '0' and interval '1 second')),
     recorded as (
         insert into claims (claim, tenant, worker, jobs, remaining, at)
         select $16, $5, $7, json_agg(id), count(*), (select at from clock) from taken having count(*) > 0),
     counted as (
         insert into counter_deltas
             (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided)
         select $5, $9::text, 0, -count(*), count(*), 0, 0, 0, 0, 0 from taken having count(*) > 0)
     select t.*,
         t.id is null and (select so from usual) and exists (select 1 from living where is_fresh) and not exists (
             select 1 from unnest($1::text[]) as n(queue)
             cross join lateral (select l.lane from lanes l where l.tenant = $5 and l.queue = n.queue
                 and ($4::text[] = '{}' or l.kind = any($4)) offset 0) l
             cross join lateral (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                 and j.worker is null order by j.run_at, j.id limit 1) h),
         now()
     from (select set_config('windlass.tenant', $18, true) as wall offset 0) w
         left join lateral (select * from taken where w.wall is not null) t on true",
);
/// Behind the columns of a job: whether nothing waits for the worker, with nothing else to be done for it.
const NOTHING_WAITS: usize = 13;

impl Operation for AtOnce {
    const OPENS_UNHEARD: bool = true;
    /// None, where it is not as usual.
    type Output = Option<Done>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Done>, StoreError> {
        let now = tx.now();
        let Usual { id, lane, takes, timeout_s, settings } = &*self.usual;
        let floor = self.look.floor(&lane.queue);
        let kinds = takes.kinds.iter().flatten();
        let columns: Vec<Column<'_>> =
            self.look.columns(&takes.queues).into_iter().chain([Column::texts(kinds.map(Name::as_str))]).collect();
        let params = [
            Param::Int(self.tenant.0),
            Param::Int(self.shift_ms),
            Param::from(self.worker),
            Param::Int(self.triggers),
            Param::Text(lane.queue.as_str()),
            Param::text(settings.as_deref()),
            Param::Int(*id),
            Param::Time(floor.place.run_at),
            Param::Uuid(floor.place.id),
            Param::Int(self.max as i64),
            Param::text(self.affinity.as_ref().map(Label::as_str)),
            Param::Uuid(new_uuid(now)),
            Param::int(*timeout_s),
        ];
        let rows = tx.query_alone(&AT_ONCE, &columns, &params).await?;
        let is_empty = match rows.first() {
            None => return Err(StoreError::unexpected("a claim gave no answer")),
            Some(first) if !first.is_null(0)? => false,
            Some(first) if first.bool(NOTHING_WAITS)? => true,
            Some(_) => return Ok(None),
        };
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows.into_iter().filter(|_| !is_empty) {
            jobs.push(Found::read(row, lane)?.job);
        }
        jobs.sort_by_key(ClaimedJob::place);
        let raised = jobs.last().map(|last| {
            let reached = if jobs.len() < self.max { Place::settled(now) } else { last.place() };
            (lane.queue.clone(), floor.raised(reached.min(Place::settled(now))))
        });
        let claimed = Claimed::Jobs { jobs, takes: takes.clone(), draining: false, hindered: false };
        Ok(Some(Done { raised: raised.into_iter().collect(), ..Done::of(claimed) }))
    }
}

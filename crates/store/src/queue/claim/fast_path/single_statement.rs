//! A claim in one statement and one round trip, on PostgreSQL.
//!
//! Most claims of a worker resemble its last one: its queues have work in one lane, without guards, limits, webhooks and
//! triggers. The statement claims from that lane if this is still so, or reports that no job waits. Otherwise it changes
//! nothing and declines.

use std::sync::Arc;

use domain::{JobState, Label, Name, TenantId};

use super::hints::FastPathLane;
use super::watermarks::JobCursor;
use crate::db::clock::new_uuid;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::claim::claimed_row::ClaimColumns;
use crate::queue::claim::lane_heads::LaneQuery;
use crate::queue::claim::{ClaimEffects, ClaimRequest, Claimed, ClaimedJob};

pub(in crate::queue::claim) struct SingleStatementClaim {
    pub(in crate::queue::claim) request: ClaimRequest,
    pub(in crate::queue::claim) lane: Arc<FastPathLane>,
    pub(in crate::queue::claim) query: LaneQuery,
    /// The version of the triggers for which no trigger matches such a claim.
    pub(in crate::queue::claim) trigger_version: i64,
    pub(in crate::queue::claim) shift_ms: i64,
}

// The statement checks that no job waits at all only if everything else is as expected: the check starts at the beginning of
// each lane, which may be a long scan.
//
// After an outage a worker with an expired lease may still be alive; the plain claim decides that. The lease is renewed as in
// `Worker::claimed`.
const CLAIM: Sql = Sql::postgres(
    "with clock as materialized (select now() + $6::bigint * interval '1 millisecond' as at),
     living as materialized (
         select w.lease_until - c.at >= (w.lease_ms - w.lease_ms / 10) * interval '1 millisecond' as is_fresh
         from workers w, clock c
         where w.id = $7 and w.tenant = $5 and w.dead_at is null and not w.draining and w.lease_until >= c.at),
     expectation as materialized (
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
                     and j.worker is null and (j.run_at, j.id) > (n.run_at, n.id) order by j.run_at, j.id limit 1) h) as holds),
     due as materialized (
         select j.id, j.payload_bytes, j.webhook, j.has_inputs from jobs j
         where j.lane = $11 and j.due_at is null and j.parked is null and j.worker is null
             and (j.run_at, j.id) > ($12::timestamptz, $13::uuid) and (select holds from expectation)
         order by j.run_at, j.id limit $14 for update skip locked),
     fitting as (
         select id from (
             select id, sum(payload_bytes) over (rows unbounded preceding) - payload_bytes as bytes_before from due) sized
         where bytes_before < $18::bigint),
     taken as (
         update jobs j set state = 'working', worker = $7, claim = $16, epoch = epoch + 1, attempt = attempt + 1,
             started_at = c.at, deadline_at = c.at + coalesce(timeout_s, $17::bigint) * interval '1 second',
             version = version + 1, updated_at = c.at
         from fitting f, clock c where j.id = f.id and not exists (select 1 from due where webhook is not null or has_inputs)
         returning j.id, j.epoch, j.payload, j.process, j.run, j.attempt, j.max_attempts,
             coalesce(j.timeout_s, $17::bigint) as timeout_s, j.created_at, j.run_at, j.webhook is not null as has_webhook,
             j.has_journal),
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
         t.id is null and (select holds from expectation) and exists (select 1 from living where is_fresh) and not exists (
             select 1 from unnest($1::text[]) as n(queue)
             cross join lateral (select l.lane from lanes l where l.tenant = $5 and l.queue = n.queue
                 and ($4::text[] = '{}' or l.kind = any($4)) offset 0) l
             cross join lateral (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                 and j.worker is null order by j.run_at, j.id limit 1) h) as nothing_waits,
         now() as now
     from (select 1) one left join taken t on true",
);
impl Operation for SingleStatementClaim {
    const LAZY_BEGIN: bool = true;
    /// `None` if the statement declined.
    type Output = Option<ClaimEffects>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.request.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<ClaimEffects>, StoreError> {
        let now = tx.now();
        let ClaimRequest { tenant, worker, max, max_bytes, affinity, .. } = &self.request;
        let FastPathLane { id, lane, claim_filter, timeout_s, settings } = &*self.lane;
        let watermark = self.query.watermark(&lane.queue);
        let kinds = claim_filter.kinds.iter().flatten();
        let columns: Vec<Column<'_>> = self
            .query
            .columns(&claim_filter.queues)
            .into_iter()
            .chain([Column::texts(kinds.map(Name::as_str))])
            .collect();
        let params = [
            Param::Int(tenant.0),
            Param::Int(self.shift_ms),
            Param::from(*worker),
            Param::Int(self.trigger_version),
            Param::Text(lane.queue.as_str()),
            Param::text(settings.as_deref()),
            Param::Int(*id),
            Param::Time(watermark.cursor.run_at),
            Param::Uuid(watermark.cursor.id),
            Param::Int(*max as i64),
            Param::text(affinity.as_ref().map(Label::as_str)),
            Param::Uuid(new_uuid(now)),
            Param::int(*timeout_s),
            Param::Int(*max_bytes as i64),
        ];
        let rows = tx.query_as_transaction(&CLAIM, &columns, &params).await?;
        let is_empty = match rows.first() {
            None => return Err(StoreError::unexpected("the claim statement returned no row")),
            Some(first) if !first.is_null("id")? => false,
            Some(first) if first.bool("nothing_waits")? => true,
            Some(_) => return Ok(None),
        };
        let columns = ClaimColumns::of(&rows[0])?;
        let mut jobs = Vec::with_capacity(rows.len());
        for mut row in rows.into_iter().filter(|_| !is_empty) {
            jobs.push(columns.read(&mut row, *id, lane, JobState::Working)?);
        }
        jobs.sort_by_key(ClaimedJob::cursor);
        // The statement may have locked jobs that it did not take.
        let is_full = jobs.iter().map(|job| job.payload.len()).sum::<usize>() >= *max_bytes;
        let skipped_queues = is_full.then(|| lane.queue.clone()).into_iter().collect();
        let watermarks = jobs.last().map(|last| {
            let taken_up_to = if jobs.len() < *max && !is_full { JobCursor::settled(now) } else { last.cursor() };
            (lane.queue.clone(), watermark.raised(taken_up_to.min(JobCursor::settled(now))))
        });
        let claim_filter = claim_filter.clone();
        let claimed = Claimed::Jobs { jobs, claim_filter, draining: false, may_have_more: false };
        let watermarks = watermarks.into_iter().collect();
        Ok(Some(ClaimEffects { watermarks, skipped_queues, ..ClaimEffects::of(claimed) }))
    }
}

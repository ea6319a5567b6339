//! Fills a claim with jobs: the rounds of the claim rules, and the statement for lanes without guards and limits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::queue::claim::next_lanes;
use domain::{Affinity, JobId, JobState, LaneHead, Name, TenantId, Time, WorkerId};
use uuid::Uuid;

use super::ClaimedJob;
use super::capacity::{is_limited, spend_tokens};
use super::fast_path::claimed_row_cache::ClaimedRow;
use super::fast_path::watermarks::JobCursor;
use super::lane_heads::WaitingLane;
use crate::db::clock::new_uuid;
use crate::db::codec::to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::{Lane, LaneCache};
use crate::queue::transition::{self, StateChange};
use crate::queue::workers::Worker;
use crate::triggers::job_events::QUEUE_WEBHOOK;

/// Maximum number of rounds of a claim. Each round fills the claim or removes lanes from it.
const MAX_ROUNDS: usize = 64;

// The window function sees the jobs in the order of `due`, which needs no sort.
//
// On SQLite the columns are selected before the update: `returning` buffers every row until the last one is written, which
// is slower. `claimed_row` reads the columns.
const TAKE: Sql = Sql::new(
    &[
        "select id, epoch + 1 as epoch, payload, process, run, attempt + 1 as attempt, max_attempts,
             coalesce(timeout_s, $6) as timeout_s, created_at, run_at, coalesce(webhook, $9) is not null as has_webhook, has_journal,
             process is null and unique_key is null and triggered_by is null and run is null as is_cacheable, has_inputs,
             rowid
         from jobs where lane = $1 and due_at is null and parked is null and worker is null order by run_at, id limit $2",
        "update or fail jobs set state = $10, worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
             started_at = $5, deadline_at = $5 + coalesce(timeout_s, $6) * 1000000, version = version + 1, updated_at = $5,
             webhook = coalesce(webhook, $9)
         where rowid in (select value from rarray($12))",
    ],
    "with due as materialized (
         select id, payload_bytes from jobs where lane = $1 and due_at is null and parked is null and worker is null
             and (run_at, id) > ($7, $8)
         order by run_at, id limit $2 for update skip locked),
     fitting as (
         select id from (
             select id, sum(payload_bytes) over (rows unbounded preceding) - payload_bytes as bytes_before from due) sized
         where bytes_before < $11::bigint)
     update jobs j set state = $10, worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
         started_at = $5::timestamptz, deadline_at = $5::timestamptz + coalesce(timeout_s, $6::bigint) * interval '1 second',
         version = version + 1, updated_at = $5::timestamptz, webhook = coalesce(webhook, $9::json)
     from fitting where j.id = fitting.id
     returning j.id, j.epoch, j.payload, j.process, j.run, j.attempt, j.max_attempts,
         coalesce(j.timeout_s, $6::bigint) as timeout_s, j.created_at, j.run_at, j.lane, j.subject,
         j.has_journal, j.has_inputs, j.webhook is not null as has_webhook",
);
const INSERT_CLAIM: Sql = Sql::both(&["insert into claims (claim, tenant, worker, jobs, remaining, at)
     values ($1, $2, $3, $4, $5, $6)"]);

/// A claim while it is being filled.
pub(super) struct ClaimBuilder {
    pub(super) claim: Uuid,
    pub(super) worker: WorkerId,
    pub(super) tenant: TenantId,
    pub(super) held_affinity: Affinity,
    /// The affinity that the worker has loaded now. Jobs of another one start in `loading`.
    loaded_affinity: Affinity,
    /// The worker is a slot of a pool: it needs a loaded affinity also for jobs without one.
    is_slot: bool,
    /// How many more jobs each limited queue may start.
    pub(super) capacity: BTreeMap<Name, usize>,
    pub(super) jobs: Vec<ClaimedJob>,
    /// How many bytes of payloads the claim may still take. It may exceed them with its last job.
    pub(super) bytes_left: usize,
    pub(super) claimed_rows: Vec<(JobId, ClaimedRow)>,
    pub(super) counters: CounterDeltas,
    /// Per lane, the position up to which every waiting job was taken.
    pub(super) taken_up_to: HashMap<i64, JobCursor>,
    pub(super) skipped_queues: BTreeSet<Name>,
    /// A lane with jobs returned none because other claims hold locks, or the claim stopped at `MAX_ROUNDS`.
    pub(super) may_have_more: bool,
}

impl ClaimBuilder {
    pub(super) fn new(now: Time, tenant: TenantId, worker: &Worker, held_affinity: Affinity, max_bytes: usize) -> Self {
        Self {
            claim: new_uuid(now),
            worker: worker.id,
            tenant,
            loaded_affinity: held_affinity.clone(),
            is_slot: worker.node.is_some(),
            held_affinity,
            capacity: BTreeMap::new(),
            jobs: Vec::new(),
            bytes_left: max_bytes,
            claimed_rows: Vec::new(),
            counters: CounterDeltas::default(),
            taken_up_to: HashMap::new(),
            skipped_queues: BTreeSet::new(),
            may_have_more: false,
        }
    }

    /// Takes up to `max` jobs from these lanes, in the order of the claim rules.
    pub(super) async fn fill(
        &mut self,
        tx: &mut Tx<'_>,
        mut heads: Vec<WaitingLane>,
        max: usize,
    ) -> Result<(), StoreError> {
        let now = tx.now();
        self.load_capacity(tx, &heads).await?;
        for round in 0.. {
            if self.jobs.len() >= max || self.bytes_left == 0 {
                break;
            }
            if round == MAX_ROUNDS {
                self.may_have_more = true;
                break;
            }
            heads.retain(|head| self.capacity.get(&head.lane.queue).is_none_or(|capacity| *capacity > 0));
            let candidates: Vec<LaneHead> = heads.iter().map(|head| head.head.clone()).collect();
            let Some(choice) = next_lanes(&candidates, &self.held_affinity, now) else { break };
            // A claim holds jobs of one affinity: after a second swap they would wait for each other on the worker.
            if choice.swap && self.jobs.iter().any(|job| job.affinity.is_some()) {
                break;
            }
            let (chosen, rest): (Vec<WaitingLane>, Vec<WaitingLane>) =
                heads.into_iter().partition(|head| choice.lanes.contains(&head.head.lane));
            let before = self.jobs.len();
            let more = match chosen.as_slice() {
                [only] if !only.lane.guarded && !is_limited(&only.settings) => {
                    self.take_plain(tx, only, max - before).await?
                }
                _ => self.take_guarded(tx, &chosen, max - before).await?,
            };
            let taken = self.jobs.len() - before;
            if taken > 0 {
                let queue = self.jobs[before].queue.clone();
                let counts = self.counters.queue(self.tenant, &queue);
                counts.swaps_made += i64::from(choice.swap);
                counts.swaps_avoided += if choice.passed_over { taken as i64 } else { 0 };
                self.held_affinity = choice.affinity;
            }
            heads = rest;
            if more {
                heads.extend(chosen);
            }
        }
        Ok(())
    }

    /// The state in which the claim puts the jobs of this lane.
    pub(super) fn claimed_state(&self, lane: &Lane) -> JobState {
        let is_loaded = match lane.affinity {
            None => !self.is_slot || self.loaded_affinity.is_some(),
            Some(_) => lane.affinity == self.loaded_affinity,
        };
        if is_loaded { JobState::Working } else { JobState::Loading }
    }

    /// Takes from one lane in one statement. Returns false: the lane is exhausted for this claim.
    async fn take_plain(&mut self, tx: &mut Tx<'_>, head: &WaitingLane, want: usize) -> Result<bool, StoreError> {
        let params = [
            Param::Int(head.head.lane),
            Param::Int(want as i64),
            Param::from(self.worker),
            Param::Uuid(self.claim),
            Param::Time(tx.now()),
            Param::int(head.settings.timeout_s_for(&head.lane.kind)),
            Param::Time(head.watermark.run_at),
            Param::Uuid(head.watermark.id),
            Param::json(head.settings.webhook.as_ref().map(|_| QUEUE_WEBHOOK)),
            Param::Text(self.claimed_state(&head.lane).as_str()),
            Param::Int(self.bytes_left as i64),
        ];
        let before = self.jobs.len();
        let rows = tx.change_and_return(&TAKE, None, &params, Some(self.bytes_left)).await?;
        let found = rows.len();
        self.add(rows, |_| Ok((head.head.lane, &head.lane)))?;
        self.may_have_more |= found == 0;
        let last = self.jobs[before..].last().map(ClaimedJob::cursor);
        if self.bytes_left == 0 && tx.is_postgres() {
            // The statement has locked jobs that it did not take.
            self.skipped_queues.insert(head.lane.queue.clone());
        }
        let is_exhausted = found < want && self.bytes_left > 0;
        let up_to = if is_exhausted { Some(JobCursor::settled(tx.now())) } else { last };
        self.taken_up_to.extend(up_to.map(|cursor| (head.head.lane, cursor)));
        Ok(false)
    }

    /// Writes the row of the claim, and everything that follows from the jobs that it holds.
    pub(super) async fn write(
        mut self,
        tx: &mut Tx<'_>,
        lanes: &LaneCache,
        effects: &mut Effects,
    ) -> Result<Vec<ClaimedJob>, StoreError> {
        if self.jobs.is_empty() {
            return Ok(self.jobs);
        }
        let ids = to_json(&self.jobs.iter().map(|job| job.id.uuid()).collect::<Vec<_>>());
        let params = [
            Param::Uuid(self.claim),
            Param::Int(self.tenant.0),
            Param::from(self.worker),
            Param::Json(&ids),
            Param::Int(self.jobs.len() as i64),
            Param::Time(tx.now()),
        ];
        tx.defer(&INSERT_CLAIM, &[], &params).await?;
        spend_tokens(tx, self.tenant, &self.jobs, &self.capacity).await?;
        let changes: Vec<StateChange<'_>> =
            self.jobs.iter().map(|job| job.state_change(self.tenant, self.worker)).collect();
        transition::apply_consequences(tx, lanes, &changes, &mut self.counters, effects).await?;
        self.counters.write(tx).await?;
        Ok(self.jobs)
    }
}

//! Claims jobs that must hold something while they run: a subject, a concurrency key, or a slot of a queue with a limit.

use std::collections::{BTreeSet, HashMap};

use domain::{Epoch, JobId, Label, Name, Time};

use super::fill::ClaimBuilder;
use super::lane_heads::WaitingLane;
use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::guard::{ActiveBackoffs, Exclusions, SubjectProcess};
use crate::queue::holds;
use crate::queue::holds::{Holder, Want};
use crate::queue::lanes::Lane;
use crate::triggers::job_events::QUEUE_WEBHOOK;

/// Maximum number of guarded jobs that one round examines. Each may need locks of its own.
const GUARDED_JOBS: usize = 100;

// Starts at the first waiting job: on PostgreSQL the index has dead entries of ended jobs before it until the next vacuum.
const PEEK: Sql = Sql::new(
    &["select id, lane, run_at, subject, process, concurrency_key, timeout_s, epoch, payload_bytes from jobs
       where lane = $1 and due_at is null and parked is null and worker is null and (run_at, id) >= ($2, $3)
       order by run_at, id limit $4"],
    "select j.id, j.lane, j.run_at, j.subject, j.process, j.concurrency_key, j.timeout_s, j.epoch, j.payload_bytes
     from unnest($1::bigint[], $2::timestamptz[], $3::uuid[]) as n(lane, run_at, id) cross join lateral (
         select * from jobs where jobs.lane = n.lane and due_at is null and parked is null and worker is null
             and (jobs.run_at, jobs.id) >= (n.run_at, n.id)
         order by run_at, id limit $4 for update skip locked) j",
);
const TAKE_CHOSEN: Sql = Sql::new(
    &["update jobs set state = $5, worker = $6, claim = $7, epoch = epoch + 1, attempt = attempt + 1,
           started_at = $8, deadline_at = $8 + $2 * 1000000, held = $3, version = version + 1, updated_at = $8,
           webhook = coalesce(webhook, $4)
       where id = $1
       returning id, epoch, payload, process, run, attempt, max_attempts, $2 as timeout_s, created_at, run_at, lane, subject,
           has_inputs, webhook is not null as has_webhook, has_journal"],
    "update jobs j set state = n.state, worker = $6, claim = $7, epoch = epoch + 1, attempt = attempt + 1,
         started_at = $8::timestamptz, deadline_at = $8::timestamptz + n.timeout_s * interval '1 second',
         held = n.held <> 0, version = version + 1, updated_at = $8::timestamptz, webhook = coalesce(j.webhook, n.webhook)
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::json[], $5::text[]) as n(id, timeout_s, held, webhook, state)
     where j.id = n.id
     returning j.id, j.epoch, j.payload, j.process, j.run, j.attempt, j.max_attempts, n.timeout_s, j.created_at,
         j.run_at, j.lane, j.subject, j.has_inputs, j.webhook is not null as has_webhook, j.has_journal",
);
const PARK: Sql = Sql::new(
    &["update jobs set parked = $2 where id = $1"],
    "update jobs j set parked = n.scope from unnest($1::uuid[], $2::text[]) as n(id, scope) where j.id = n.id",
);

impl ClaimBuilder {
    /// Takes from several lanes, oldest first, the jobs whose holds are free, and parks the others. Returns whether the lanes
    /// may have more jobs.
    pub(super) async fn take_guarded(
        &mut self,
        tx: &mut Tx<'_>,
        chosen: &[WaitingLane],
        want: usize,
    ) -> Result<bool, StoreError> {
        let guarded = chosen.iter().any(|head| head.lane.guarded);
        // The first jobs may be blocked by holds of others, so the round examines more jobs than it wants.
        let examined = if guarded { GUARDED_JOBS } else { want };
        let want = want.min(examined);
        let from = [
            Column::ints(chosen.iter().map(|head| head.head.lane)),
            Column::Time(chosen.iter().map(|head| Some(head.first.run_at)).collect()),
            Column::uuids(chosen.iter().map(|head| head.first.id)),
        ];
        let rows = tx.query_each(&PEEK, &from, &[Param::Int(examined as i64)]).await?;
        self.may_have_more |= rows.is_empty() && tx.is_postgres();
        let by_lane: HashMap<i64, &WaitingLane> = chosen.iter().map(|head| (head.head.lane, head)).collect();
        let mut candidates =
            rows.iter().map(|row| GuardedJob::read(row, &by_lane)).collect::<Result<Vec<_>, StoreError>>()?;
        candidates.sort_by_key(|candidate| (candidate.run_at, candidate.id));
        candidates.truncate(examined);
        let on_subjects = candidates.iter().filter_map(|candidate| candidate.on.as_ref());
        let exclusions = Exclusions::load(tx, self.tenant, on_subjects).await?;
        candidates.iter_mut().for_each(|candidate| candidate.excludes = exclusions.scopes(candidate.on.as_ref()));
        let scopes: BTreeSet<&str> = candidates.iter().flat_map(GuardedJob::scopes).collect();
        let mut holders = holds::lock_and_count(tx, self.tenant, &scopes).await?;
        let held_off = ActiveBackoffs::load(tx, self.tenant, candidates.iter().filter_map(|c| c.on.as_ref())).await?;
        let mut taken: Vec<&GuardedJob> = Vec::new();
        let mut parked: Vec<(&GuardedJob, String)> = Vec::new();
        let mut bytes = 0;
        for candidate in &candidates {
            if taken.len() == want || bytes >= self.bytes_left {
                break;
            }
            if self.capacity.get(&candidate.queue).is_some_and(|capacity| *capacity == 0) {
                continue;
            }
            if let Some(scope) = held_off.scope(candidate.on.as_ref()) {
                parked.push((candidate, scope));
                continue;
            }
            let held = |scope: &str| holders.get(scope).copied().unwrap_or(0);
            let full = candidate.wants.iter().find(|want| held(&want.scope) >= want.limit).map(|want| &want.scope);
            if let Some(scope) = full.or_else(|| candidate.excludes.iter().find(|scope| held(scope) > 0)) {
                parked.push((candidate, scope.clone()));
                continue;
            }
            for want in &candidate.wants {
                *holders.entry(want.scope.clone()).or_default() += 1;
            }
            if let Some(capacity) = self.capacity.get_mut(&candidate.queue) {
                *capacity -= 1;
            }
            bytes += candidate.payload_bytes;
            taken.push(candidate);
        }
        if tx.is_postgres() && !taken.is_empty() && rows.len() > taken.len() + parked.len() {
            self.skipped_queues.extend(chosen.iter().map(|head| head.lane.queue.clone()));
        }
        let park =
            [Column::jobs(parked.iter().map(|(job, _)| job.id)), Column::texts(parked.iter().map(|(_, s)| s.as_str()))];
        tx.execute_each(&PARK, &park, &[]).await?;
        let held: Vec<(String, Holder)> = taken.iter().flat_map(|candidate| candidate.holds()).collect();
        holds::acquire(tx, self.tenant, &held).await?;
        let columns = [
            Column::jobs(taken.iter().map(|candidate| candidate.id)),
            Column::Int(taken.iter().map(|candidate| candidate.timeout_s).collect()),
            Column::ints(taken.iter().map(|candidate| i64::from(candidate.holds().next().is_some()))),
            Column::Json(taken.iter().map(|candidate| candidate.queue_webhook.then_some(QUEUE_WEBHOOK)).collect()),
            Column::texts(taken.iter().map(|candidate| self.claimed_state(&by_lane[&candidate.lane].lane).as_str())),
        ];
        let params = [Param::from(self.worker), Param::Uuid(self.claim), Param::Time(tx.now())];
        let rows = tx.query_each(&TAKE_CHOSEN, &columns, &params).await?;
        self.add_rows(rows, &by_lane.iter().map(|(id, head)| (*id, &head.lane)).collect())?;
        // Behind parked jobs, and behind jobs of a queue that is full now, there may be others that were not examined.
        Ok(!parked.is_empty() || candidates.len() == examined)
    }
}

/// A job that the claim takes if its holds are free.
struct GuardedJob {
    id: JobId,
    lane: i64,
    /// The epoch of this claim.
    epoch: Epoch,
    queue: Name,
    run_at: Time,
    timeout_s: Option<i64>,
    payload_bytes: usize,
    on: Option<SubjectProcess>,
    wants: Vec<Want>,
    /// The queue has a webhook.
    queue_webhook: bool,
    /// Scopes that must be free although the job does not hold them: the subject, for processes that exclude this one.
    excludes: Vec<String>,
    /// The scope of the queue, if the queue has a concurrency limit.
    queue_scope: Option<String>,
}

impl GuardedJob {
    fn read(row: &Row, lanes: &HashMap<i64, &WaitingLane>) -> Result<Self, StoreError> {
        let head = lanes.get(&row.int("lane")?).ok_or_else(|| StoreError::unexpected("a job from another lane"))?;
        let Lane { queue, kind, .. } = &head.lane;
        let subject = row.opt_text("subject")?.map(|text| Label::stored(&text));
        let process = row.opt_text("process")?;
        let on = subject.as_ref().map(|subject| SubjectProcess {
            subject: subject.to_string(),
            process: process.clone().unwrap_or_else(|| kind.to_string()),
        });
        let key = row.opt_text("concurrency_key")?.map(|text| Label::stored(&text));
        let per_key = head.settings.per_key_limit();
        Ok(Self {
            id: row.job("id")?,
            lane: row.int("lane")?,
            epoch: Epoch(row.int("epoch")?).next(),
            queue: queue.clone(),
            run_at: row.time("run_at")?,
            payload_bytes: row.int("payload_bytes")? as usize,
            timeout_s: row.opt_int("timeout_s")?.or_else(|| head.settings.timeout_s_for(kind)),
            on,
            wants: holds::wants(queue, kind, subject.as_ref(), process.as_deref(), key.as_ref(), per_key),
            excludes: Vec::new(),
            queue_webhook: head.settings.webhook.is_some(),
            queue_scope: head.settings.concurrency.map(|_| holds::queue_scope(queue)),
        })
    }

    /// The scopes that the claim must lock and count before it takes the job.
    fn scopes(&self) -> impl Iterator<Item = &str> {
        self.wants.iter().map(|want| want.scope.as_str()).chain(self.excludes.iter().map(String::as_str))
    }

    fn holds(&self) -> impl Iterator<Item = (String, Holder)> + '_ {
        let scopes = self.wants.iter().map(|want| want.scope.clone()).chain(self.queue_scope.clone());
        scopes.map(|scope| (scope, (self.id, self.epoch)))
    }
}

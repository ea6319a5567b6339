//! Hands jobs to a worker (Q6, X3): priority, held affinity, age, with a starvation bound; limits and holds respected.
//!
//! The heads of the lanes are read, the rules choose lanes, jobs are taken from them. A lane without guards is taken
//! from by one statement; the others go through holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::claim::next_lanes;
use domain::{Affinity, Epoch, JobId, JobState, Label, LaneHead, Name, QueueSettings, TenantId, Time, WorkerId};
use uuid::Uuid;

use crate::clock::new_uuid;
use crate::codec::{settings_from_json, to_json};
use crate::counters::Changes;
use crate::error::StoreError;
use crate::jobs::holds::{self, Holder, Want};
use crate::jobs::transition::{Notice, write_outbox};
use crate::lanes::{Lane, lane_at};
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::workers::{self, Worker};

/// Guarded jobs one claim looks at: each may need locks of its own.
const GUARDED_JOBS: usize = 100;
/// Choices of lanes one claim makes: each either fills it or leaves fewer jobs in the way.
const ROUNDS: usize = 64;

#[derive(Clone, Debug)]
pub struct ClaimedJob {
    pub id: JobId,
    pub epoch: Epoch,
    pub queue: Name,
    pub kind: Name,
    pub payload: String,
    pub affinity: Affinity,
    pub priority: i32,
    pub subject: Option<String>,
    pub process: Option<String>,
    pub run: Option<String>,
    pub attempt: i32,
    pub max_attempts: i32,
    pub timeout_s: Option<i64>,
    pub created_at: Time,
    run_at: Time,
}

#[derive(Clone, Debug)]
pub enum Claimed {
    Jobs {
        jobs: Vec<ClaimedJob>,
        /// Where to listen for more.
        queues: Vec<Name>,
        draining: bool,
    },
    /// The worker's lease has passed.
    Gone,
    NotFound,
}

impl Store {
    /// Up to `max` jobs for this worker; none is an answer too. `affinity` is what it holds now, if it says so.
    pub async fn claim(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        max: usize,
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        let claimed = self.write(Claim { tenant, worker, max, affinity }).await?;
        if let Claimed::Jobs { jobs, .. } = &claimed {
            jobs.iter().for_each(|job| self.hints().tell_changed(job.id));
        }
        Ok(claimed)
    }
}

struct Claim {
    tenant: TenantId,
    worker: WorkerId,
    max: usize,
    affinity: Affinity,
}

/// A lane with work, and what its queue says about it.
struct Head {
    head: LaneHead,
    lane: Lane,
    settings: QueueSettings,
}

const HEADS: Sql = Sql::new(
    &["select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
           q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings,
           (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
                and j.worker is null order by j.run_at, j.id limit 1)
       from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
       where l.tenant = $2 and l.queue = $1 and q.paused_at is null limit 10000"],
    "select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded,
         q.starvation_s, q.concurrency, q.per_key, q.rate_per_s, q.settings, h.run_at
     from unnest($1::text[]) as n(queue) join lanes l on l.tenant = $2 and l.queue = n.queue
         left join queues q on q.tenant = l.tenant and q.name = l.queue
         cross join lateral (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null
             and j.parked is null and j.worker is null order by j.run_at, j.id limit 1) h
     where q.paused_at is null limit 10000",
);

// The claimed columns, in the order `claimed` reads them.
const TAKE: Sql = Sql::new(
    &["update jobs set state = 'working', worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
           started_at = $5, deadline_at = $5 + coalesce(timeout_s, $6) * 1000000, version = version + 1, updated_at = $5
       where id in (select id from jobs where lane = $1 and due_at is null and parked is null and worker is null
           order by run_at, id limit $2)
       returning id, epoch, lane, payload, subject, process, run, attempt, max_attempts, coalesce(timeout_s, $6),
           created_at, run_at, webhook"],
    "with due as materialized (
         select id from jobs where lane = $1 and due_at is null and parked is null and worker is null
         order by run_at, id limit $2 for update skip locked)
     update jobs j set state = 'working', worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
         started_at = $5::timestamptz, deadline_at = $5::timestamptz + coalesce(timeout_s, $6::bigint) * interval '1 second',
         version = version + 1, updated_at = $5::timestamptz
     from due where j.id = due.id
     returning j.id, j.epoch, j.lane, j.payload, j.subject, j.process, j.run, j.attempt, j.max_attempts,
         coalesce(j.timeout_s, $6::bigint), j.created_at, j.run_at, j.webhook",
);
const PEEK: Sql = Sql::new(
    &["select id, lane, run_at, subject, process, concurrency_key, timeout_s, epoch from jobs
       where lane = $1 and due_at is null and parked is null and worker is null order by run_at, id limit $2"],
    "select j.id, j.lane, j.run_at, j.subject, j.process, j.concurrency_key, j.timeout_s, j.epoch
     from unnest($1::bigint[]) as n(lane) cross join lateral (
         select * from jobs where jobs.lane = n.lane and due_at is null and parked is null and worker is null
         order by run_at, id limit $2 for update skip locked) j",
);
const TAKE_CHOSEN: Sql = Sql::new(
    &["update jobs set state = 'working', worker = $4, claim = $5, epoch = epoch + 1, attempt = attempt + 1,
           started_at = $6, deadline_at = $6 + $2 * 1000000, held = $3, version = version + 1, updated_at = $6
       where id = $1
       returning id, epoch, lane, payload, subject, process, run, attempt, max_attempts, $2, created_at, run_at, webhook"],
    "update jobs j set state = 'working', worker = $4, claim = $5, epoch = epoch + 1, attempt = attempt + 1,
         started_at = $6::timestamptz, deadline_at = $6::timestamptz + n.timeout_s * interval '1 second',
         held = n.held <> 0, version = version + 1, updated_at = $6::timestamptz
     from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n(id, timeout_s, held) where j.id = n.id
     returning j.id, j.epoch, j.lane, j.payload, j.subject, j.process, j.run, j.attempt, j.max_attempts, n.timeout_s,
         j.created_at, j.run_at, j.webhook",
);
const PARK: Sql = Sql::new(
    &["update jobs set parked = $2 where id = $1"],
    "update jobs j set parked = n.scope from unnest($1::uuid[], $2::text[]) as n(id, scope) where j.id = n.id",
);
const INSERT_CLAIM: Sql = Sql::both(&["insert into claims (claim, tenant, worker, jobs, remaining, at)
     values ($1, $2, $3, $4, $5, $6)"]);

impl Operation for Claim {
    type Output = Claimed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Claimed, StoreError> {
        let now = tx.now();
        let worker = workers::load(tx, &[self.worker]).await?.pop().filter(|worker| worker.tenant == self.tenant);
        let Some(worker) = worker else { return Ok(Claimed::NotFound) };
        if !worker.is_alive(now) {
            return Ok(Claimed::Gone);
        }
        let queues = worker.queues.clone();
        if worker.draining {
            worker.touch(tx).await?;
            return Ok(Claimed::Jobs { jobs: Vec::new(), queues, draining: true });
        }
        let mut taking = Taking {
            claim: new_uuid(now),
            worker: worker.id,
            tenant: self.tenant,
            held: self.affinity.clone().or_else(|| worker.affinity.clone()),
            room: BTreeMap::new(),
            jobs: Vec::new(),
            changes: Changes::default(),
            notices: Vec::new(),
        };
        let heads = heads(tx, &worker).await?;
        taking.take(tx, heads, self.max).await?;
        let took = taking.jobs.iter().any(|job| job.affinity.is_some());
        let affinity = if took { taking.held.clone() } else { self.affinity.clone() };
        if taking.jobs.is_empty() {
            worker.touch(tx).await?;
        } else {
            worker.renew(tx, &affinity, Some(now)).await?;
        }
        Ok(Claimed::Jobs { jobs: taking.record(tx).await?, queues, draining: false })
    }
}

/// The lanes this worker may take from now.
async fn heads(tx: &mut Tx<'_>, worker: &Worker) -> Result<Vec<Head>, StoreError> {
    let queues = [Column::texts(worker.queues.iter().map(Name::as_str))];
    let rows = tx.query_each(&HEADS, &queues, &[Param::Int(worker.tenant.0)]).await?;
    let mut heads = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(waiting_since) = row.opt_time(12)? else { continue };
        let lane = lane_at(row, 1)?;
        let serves_kind = worker.kinds.as_ref().is_none_or(|kinds| kinds.contains(&lane.kind));
        let serves_affinity = match (&worker.affinities, &lane.affinity) {
            (Some(affinities), Some(affinity)) => affinities.contains(affinity),
            _ => true,
        };
        if !serves_kind || !serves_affinity {
            continue;
        }
        let mut settings = settings_from_json(row.opt_text(11)?.as_deref())?;
        settings.starvation_s = row.opt_int(7)?;
        settings.concurrency = row.opt_int(8)?.map(|limit| limit as u32);
        settings.per_key = row.opt_int(9)?.map(|limit| limit as u32);
        settings.rate_per_s = row.opt_real(10)?;
        let head = LaneHead {
            lane: row.int(0)?,
            priority: lane.priority,
            affinity: lane.affinity.clone(),
            waiting_since,
            starvation_ms: settings.starvation_ms(),
        };
        heads.push(Head { head, lane, settings });
    }
    Ok(heads)
}

/// A claim while it is being filled.
struct Taking {
    claim: Uuid,
    worker: WorkerId,
    tenant: TenantId,
    held: Affinity,
    /// How many more jobs each limited queue takes.
    room: BTreeMap<Name, usize>,
    jobs: Vec<ClaimedJob>,
    changes: Changes,
    notices: Vec<Notice>,
}

impl Taking {
    async fn take(&mut self, tx: &mut Tx<'_>, mut heads: Vec<Head>, max: usize) -> Result<(), StoreError> {
        let now = tx.now();
        self.find_room(tx, &heads).await?;
        for _ in 0..ROUNDS {
            if self.jobs.len() >= max {
                break;
            }
            heads.retain(|head| self.room.get(&head.lane.queue).is_none_or(|room| *room > 0));
            let candidates: Vec<LaneHead> = heads.iter().map(|head| head.head.clone()).collect();
            let Some(choice) = next_lanes(&candidates, &self.held, now) else { break };
            // One answer holds one affinity: a second swap would only make these jobs wait in the worker's hands.
            if choice.swap && self.jobs.iter().any(|job| job.affinity.is_some()) {
                break;
            }
            let (chosen, rest): (Vec<Head>, Vec<Head>) =
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
                let counts = self.changes.queue(self.tenant, &queue);
                counts.swaps_made += i64::from(choice.swap);
                counts.swaps_avoided += if choice.passed_over { taken as i64 } else { 0 };
                self.held = choice.affinity;
            }
            heads = rest;
            if more {
                heads.extend(chosen);
            }
        }
        Ok(())
    }

    /// Takes from one lane in one statement. Nothing more is to be had from it.
    async fn take_plain(&mut self, tx: &mut Tx<'_>, head: &Head, want: usize) -> Result<bool, StoreError> {
        let params = [
            Param::Int(head.head.lane),
            Param::Int(want as i64),
            Param::from(self.worker),
            Param::Uuid(self.claim),
            Param::Time(tx.now()),
            Param::int(head.settings.timeout_s_for(&head.lane.kind)),
        ];
        let rows = tx.query(&TAKE, &params).await?;
        self.add(&rows, &HashMap::from([(head.head.lane, &head.lane)]))?;
        Ok(false)
    }

    /// Takes from several lanes, oldest first, those jobs that get what they must hold. The others are parked. Gives
    /// whether there may be more.
    async fn take_guarded(&mut self, tx: &mut Tx<'_>, chosen: &[Head], want: usize) -> Result<bool, StoreError> {
        let guarded = chosen.iter().any(|head| head.lane.guarded);
        // Some of those in front may have to wait for what others hold: look at more than are wanted.
        let look = if guarded { GUARDED_JOBS } else { want };
        let want = want.min(look);
        let lanes = [Column::ints(chosen.iter().map(|head| head.head.lane))];
        let rows = tx.query_each(&PEEK, &lanes, &[Param::Int(look as i64)]).await?;
        let by_lane: HashMap<i64, &Head> = chosen.iter().map(|head| (head.head.lane, head)).collect();
        let mut candidates =
            rows.iter().map(|row| Candidate::read(row, &by_lane)).collect::<Result<Vec<_>, StoreError>>()?;
        candidates.sort_by_key(|candidate| (candidate.run_at, candidate.id));
        candidates.truncate(look);
        let scopes: BTreeSet<&str> =
            candidates.iter().flat_map(|candidate| candidate.wants.iter().map(|want| want.scope.as_str())).collect();
        let mut holders = holds::lock_and_count(tx, self.tenant, &scopes).await?;
        let mut taken: Vec<&Candidate> = Vec::new();
        let mut parked: Vec<(&Candidate, &str)> = Vec::new();
        for candidate in &candidates {
            if taken.len() == want {
                break;
            }
            if self.room.get(&candidate.queue).is_some_and(|room| *room == 0) {
                continue;
            }
            let full = |want: &&Want| holders.get(&want.scope).copied().unwrap_or(0) >= want.limit;
            if let Some(blocked) = candidate.wants.iter().find(full) {
                parked.push((candidate, &blocked.scope));
                continue;
            }
            for want in &candidate.wants {
                *holders.entry(want.scope.clone()).or_default() += 1;
            }
            if let Some(room) = self.room.get_mut(&candidate.queue) {
                *room -= 1;
            }
            taken.push(candidate);
        }
        let park =
            [Column::jobs(parked.iter().map(|(job, _)| job.id)), Column::texts(parked.iter().map(|(_, scope)| *scope))];
        tx.execute_each(&PARK, &park, &[]).await?;
        let held: Vec<(String, Holder)> = taken.iter().flat_map(|candidate| candidate.holds()).collect();
        holds::take(tx, self.tenant, &held).await?;
        let columns = [
            Column::jobs(taken.iter().map(|candidate| candidate.id)),
            Column::Int(taken.iter().map(|candidate| candidate.timeout_s).collect()),
            Column::ints(taken.iter().map(|candidate| i64::from(candidate.holds().next().is_some()))),
        ];
        let params = [Param::from(self.worker), Param::Uuid(self.claim), Param::Time(tx.now())];
        let rows = tx.query_each(&TAKE_CHOSEN, &columns, &params).await?;
        self.add(&rows, &by_lane.iter().map(|(id, head)| (*id, &head.lane)).collect())?;
        // Parked jobs, and those of a queue that is full now, stood before others that were not looked at.
        Ok(!parked.is_empty() || candidates.len() == look)
    }

    fn add(&mut self, rows: &[Row], lanes: &HashMap<i64, &Lane>) -> Result<(), StoreError> {
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            let lane = lanes.get(&row.int(2)?).ok_or_else(|| StoreError::unexpected("a job from another lane"))?;
            let job = claimed(row, lane)?;
            self.changes.moved(self.tenant, &lane.queue, JobState::Queued, JobState::Working);
            if row.opt_text(12)?.is_some() {
                self.notices.push(Notice {
                    tenant: self.tenant,
                    job: job.id,
                    from: JobState::Queued,
                    to: JobState::Working,
                    attempt: job.attempt,
                });
            }
            jobs.push(job);
        }
        jobs.sort_by_key(|job| (job.run_at, job.id));
        self.jobs.extend(jobs);
        Ok(())
    }

    /// How much room the queues with a limit or a rate have. Their scopes stay locked until the commit.
    async fn find_room(&mut self, tx: &mut Tx<'_>, heads: &[Head]) -> Result<(), StoreError> {
        let limited: BTreeMap<&Name, &QueueSettings> = heads
            .iter()
            .filter(|head| is_limited(&head.settings))
            .map(|head| (&head.lane.queue, &head.settings))
            .collect();
        if limited.is_empty() {
            return Ok(());
        }
        let scopes: BTreeMap<String, &Name> = limited.keys().map(|queue| (holds::queue_scope(queue), *queue)).collect();
        let holders = holds::lock_and_count(tx, self.tenant, &scopes.keys().map(String::as_str).collect()).await?;
        for (scope, queue) in scopes {
            let settings = limited[queue];
            let running = holders.get(&scope).copied().unwrap_or(0);
            let places = settings.concurrency.map_or(usize::MAX, |limit| limit.saturating_sub(running) as usize);
            let tokens = match settings.rate_per_s {
                Some(rate) => tokens(tx, self.tenant, queue, rate).await?,
                None => usize::MAX,
            };
            self.room.insert(queue.clone(), places.min(tokens));
        }
        Ok(())
    }

    /// Writes the claim itself once it is known what it holds.
    async fn record(self, tx: &mut Tx<'_>) -> Result<Vec<ClaimedJob>, StoreError> {
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
        tx.execute(&INSERT_CLAIM, &params).await?;
        self.changes.write(tx).await?;
        spend_tokens(tx, self.tenant, &self.jobs, &self.room).await?;
        write_outbox(tx, self.notices, tx.now()).await?;
        Ok(self.jobs)
    }
}

fn is_limited(settings: &QueueSettings) -> bool {
    settings.concurrency.is_some() || settings.rate_per_s.is_some()
}

/// A job that could be taken if it gets what it must hold.
struct Candidate {
    id: JobId,
    /// Of the claim that is being made.
    epoch: Epoch,
    queue: Name,
    run_at: Time,
    timeout_s: Option<i64>,
    wants: Vec<Want>,
    /// The place in its queue that it takes, where places are counted.
    place: Option<String>,
}

impl Candidate {
    fn read(row: &Row, lanes: &HashMap<i64, &Head>) -> Result<Self, StoreError> {
        let head = lanes.get(&row.int(1)?).ok_or_else(|| StoreError::unexpected("a job from another lane"))?;
        let Lane { queue, kind, .. } = &head.lane;
        let subject = row.opt_text(3)?.map(|text| Label::stored(&text));
        let key = row.opt_text(5)?.map(|text| Label::stored(&text));
        let per_key = head.settings.per_key_limit();
        Ok(Self {
            id: row.job(0)?,
            epoch: Epoch(row.int(7)?).next(),
            queue: queue.clone(),
            run_at: row.time(2)?,
            timeout_s: row.opt_int(6)?.or_else(|| head.settings.timeout_s_for(kind)),
            wants: holds::wants(queue, kind, subject.as_ref(), row.opt_text(4)?.as_deref(), key.as_ref(), per_key),
            place: head.settings.concurrency.map(|_| holds::queue_scope(queue)),
        })
    }

    fn holds(&self) -> impl Iterator<Item = (String, Holder)> + '_ {
        let scopes = self.wants.iter().map(|want| want.scope.clone()).chain(self.place.clone());
        scopes.map(|scope| (scope, (self.id, self.epoch)))
    }
}

fn claimed(row: &Row, lane: &Lane) -> Result<ClaimedJob, StoreError> {
    Ok(ClaimedJob {
        id: row.job(0)?,
        epoch: Epoch(row.int(1)?),
        queue: lane.queue.clone(),
        kind: lane.kind.clone(),
        payload: row.text(3)?,
        affinity: lane.affinity.clone(),
        priority: lane.priority,
        subject: row.opt_text(4)?,
        process: row.opt_text(5)?,
        run: row.opt_text(6)?,
        attempt: row.int(7)? as i32,
        max_attempts: row.int(8)? as i32,
        timeout_s: row.opt_int(9)?,
        created_at: row.time(10)?,
        run_at: row.time(11)?,
    })
}

const RATE: Sql = Sql::both(&["select tokens, at from rates where tenant = $1 and queue = $2"]);
const SET_RATE: Sql = Sql::both(&["insert into rates (tenant, queue, tokens, at) values ($1, $2, $3, $4)
     on conflict (tenant, queue) do update set tokens = excluded.tokens, at = excluded.at"]);
const SPEND: Sql = Sql::both(&["update rates set tokens = tokens - $3 where tenant = $1 and queue = $2"]);

/// Whole tokens in a queue's bucket now: it fills at `rate` and holds one second's worth, at least one.
async fn tokens(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name, rate: f64) -> Result<usize, StoreError> {
    let now = tx.now();
    let key = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let full = rate.max(1.0);
    let tokens = match tx.query_opt(&RATE, &key).await? {
        None => full,
        Some(row) => {
            let elapsed_s = now.ms_since(row.time(1)?).max(0) as f64 / 1_000.0;
            (row.opt_real(0)?.unwrap_or(full) + elapsed_s * rate).min(full)
        }
    };
    tx.execute(&SET_RATE, &[key[0], key[1], Param::Real(tokens), Param::Time(now)]).await?;
    Ok(tokens.floor().max(0.0) as usize)
}

async fn spend_tokens(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[ClaimedJob],
    room: &BTreeMap<Name, usize>,
) -> Result<(), StoreError> {
    for queue in room.keys() {
        let spent = jobs.iter().filter(|job| job.queue == *queue).count() as f64;
        if spent > 0.0 {
            tx.execute(&SPEND, &[Param::Int(tenant.0), Param::Text(queue.as_str()), Param::Real(spent)]).await?;
        }
    }
    Ok(())
}

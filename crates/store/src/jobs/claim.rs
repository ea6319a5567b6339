//! Hands jobs to a worker (Q6, X3): priority, held affinity, age, with a starvation bound; limits and holds respected.
//!
//! The heads of the lanes are read, the rules choose lanes, jobs are taken from them. A lane without guards is taken
//! from by one statement; the others go through holds.

mod at_once;
mod guarded;
mod heads;
mod room;
mod taken;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use domain::claim::next_lanes;
use domain::{Affinity, Epoch, JobId, JobState, LaneHead, Name, TenantId, Time, WorkerId};
use uuid::Uuid;

use at_once::AtOnce;
pub(crate) use at_once::Usual;
use heads::{Head, Look};
use taken::Found;

use crate::clock::new_uuid;
use crate::codec::to_json;
use crate::counters::Changes;
use crate::deliveries::notices::{self, Notice, QUEUES_OWN};
use crate::error::StoreError;
use crate::events::{self, jobs::JobChange};
use crate::floors::{Floor, Floors, Place};
use crate::habits::Lesson;
use crate::hints::Topic;
use crate::in_hand::Taken;
use crate::lines::Takes;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{First, Operation, Param, Sql, Tx};
use crate::workers;

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
    /// Whose it is, where that is another than the worker's own tenant.
    pub tenant: Option<Name>,
    run_at: Time,
}

#[derive(Clone, Debug)]
pub enum Claimed {
    Jobs {
        jobs: Vec<ClaimedJob>,
        /// What to listen for more of.
        takes: Takes,
        draining: bool,
        /// There may be more for this worker than it got: others had it in their hands, or it was too far back.
        hindered: bool,
    },
    /// The worker's lease has passed.
    Gone,
    NotFound,
}

impl ClaimedJob {
    fn place(&self) -> Place {
        Place { run_at: self.run_at, id: self.id.uuid() }
    }

    fn begun(&self, tenant: TenantId) -> JobChange {
        JobChange {
            tenant,
            job: self.id,
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            from: JobState::Queued,
            to: JobState::Working,
            attempt: self.attempt,
        }
    }
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
        self.claim_of(tenant, tenant, worker, max, affinity).await
    }

    /// The same from the queues of another tenant, `of`, by a worker of `tenant` that serves it.
    pub(crate) async fn claim_of(
        &self,
        of: TenantId,
        tenant: TenantId,
        worker: WorkerId,
        max: usize,
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        let habit = self.habits().of(worker);
        let usual = habit.as_ref().and_then(|habit| habit.usual.clone()).filter(|_| of == tenant);
        if let Some(at_once) = usual.and_then(|usual| self.at_once(tenant, worker, max, &affinity, usual))
            && let Some(done) = self.write(at_once).await?
        {
            return Ok(self.claimed(of, worker, done));
        }
        let (floors, triggers) = (self.floors().clone(), self.triggers_cache().clone());
        let guess = habit.map(|habit| habit.queues);
        let claim = Claim { tenant, of, worker, max, affinity, guess, asked: Mutex::default(), floors, triggers };
        let done = self.write(claim).await?;
        Ok(self.claimed(of, worker, done))
    }

    /// The claim as one statement, where that can be.
    fn at_once(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        max: usize,
        affinity: &Affinity,
        usual: Arc<Usual>,
    ) -> Option<AtOnce> {
        // A statement that is a transaction by itself needs the settings of a session, and a wall to put up.
        if self.is_behind_a_pooler() || tenant == TenantId::SYSTEM {
            return None;
        }
        let triggers = events::jobs::unheard(self.triggers_cache(), tenant, usual.lane(), JobState::Working)?;
        let look = Look::above(self.floors(), tenant, usual.queues());
        let (affinity, shift_ms) = (affinity.clone(), self.clock().shift_ms());
        Some(AtOnce { tenant, worker, max, affinity, usual, look, triggers, shift_ms })
    }

    /// What is to be done once a claim holds.
    fn claimed(&self, of: TenantId, worker: WorkerId, done: Done) -> Claimed {
        let Done { claimed, in_hand, raised, left, told, heard, lesson } = done;
        self.in_hand().remember(in_hand);
        left.into_iter().for_each(|queue| self.hints().tell(Topic::Ready(of, queue)));
        for (queue, floor) in raised {
            self.floors().set(of, queue, floor);
        }
        if heard {
            self.hints().wake(&Topic::Outbox);
        }
        if let Claimed::Jobs { jobs, takes, .. } = &claimed {
            if self.is_postgres() {
                self.habits().remember(worker, takes, lesson);
            }
            jobs.iter().for_each(|job| self.hints().tell_changed(job.id));
        }
        if told {
            self.hints().wake(&Topic::Deliveries);
        }
        claimed
    }
}

struct Claim {
    /// The worker's.
    tenant: TenantId,
    /// The jobs': the worker's own, unless it serves others.
    of: TenantId,
    worker: WorkerId,
    max: usize,
    affinity: Affinity,
    /// The queues that it will look into, if the worker is what it was.
    guess: Option<Arc<[Name]>>,
    /// The look that went ahead with the opening of the transaction.
    asked: Mutex<Option<Look>>,
    floors: Floors,
    triggers: TriggerCache,
}

// SQLite is asked for the claimed columns beforehand: `returning` puts every row aside until the last is written, which costs
// more. It is asked for what `Found::in_place` reads, PostgreSQL for what `Found::read` does.
const TAKE: Sql = Sql::new(
    &[
        "select id, epoch + 1, payload, process, run, attempt + 1, max_attempts, coalesce(timeout_s, $6), created_at, run_at,
             case when coalesce(webhook, $9) is not null then 2
                 when process is null and unique_key is null and triggered_by is null then 0 else 1 end, rowid
         from jobs where lane = $1 and due_at is null and parked is null and worker is null order by run_at, id limit $2",
        "update or fail jobs set state = 'working', worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
             started_at = $5, deadline_at = $5 + coalesce(timeout_s, $6) * 1000000, version = version + 1, updated_at = $5,
             webhook = coalesce(webhook, $9)
         where rowid in (select value from rarray($10))",
    ],
    "with due as materialized (
         select id from jobs where lane = $1 and due_at is null and parked is null and worker is null
             and (run_at, id) > ($7, $8)
         order by run_at, id limit $2 for update skip locked)
     update jobs j set state = 'working', worker = $3, claim = $4, epoch = epoch + 1, attempt = attempt + 1,
         started_at = $5::timestamptz, deadline_at = $5::timestamptz + coalesce(timeout_s, $6::bigint) * interval '1 second',
         version = version + 1, updated_at = $5::timestamptz, webhook = coalesce(webhook, $9::json)
     from due where j.id = due.id
     returning j.id, j.epoch, j.payload, j.process, j.run, j.attempt, j.max_attempts,
         coalesce(j.timeout_s, $6::bigint), j.created_at, j.run_at, j.lane, j.subject, j.webhook",
);
const INSERT_CLAIM: Sql = Sql::both(&["insert into claims (claim, tenant, worker, jobs, remaining, at)
     values ($1, $2, $3, $4, $5, $6)"]);

/// A claim, and what is to be done once it holds.
struct Done {
    claimed: Claimed,
    /// Those of its jobs whose rows can be found again by what is known of them.
    in_hand: Vec<(JobId, Taken)>,
    /// How far the heads of lanes have moved.
    raised: Vec<(Name, Floor)>,
    /// Queues of jobs that it had in hand and did not take: whoever passed over them meanwhile looks again.
    left: BTreeSet<Name>,
    /// Whether a webhook is to hear of it.
    told: bool,
    /// Whether a trigger did.
    heard: bool,
    lesson: Lesson,
}

impl Done {
    fn of(claimed: Claimed) -> Self {
        let (in_hand, raised, left, lesson) = (Vec::new(), Vec::new(), BTreeSet::new(), Lesson::Nothing);
        Self { claimed, in_hand, raised, left, told: false, heard: false, lesson }
    }
}

impl Operation for Claim {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Done;

    fn tenant(&self) -> Option<TenantId> {
        // A worker of the built-in tenant may hold other tenants' jobs.
        Some(self.of).filter(|of| *of == self.tenant && *of != TenantId::SYSTEM)
    }

    fn reads_first(&self) -> Vec<First<'_>> {
        let heads = self.guess.as_ref().map(|queues| {
            let look = Look::above(&self.floors, self.of, queues);
            let first = look.asks(queues, self.of);
            *self.asked.lock().expect("nobody panics with it in hand") = Some(look);
            first
        });
        [workers::load_first(&[self.worker])].into_iter().chain(heads).collect()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Done, StoreError> {
        let now = tx.now();
        let worker = workers::load(tx, &[self.worker]).await?.pop().filter(|worker| worker.tenant == self.tenant);
        let Some(worker) = worker else { return Ok(Done::of(Claimed::NotFound)) };
        if !worker.is_alive(now) {
            return Ok(Done::of(Claimed::Gone));
        }
        let takes = worker.takes();
        if worker.draining {
            worker.touch(tx).await?;
            return Ok(Done::of(Claimed::Jobs { jobs: Vec::new(), takes, draining: true, hindered: false }));
        }
        let mut taking = Taking {
            claim: new_uuid(now),
            worker: worker.id,
            tenant: self.of,
            held: self.affinity.clone().or_else(|| worker.affinity.clone()),
            room: BTreeMap::new(),
            jobs: Vec::new(),
            in_hand: Vec::new(),
            changes: Changes::default(),
            notices: Vec::new(),
            reached: HashMap::new(),
            left: BTreeSet::new(),
            hindered: false,
        };
        let seen = self.see(tx, &takes.queues).await?;
        let heads = seen.heads.iter().filter(|head| head.is_served_by(&worker)).cloned().collect();
        taking.take(tx, heads, self.max).await?;
        let took = taking.jobs.iter().any(|job| job.affinity.is_some());
        let affinity = if took { taking.held.clone() } else { self.affinity.clone() };
        if taking.jobs.is_empty() {
            worker.touch(tx).await?;
        } else {
            worker.claimed(tx, &affinity).await?;
        }
        let (told, hindered) = (!taking.notices.is_empty(), taking.hindered);
        let lesson = if told { Lesson::Unusual } else { Usual::seen(&seen.heads, &worker) };
        let raised = seen.raised(&taking.reached, now);
        let (left, in_hand) = (std::mem::take(&mut taking.left), std::mem::take(&mut taking.in_hand));
        let jobs = taking.record(tx).await?;
        let heard = events::jobs::changed(tx, &self.triggers, jobs.iter().map(|job| job.begun(self.of))).await?;
        let claimed = Claimed::Jobs { jobs, takes, draining: false, hindered };
        Ok(Done { claimed, in_hand, raised, left, told, heard, lesson })
    }
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
    in_hand: Vec<(JobId, Taken)>,
    changes: Changes,
    notices: Vec<Notice>,
    /// How far into each lane everything has been taken.
    reached: HashMap<i64, Place>,
    left: BTreeSet<Name>,
    /// A lane that has jobs gave none, or there were more rounds to go.
    hindered: bool,
}

impl Taking {
    async fn take(&mut self, tx: &mut Tx<'_>, mut heads: Vec<Head>, max: usize) -> Result<(), StoreError> {
        let now = tx.now();
        self.find_room(tx, &heads).await?;
        for round in 0.. {
            if self.jobs.len() >= max {
                break;
            }
            if round == ROUNDS {
                self.hindered = true;
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
                [only] if !only.lane.guarded && !room::is_limited(&only.settings) => {
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
            Param::Time(head.floor.run_at),
            Param::Uuid(head.floor.id),
            Param::json(head.settings.webhook.as_ref().map(|_| QUEUES_OWN)),
        ];
        let before = self.jobs.len();
        let rows = tx.query_found(&TAKE, None, &params).await?;
        let found = rows.len();
        if tx.is_postgres() {
            self.took(rows, |row| Found::read(row, &head.lane))?;
        } else {
            self.took(rows, |row| Found::in_place(row, head))?;
        }
        self.hindered |= found == 0;
        let last = self.jobs[before..].last().map(ClaimedJob::place);
        let reached = if found < want { Some(Place::settled(tx.now())) } else { last };
        self.reached.extend(reached.map(|place| (head.head.lane, place)));
        Ok(false)
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
        tx.execute_later(&INSERT_CLAIM, &[], &params).await?;
        self.changes.write(tx).await?;
        room::spend_tokens(tx, self.tenant, &self.jobs, &self.room).await?;
        notices::write(tx, &self.notices).await?;
        Ok(self.jobs)
    }
}

//! Ends attempts: many workers' outcomes in one commit (X3, W3, Q8).
//!
//! `finish` goes through one set-based statement guarded by worker and epoch. Everything else, and every finish that the
//! guard refused, is looked at row by row and decided by the rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use domain::job::{Event, Held};
use domain::{Epoch, JobError, JobId, JobState, Refusal, Resolution, TenantId, WorkerId};

use crate::batch::{Batch, Batcher};
use crate::clock::dice;
use crate::counters::Changes;
use crate::deliveries::notices::{self, Notice};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{self, queues::drained};
use crate::in_hand::InHand;
use crate::jobs::end::{self, Ending, Gone};
use crate::jobs::holds::Holder;
use crate::jobs::transition::{self, LiveJob, Step};
use crate::lanes::{Lane, LaneCache};
use crate::queues;
use crate::store::Store;
use crate::subjects::facts::FactChanges;
use crate::subjects::work::{self, Left, LeftWith, Work};
use crate::tx::{Column, First, Operation, Sql, Tx};
use crate::workers;

#[derive(Clone, Debug)]
pub struct Outcome {
    pub job: JobId,
    pub epoch: Epoch,
    pub end: End,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum End {
    /// With a result, as JSON.
    Finish(Option<Box<str>>),
    /// With facts for the job's subject, which it must have.
    FinishWith {
        result: Option<Box<str>>,
        facts: FactChanges,
    },
    Fail(JobError),
    Cancel,
    Snooze {
        delay_ms: i64,
    },
    Release,
}

impl End {
    fn result(&self) -> Option<&str> {
        match self {
            Self::Finish(result) | Self::FinishWith { result, .. } => result.as_deref(),
            _ => None,
        }
    }

    fn facts(&self) -> Option<&FactChanges> {
        match self {
            Self::FinishWith { facts, .. } => Some(facts),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Applied,
    ClaimLost,
    AlreadyEnded,
    NotFound,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// One per outcome, in order.
    Results(Vec<Status>),
    /// This outcome brings facts for a job without a subject. Nothing was settled.
    StrayFacts(usize),
    NoSuchWorker,
}

impl Store {
    /// Ends attempts of one worker and returns once that is durable. Each outcome stands for itself.
    pub async fn settle(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        if let Some(stray) = self.stray_facts(tenant, worker, &outcomes).await? {
            return Ok(Settled::StrayFacts(stray));
        }
        Ok(self.shared_settle(SettleRequest { tenant, of: tenant, worker, outcomes }).await?.settled)
    }

    /// The same for jobs of another tenant, by a worker of `tenant` that serves it and has looked for stray facts.
    pub(crate) async fn settle_of(
        &self,
        of: TenantId,
        tenant: TenantId,
        worker: WorkerId,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        Ok(self.shared_settle(SettleRequest { tenant, of, worker, outcomes }).await?.settled)
    }
}

pub(crate) struct SettleRequest {
    /// The worker's.
    tenant: TenantId,
    /// The jobs'.
    of: TenantId,
    worker: WorkerId,
    outcomes: Vec<Outcome>,
}

pub(crate) struct SettleReply {
    settled: Settled,
    /// Of the whole commit; with its first reply.
    effects: Effects,
}

pub(crate) struct SettleBatch {
    requests: Vec<SettleRequest>,
    lanes: LaneCache,
    in_hand: InHand,
}

impl Batch for SettleBatch {
    type Request = SettleRequest;
    type Reply = SettleReply;

    fn batcher(store: &Store) -> &Batcher<Self> {
        &store.batchers().settle
    }

    fn of(store: &Store, requests: Vec<SettleRequest>) -> Self {
        Self { requests, lanes: store.lanes().clone(), in_hand: store.in_hand().clone() }
    }

    fn jobs(request: &SettleRequest) -> usize {
        request.outcomes.len()
    }

    fn whose(request: &SettleRequest) -> TenantId {
        request.of
    }

    fn committed(store: &Store, replies: &[SettleReply]) {
        replies.iter().for_each(|reply| store.announce(&reply.effects));
    }
}

/// An outcome that is still to be judged.
struct Open<'a> {
    /// Which request, and which of its outcomes.
    place: (usize, usize),
    tenant: TenantId,
    worker: WorkerId,
    outcome: &'a Outcome,
}

impl Operation for SettleBatch {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Vec<SettleReply>;

    fn tenants(&self) -> Vec<TenantId> {
        self.requests.iter().flat_map(|request| [request.tenant, request.of]).collect()
    }

    fn reads_first(&self) -> Vec<First<'_>> {
        vec![workers::load_first(&self.workers())]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SettleReply>, StoreError> {
        let mut changes = Changes::default();
        let mut effects = Effects::default();
        let living = self.living_workers(tx).await?;
        let mut statuses: Vec<Vec<Status>> =
            self.requests.iter().map(|request| vec![Status::ClaimLost; request.outcomes.len()]).collect();
        let (finishes, mut others) = self.open(&living);
        let refused = self.finish(tx, finishes, &mut statuses, &mut changes, &mut effects).await?;
        others.extend(refused);
        // A job may be named twice: what is said first counts first.
        others.sort_by_key(|open| open.place);
        self.decide(tx, others, &mut statuses, &mut changes, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &changes, &mut effects).await?;
        changes.write(tx).await?;
        let settled = |(request, statuses): (&SettleRequest, Vec<Status>)| SettleReply {
            settled: if living.contains_key(&(request.worker, request.tenant)) {
                Settled::Results(statuses)
            } else {
                Settled::NoSuchWorker
            },
            effects: Effects::default(),
        };
        let mut replies: Vec<SettleReply> = self.requests.iter().zip(statuses).map(settled).collect();
        if let Some(first) = replies.first_mut() {
            first.effects = effects;
        }
        Ok(replies)
    }
}

const TAKE_REVOCATION: Sql = Sql::new(
    &["delete from revocations where worker = $1 and job = $2 and epoch = $3 returning worker, job, epoch"],
    "delete from revocations r using unnest($1::uuid[], $2::uuid[], $3::bigint[]) as n(worker, job, epoch)
     where r.worker = n.worker and r.job = n.job and r.epoch = n.epoch returning r.worker, r.job, r.epoch",
);
const ENDED: Sql = Sql::new(
    &["select id, tenant, epoch from ended where id = $1"],
    "select id, tenant, epoch from ended where id = any($1::uuid[])",
);

impl SettleBatch {
    fn workers(&self) -> Vec<WorkerId> {
        let mut ids: Vec<WorkerId> = self.requests.iter().map(|request| request.worker).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The workers that exist, and whether they live. Whoever lives has its lease renewed.
    async fn living_workers(&self, tx: &mut Tx<'_>) -> Result<BTreeMap<(WorkerId, TenantId), bool>, StoreError> {
        // By both: another tenant that names this worker in the same commit changes nothing for its owner, and gains nothing.
        let asking: HashSet<(WorkerId, TenantId)> =
            self.requests.iter().map(|request| (request.worker, request.tenant)).collect();
        let mut living = BTreeMap::new();
        let mut known = workers::load(tx, &self.workers()).await?;
        known.sort_by_key(|worker| worker.id);
        for worker in known.iter().filter(|worker| asking.contains(&(worker.id, worker.tenant))) {
            let alive = worker.is_alive(tx.now());
            living.insert((worker.id, worker.tenant), alive);
            if alive {
                worker.touch(tx).await?;
            }
        }
        Ok(living)
    }

    /// Outcomes of living workers: finishes apart from the rest. A job named twice is judged in order.
    fn open(&self, living: &BTreeMap<(WorkerId, TenantId), bool>) -> (Vec<Open<'_>>, Vec<Open<'_>>) {
        let outcomes = self.requests.iter().map(|request| request.outcomes.len()).sum();
        let mut finishes = Vec::with_capacity(outcomes);
        let mut others = Vec::new();
        let mut seen = HashSet::with_capacity(outcomes);
        for (number, request) in self.requests.iter().enumerate() {
            if living.get(&(request.worker, request.tenant)) != Some(&true) {
                continue;
            }
            for (position, outcome) in request.outcomes.iter().enumerate() {
                let open = Open { place: (number, position), tenant: request.of, worker: request.worker, outcome };
                let first = seen.insert(outcome.job);
                match outcome.end {
                    End::Finish(_) | End::FinishWith { .. } if first => finishes.push(open),
                    _ => others.push(open),
                }
            }
        }
        (finishes, others)
    }

    /// Finishes what the guard lets through and gives back the rest.
    async fn finish<'a>(
        &self,
        tx: &mut Tx<'_>,
        finishes: Vec<Open<'a>>,
        statuses: &mut [Vec<Status>],
        changes: &mut Changes,
        effects: &mut Effects,
    ) -> Result<Vec<Open<'a>>, StoreError> {
        let gone = self.finish_all(tx, &finishes).await?;
        let mut left: BTreeMap<(TenantId, i64, JobState), i64> = BTreeMap::new();
        for gone in &gone {
            *left.entry((gone.tenant, gone.lane, gone.state)).or_default() += 1;
        }
        let lanes = self.lanes.of(tx, &left.keys().map(|(_, lane, _)| *lane).collect::<Vec<_>>()).await?;
        for ((tenant, lane, state), jobs) in left {
            changes.moved(tenant, &lanes[&lane].queue, (state, JobState::Succeeded), jobs);
        }
        effects.ended.extend(gone.iter().map(|gone| gone.id));
        transition::close_claims(tx, gone.iter().filter_map(|gone| gone.claim)).await?;
        let held: Vec<Holder> = gone.iter().filter(|gone| gone.held).map(|gone| (gone.id, gone.epoch)).collect();
        transition::free(tx, &self.lanes, &held, effects).await?;
        transition::free_unique_keys(tx, gone.iter()).await?;
        for gone in &gone {
            gone.handler_ended(tx, Resolution::HandledByScript).await?;
        }
        let changed = gone.iter().map(|gone| gone.finished(&lanes[&gone.lane]));
        effects.outbox |= events::jobs::changed(tx, &self.lanes.triggers, changed).await?;
        let notices = gone.iter().filter(|gone| gone.webhook).map(|gone| Notice {
            tenant: gone.tenant,
            job: gone.id,
            from: gone.state,
            to: JobState::Succeeded,
            attempt: gone.attempt,
        });
        effects.deliveries |= notices::write(tx, &notices.collect::<Vec<_>>()).await? > 0;
        self.tell_subjects(tx, &gone, &finishes, &lanes, effects).await?;
        let done: HashSet<JobId> = gone.iter().map(|gone| gone.id).collect();
        let (applied, refused): (Vec<_>, Vec<_>) =
            finishes.into_iter().partition(|open| done.contains(&open.outcome.job));
        for open in applied {
            statuses[open.place.0][open.place.1] = Status::Applied;
        }
        Ok(refused)
    }

    /// What the successes mean for the subjects they were on, if they were on any.
    async fn tell_subjects(
        &self,
        tx: &mut Tx<'_>,
        gone: &[Gone],
        finishes: &[Open<'_>],
        lanes: &HashMap<i64, Arc<Lane>>,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let left = gone.iter().filter_map(|gone| {
            let subject = gone.subject.as_deref()?;
            let outcome = finishes.iter().find(|open| open.outcome.job == gone.id);
            let work = Work {
                tenant: gone.tenant,
                subject,
                process: gone.process.as_deref(),
                queue: &lanes[&gone.lane].queue,
                kind: &lanes[&gone.lane].kind,
                job: gone.id,
                attempt: gone.attempt,
                worker: outcome.map(|open| open.worker),
            };
            let facts = outcome.and_then(|open| open.outcome.end.facts());
            Some(Left { work, event: "finished", actor: None, outcome: LeftWith::Success { facts }, over: true })
        });
        work::left(tx, &self.lanes, &left.collect::<Vec<_>>(), effects).await
    }

    async fn decide(
        &self,
        tx: &mut Tx<'_>,
        open: Vec<Open<'_>>,
        statuses: &mut [Vec<Status>],
        changes: &mut Changes,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if open.is_empty() {
            return Ok(());
        }
        let mut revoked = self.answered_revocations(tx, &open, effects).await?;
        let mut ids: Vec<JobId> = open.iter().map(|open| open.outcome.job).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut live = transition::load(tx, &ids).await?;
        let ended_ids: Vec<JobId> = ids.into_iter().filter(|id| !live.contains_key(id)).collect();
        let mut ended: HashMap<JobId, (TenantId, Epoch)> = HashMap::new();
        for row in tx.query_each(&ENDED, &[Column::jobs(ended_ids)], &[]).await? {
            ended.insert(row.job(0)?, (TenantId(row.int(1)?), Epoch(row.int(2)?)));
        }
        let mut steps = Vec::new();
        for open in open {
            let id = open.outcome.job;
            // The first word on a claim that the server ended answers for it; a second one finds nothing left to say.
            let answers = revoked.remove(&(open.worker, (id, open.outcome.epoch)));
            let status = if answers && matches!(open.outcome.end, End::Cancel) {
                Status::Applied
            } else if let Some(before) = live.remove(&id) {
                if before.tenant != open.tenant {
                    Status::NotFound
                } else {
                    match self.step(tx, &open, before).await? {
                        Ok(step) => {
                            // A second outcome for it in this batch finds it ended, or lost to whoever comes next.
                            let over = step.after.job_state().is_terminal();
                            let epoch = if over { step.before.epoch } else { step.before.epoch.next() };
                            ended.insert(id, (open.tenant, epoch));
                            steps.push(step);
                            Status::Applied
                        }
                        Err((refusal, before)) => {
                            live.insert(id, before);
                            refused(refusal)
                        }
                    }
                }
            } else {
                match ended.get(&id) {
                    Some((tenant, epoch)) if *tenant == open.tenant => {
                        if open.outcome.epoch >= *epoch {
                            Status::AlreadyEnded
                        } else {
                            Status::ClaimLost
                        }
                    }
                    _ => Status::NotFound,
                }
            };
            statuses[open.place.0][open.place.1] = status;
        }
        transition::apply(tx, &self.lanes, steps, changes, effects).await
    }

    /// The worker answers for what the server took from it: what the job held is free now.
    async fn answered_revocations(
        &self,
        tx: &mut Tx<'_>,
        open: &[Open<'_>],
        effects: &mut Effects,
    ) -> Result<HashSet<(WorkerId, Holder)>, StoreError> {
        let columns = [
            Column::uuids(open.iter().map(|open| open.worker.uuid())),
            Column::jobs(open.iter().map(|open| open.outcome.job)),
            Column::ints(open.iter().map(|open| open.outcome.epoch.0)),
        ];
        let mut answered = HashSet::new();
        for row in tx.query_each(&TAKE_REVOCATION, &columns, &[]).await? {
            answered.insert((WorkerId::new(row.uuid(0)?), (row.job(1)?, Epoch(row.int(2)?))));
        }
        let holders: Vec<Holder> = answered.iter().map(|(_, holder)| *holder).collect();
        transition::free(tx, &self.lanes, &holders, effects).await?;
        Ok(answered)
    }

    async fn step(
        &self,
        tx: &mut Tx<'_>,
        open: &Open<'_>,
        before: LiveJob,
    ) -> Result<Result<Step, (Refusal, LiveJob)>, StoreError> {
        let lane = self.lanes.of(tx, &[before.lane]).await?.remove(&before.lane).expect("asked for");
        let settings = queues::settings(tx, before.tenant, &lane.queue).await?;
        let job = before.job(&lane.kind, &settings)?;
        let by = Held { worker: open.worker, epoch: open.outcome.epoch };
        let (event, name, error) = match &open.outcome.end {
            End::Finish(_) | End::FinishWith { .. } => (Event::Finish { by }, "finished", None),
            End::Fail(error) => (Event::Fail { by, error: error.clone(), dice: dice() }, "failed", Some(error.clone())),
            End::Cancel => (Event::CancelClaimed { by }, "canceled", None),
            End::Snooze { delay_ms } => (Event::Snooze { by, delay_ms: *delay_ms }, "snoozed", None),
            End::Release => (Event::Release { by }, "released", None),
        };
        let result = open.outcome.end.result().map(str::to_owned);
        let facts = open.outcome.end.facts().cloned();
        Ok(match job.apply(event, tx.now()) {
            Ok(after) => Ok(Step { facts, ..Step::new(before, after, name, error, result) }),
            Err(refusal) => Err((refusal, before)),
        })
    }
}

/// Alike are at least this many: fewer are not worth a statement of their own.
const ALIKE: usize = 4;

impl SettleBatch {
    /// Moves what the guard lets through to `ended`: those that are alike together, the rest row by row.
    async fn finish_all(&self, tx: &mut Tx<'_>, finishes: &[Open<'_>]) -> Result<Vec<Gone>, StoreError> {
        let mut alike: BTreeMap<(TenantId, WorkerId, Epoch), Vec<JobId>> = BTreeMap::new();
        let mut singly: Vec<Ending> = Vec::new();
        for open in finishes {
            let of = (open.tenant, open.worker, open.outcome.epoch);
            match &open.outcome.end {
                End::Finish(None) => alike.entry(of).or_default().push(open.outcome.job),
                end => singly.push(Ending::succeeded(of, open.outcome.job, end.result())),
            }
        }
        let mut gone = Vec::with_capacity(finishes.len());
        for (of, jobs) in alike {
            let (taken, mut jobs) = self.in_hand.give(of, jobs);
            for taken in taken {
                match end::finish_taken(tx, &taken).await? {
                    Some(finished) => gone.extend(finished),
                    None => jobs.extend(taken.iter().map(|(job, _)| *job)),
                }
            }
            if jobs.len() < ALIKE {
                singly.extend(jobs.into_iter().map(|job| Ending::succeeded(of, job, None)));
            } else {
                gone.extend(end::finish_alike(tx, of.0, of.1, of.2, &jobs).await?);
            }
        }
        gone.extend(end::end(tx, &singly).await?);
        Ok(gone)
    }
}

fn refused(refusal: Refusal) -> Status {
    match refusal {
        Refusal::AlreadyEnded => Status::AlreadyEnded,
        Refusal::ClaimLost | Refusal::Illegal { .. } => Status::ClaimLost,
    }
}

//! Settles outcomes of workers, many requests in one commit. The HTTP API and the engine's own workers call
//! `Store::settle`.
//!
//! Successes go through one set-based statement guarded by worker and epoch. All other outcomes, and successes that the
//! guard refused, are decided row by row by the transition rules.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::queue::job::{ClaimRef, Event};
use domain::{Epoch, JobError, JobId, JobState, Label, Refusal, TenantId, Time, WorkerId};

use crate::access::caller::Caller;
use crate::db::clock::random_unit;
use crate::db::effects::Effects;
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::tx::{Column, Operation, Prefetch, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::facts::FactChanges;
use crate::queue::claim::fast_path::claimed_row_cache::ClaimedRowCache;
use crate::queue::counters::CounterDeltas;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::queue::get;
use crate::queue::holds::Holder;
use crate::queue::lanes::LaneCache;
use crate::queue::queues;
use crate::queue::retry;
use crate::queue::transition;
use crate::queue::transition::{EndedRow, Ending, LiveJob, StateChange, Transition};
use crate::queue::workers;
use crate::store::Store;
use crate::triggers::events::queues::drained;
use crate::workflows::journal::{Wake, resolve};
use crate::workflows::runs::end;

#[derive(Clone, Debug)]
pub struct Outcome {
    pub job: JobId,
    pub epoch: Epoch,
    pub end: End,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum End {
    /// Succeeded, with a result as JSON.
    Finish(Option<Box<str>>),
    /// Succeeded, with facts for the job's subject.
    FinishWith {
        result: Option<Box<str>>,
        facts: FactChanges,
    },
    Fail(JobError),
    /// Failed, and the worker chooses how long the subject is left alone and when the job runs again.
    FailUntil {
        error: JobError,
        backoff: ChosenBackoff,
    },
    Cancel,
    Snooze {
        delay_ms: i64,
    },
    Release,
    /// The job waits until enough of these entries of its journal are resolved.
    Suspend(Wake),
    /// Succeeded. A new job with this payload, as JSON, continues it.
    ContinueAs {
        payload: Box<str>,
    },
}

/// A backoff that a failing worker chooses, instead of the policy of the process, the job or the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenBackoff {
    ForMs(i64),
    Until(Time),
}

impl ChosenBackoff {
    fn until(self, now: Time) -> Time {
        match self {
            Self::ForMs(millis) => now.plus_ms(millis),
            Self::Until(at) => at,
        }
    }
}

impl End {
    /// The name of the outcome, as workers send it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Finish(_) | Self::FinishWith { .. } => "finish",
            Self::Fail(_) | Self::FailUntil { .. } => "fail",
            Self::Cancel => "cancel",
            Self::Snooze { .. } => "snooze",
            Self::Release => "release",
            Self::Suspend(_) => "suspend",
            Self::ContinueAs { .. } => "continue_as",
        }
    }

    fn chosen_backoff(&self, now: Time) -> Option<Time> {
        match self {
            Self::FailUntil { backoff, .. } => Some(backoff.until(now)),
            _ => None,
        }
    }

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
pub enum SettleStatus {
    Applied,
    ClaimLost,
    AlreadyEnded,
    NotFound,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// One status per outcome, in order.
    Results(Vec<SettleStatus>),
    /// The outcome at this index has facts, and its job has no subject. Nothing was settled.
    FactsWithoutSubject(usize),
    /// The outcome at this index waits for a key that the job's journal does not have. Nothing was settled.
    NoSuchKey(usize, Label),
    NoSuchWorker,
}

impl Store {
    /// Settles outcomes of one worker and returns after the commit. Each outcome succeeds or fails by itself.
    pub async fn settle(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        if let Some(stray) = self.facts_without_subject(tenant, worker, &outcomes).await? {
            return Ok(Settled::FactsWithoutSubject(stray));
        }
        if let Some((number, key)) = self.missing_wake_key(worker, &outcomes).await? {
            return Ok(Settled::NoSuchKey(number, key));
        }
        Ok(self.shared_settle(SettleRequest { tenant, of: tenant, worker, outcomes }).await?.settled)
    }

    /// Settles outcomes of jobs of another tenant, `of`, for a worker of `tenant` that serves it. The caller has
    /// checked the facts.
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
    /// The tenant of the worker.
    tenant: TenantId,
    /// The tenant of the jobs.
    of: TenantId,
    worker: WorkerId,
    outcomes: Vec<Outcome>,
}

pub(crate) struct SettleReply {
    settled: Settled,
    /// The effects of the whole commit, in its first reply.
    effects: Effects,
}

pub(crate) struct SettleBatch {
    requests: Vec<SettleRequest>,
    lanes: LaneCache,
    claimed_rows: ClaimedRowCache,
}

impl Batch for SettleBatch {
    type Request = SettleRequest;
    type Reply = SettleReply;

    fn batcher(store: &Store) -> &GroupCommit<Self> {
        &store.group_commits().settle
    }

    fn of(store: &Store, requests: Vec<SettleRequest>) -> Self {
        Self { requests, lanes: store.lanes().clone(), claimed_rows: store.fast_path().claimed_rows().clone() }
    }

    fn size(request: &SettleRequest) -> RequestSize {
        let bytes = request.outcomes.iter().map(|outcome| outcome.end.result().map_or(0, str::len)).sum();
        RequestSize { jobs: request.outcomes.len(), bytes }
    }

    fn tenant_of(request: &SettleRequest) -> TenantId {
        request.of
    }

    fn committed(store: &Store, replies: &[SettleReply]) {
        replies.iter().for_each(|reply| store.announce(&reply.effects));
    }
}

/// An outcome that is not decided yet.
struct OpenOutcome<'a> {
    /// The index of the request, and of the outcome in it.
    place: (usize, usize),
    tenant: TenantId,
    worker: WorkerId,
    outcome: &'a Outcome,
}

impl Operation for SettleBatch {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = Vec<SettleReply>;

    fn tenants(&self) -> Vec<TenantId> {
        self.requests.iter().flat_map(|request| [request.tenant, request.of]).collect()
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        vec![workers::prefetch_workers(&self.workers())]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SettleReply>, StoreError> {
        let mut counters = CounterDeltas::default();
        let mut effects = Effects::default();
        let living = self.count_workers(tx).await?;
        let mut statuses: Vec<Vec<SettleStatus>> =
            self.requests.iter().map(|request| vec![SettleStatus::ClaimLost; request.outcomes.len()]).collect();
        let (finishes, mut others) = self.open(&living);
        let refused = self.finish(tx, finishes, &mut statuses, &mut counters, &mut effects).await?;
        others.extend(refused);
        // A job may be named twice: the first outcome counts.
        others.sort_by_key(|open| open.place);
        self.decide(tx, others, &mut statuses, &mut counters, &mut effects).await?;
        end::record(tx, &self.lanes, &mut counters, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &counters, &mut effects).await?;
        counters.write(tx).await?;
        let settled = |(request, statuses): (&SettleRequest, Vec<SettleStatus>)| SettleReply {
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

    /// Loads the workers and whether they are alive, and renews the leases of those that are.
    async fn count_workers(&self, tx: &mut Tx<'_>) -> Result<BTreeMap<(WorkerId, TenantId), bool>, StoreError> {
        // By worker and tenant: a request of another tenant that names this worker in the same commit has no effect.
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

    /// Splits the outcomes of live workers into successes and others. The second outcome of a job counts as other.
    fn open(&self, living: &BTreeMap<(WorkerId, TenantId), bool>) -> (Vec<OpenOutcome<'_>>, Vec<OpenOutcome<'_>>) {
        let outcomes = self.requests.iter().map(|request| request.outcomes.len()).sum();
        let mut finishes = Vec::with_capacity(outcomes);
        let mut others = Vec::new();
        let mut seen = HashSet::with_capacity(outcomes);
        for (number, request) in self.requests.iter().enumerate() {
            if living.get(&(request.worker, request.tenant)) != Some(&true) {
                continue;
            }
            for (position, outcome) in request.outcomes.iter().enumerate() {
                let open =
                    OpenOutcome { place: (number, position), tenant: request.of, worker: request.worker, outcome };
                let first = seen.insert(outcome.job);
                match outcome.end {
                    End::Finish(_) | End::FinishWith { .. } if first => finishes.push(open),
                    _ => others.push(open),
                }
            }
        }
        (finishes, others)
    }

    /// Finishes the jobs whose claim still stands, and returns the other outcomes.
    async fn finish<'a>(
        &self,
        tx: &mut Tx<'_>,
        finishes: Vec<OpenOutcome<'a>>,
        statuses: &mut [Vec<SettleStatus>],
        counters: &mut CounterDeltas,
        effects: &mut Effects,
    ) -> Result<Vec<OpenOutcome<'a>>, StoreError> {
        let ended = self.finish_all(tx, &finishes).await?;
        let by_job: HashMap<JobId, &OpenOutcome<'a>> = match ended.iter().any(|row| row.subject.is_some()) {
            true => finishes.iter().map(|open| (open.outcome.job, open)).collect(),
            false => HashMap::new(),
        };
        let mut changes: Vec<StateChange<'_>> = Vec::with_capacity(ended.len());
        for row in &ended {
            let open = by_job.get(&row.id);
            changes.push(row.succeeded(open.map(|open| open.worker), open.and_then(|open| open.outcome.end.facts())));
        }
        transition::apply_consequences(tx, &self.lanes, &changes, counters, effects).await?;
        let done: HashSet<JobId> = ended.iter().map(|row| row.id).collect();
        let (applied, refused): (Vec<_>, Vec<_>) =
            finishes.into_iter().partition(|open| done.contains(&open.outcome.job));
        for open in applied {
            statuses[open.place.0][open.place.1] = SettleStatus::Applied;
        }
        Ok(refused)
    }

    async fn decide(
        &self,
        tx: &mut Tx<'_>,
        open: Vec<OpenOutcome<'_>>,
        statuses: &mut [Vec<SettleStatus>],
        counters: &mut CounterDeltas,
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
            ended.insert(row.job("id")?, (TenantId(row.int("tenant")?), Epoch(row.int("epoch")?)));
        }
        let mut transitions = Vec::new();
        for open in open {
            let id = open.outcome.job;
            // The first outcome for a revoked claim answers the revocation. A second one finds no claim.
            let answers = revoked.remove(&(open.worker, (id, open.outcome.epoch)));
            let status = if answers && matches!(open.outcome.end, End::Cancel) {
                SettleStatus::Applied
            } else if let Some(before) = live.remove(&id) {
                if before.tenant != open.tenant {
                    SettleStatus::NotFound
                } else {
                    match self.transition(tx, &open, before, effects).await? {
                        Ok(transition) => {
                            // A second outcome for the job in this batch finds it ended, or its claim lost to the next
                            // attempt.
                            let over = transition.after.job_state().is_terminal();
                            let epoch = if over { transition.before.epoch } else { transition.before.epoch.next() };
                            ended.insert(id, (open.tenant, epoch));
                            transitions.push(transition);
                            SettleStatus::Applied
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
                            SettleStatus::AlreadyEnded
                        } else {
                            SettleStatus::ClaimLost
                        }
                    }
                    _ => SettleStatus::NotFound,
                }
            };
            statuses[open.place.0][open.place.1] = status;
        }
        transition::write(tx, &self.lanes, transitions, counters, effects).await
    }

    /// Deletes the revocations that these outcomes answer, and releases the holds of their claims.
    async fn answered_revocations(
        &self,
        tx: &mut Tx<'_>,
        open: &[OpenOutcome<'_>],
        effects: &mut Effects,
    ) -> Result<HashSet<(WorkerId, Holder)>, StoreError> {
        let columns = [
            Column::uuids(open.iter().map(|open| open.worker.uuid())),
            Column::jobs(open.iter().map(|open| open.outcome.job)),
            Column::ints(open.iter().map(|open| open.outcome.epoch.0)),
        ];
        let mut answered = HashSet::new();
        for row in tx.query_each(&TAKE_REVOCATION, &columns, &[]).await? {
            answered.insert((WorkerId::new(row.uuid("worker")?), (row.job("job")?, Epoch(row.int("epoch")?))));
        }
        let holders: Vec<Holder> = answered.iter().map(|(_, holder)| *holder).collect();
        transition::release_holds(tx, &self.lanes, &holders, effects).await?;
        Ok(answered)
    }

    async fn transition(
        &self,
        tx: &mut Tx<'_>,
        open: &OpenOutcome<'_>,
        before: LiveJob,
        effects: &mut Effects,
    ) -> Result<Result<Transition, (Refusal, LiveJob)>, StoreError> {
        let lane = self.lanes.of(tx, &[before.lane]).await?.remove(&before.lane).expect("asked for");
        let settings = queues::settings(tx, before.tenant, &lane.queue).await?;
        let job = before.job(&lane.kind, &settings)?;
        let by = ClaimRef { worker: open.worker, epoch: open.outcome.epoch };
        let chosen_backoff = open.outcome.end.chosen_backoff(tx.now());
        let (event, name, error) = match &open.outcome.end {
            End::Finish(_) | End::FinishWith { .. } => (Event::Finish { by }, "finished", None),
            End::Fail(error) | End::FailUntil { error, .. } => {
                let (retry_at, error) = (chosen_backoff, error.clone());
                (Event::Fail { by, error: error.clone(), random_unit: random_unit(), retry_at }, "failed", Some(error))
            }
            End::Cancel => (Event::CancelClaimed { by }, "canceled", None),
            End::Snooze { delay_ms } => (Event::Snooze { by, delay_ms: *delay_ms }, "snoozed", None),
            End::Release => (Event::Release { by }, "released", None),
            End::Suspend(wake) => {
                let is_satisfied = resolve::is_satisfied(tx, open.outcome.job, wake).await?;
                (Event::Suspend { by, is_satisfied }, "suspended", None)
            }
            End::ContinueAs { .. } => (Event::Finish { by }, "finished", None),
        };
        let mut result = open.outcome.end.result().map(str::to_owned);
        let facts = open.outcome.end.facts().cloned();
        let applied = job.apply(event, tx.now());
        match (&applied, &open.outcome.end) {
            (Ok(after), End::Suspend(wake)) if after.job_state() == JobState::Waiting => {
                resolve::arm(tx, before.id, wake).await?;
            }
            (Ok(_), End::ContinueAs { payload }) => {
                result = Some(continue_as(tx, &before, payload, effects).await?);
            }
            _ => {}
        }
        Ok(match applied {
            Ok(after) => {
                Ok(Transition { facts, chosen_backoff, ..Transition::new(before, after, name, error, result) })
            }
            Err(refusal) => Err((refusal, before)),
        })
    }
}

/// Enqueues the successor of a job: a job with the same settings and another payload. Returns the result of the job.
async fn continue_as(
    tx: &mut Tx<'_>,
    before: &LiveJob,
    payload: &str,
    effects: &mut Effects,
) -> Result<String, StoreError> {
    let old = get::find(tx, before.tenant, before.id).await?;
    let old = old.ok_or_else(|| StoreError::unexpected("a locked job moved"))?;
    let by = Caller::new(old.principal.clone()).at_depth(old.depth);
    let request =
        EnqueueRequest::new(before.tenant, vec![retry::copy(&old, Some(payload.into()), &by)], vec![before.lane]);
    let created = match EnqueueBatch::one(request).run(tx).await?.pop() {
        Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
        _ => None,
    };
    let created = created.ok_or_else(|| StoreError::unexpected("a successor was not created"))?;
    effects.ready.insert((created.tenant, created.queue));
    Ok(format!(r#"{{"continued_as":"{}"}}"#, created.id))
}

/// Minimum number of successes of one worker and epoch for a statement of their own.
const ALIKE: usize = 4;

impl SettleBatch {
    /// Moves the successful jobs whose claim still stands to `ended`: those without a result in batches, the others row
    /// by row.
    async fn finish_all(&self, tx: &mut Tx<'_>, finishes: &[OpenOutcome<'_>]) -> Result<Vec<EndedRow>, StoreError> {
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
            let (taken, mut jobs) = self.claimed_rows.remove(of, jobs);
            for taken in taken {
                match transition::complete_claimed_rows(tx, &taken).await? {
                    Some(finished) => gone.extend(finished),
                    None => jobs.extend(taken.iter().map(|(job, _)| *job)),
                }
            }
            if jobs.len() < ALIKE {
                singly.extend(jobs.into_iter().map(|job| Ending::succeeded(of, job, None)));
            } else {
                gone.extend(transition::complete_batch(tx, of.0, of.1, of.2, &jobs).await?);
            }
        }
        gone.extend(transition::end(tx, &singly).await?);
        Ok(gone)
    }
}

fn refused(refusal: Refusal) -> SettleStatus {
    match refusal {
        Refusal::AlreadyEnded => SettleStatus::AlreadyEnded,
        Refusal::ClaimLost | Refusal::Illegal { .. } => SettleStatus::ClaimLost,
    }
}

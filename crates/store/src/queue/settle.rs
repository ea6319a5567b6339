//! Settles outcomes of workers, many requests in one commit. The HTTP API and the engine's own workers call
//! `Store::settle`.
//!
//! Successes go through one set-based statement guarded by worker and epoch. All other outcomes, and successes that the
//! guard refused, are decided row by row by the transition rules.

mod decide;
mod finish;
mod outcome;

use std::collections::{BTreeMap, HashSet};

use domain::{TenantId, WorkerId};

pub use self::outcome::{ChosenBackoff, End, Outcome, SettleStatus, Settled};
use crate::db::effects::Effects;
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::tx::{Operation, Prefetch, Tx};
use crate::error::StoreError;
use crate::queue::claim::fast_path::claimed_row_cache::ClaimedRowCache;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::workers;
use crate::store::Store;
use crate::triggers::events::queues::drained;
use crate::workflows::runs::end;

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
}

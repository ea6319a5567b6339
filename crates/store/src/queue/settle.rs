//! Settles outcomes of workers, many requests in one commit. The HTTP API and the engine's own workers call
//! `Store::settle`.
//!
//! Successes go through one set-based statement guarded by worker and epoch. All other outcomes, and successes that the
//! guard refused, are decided row by row by the transition rules.

mod decide;
mod finish;
mod outcome;

use std::collections::{HashMap, HashSet};

use domain::{TenantId, WorkerId};

pub use self::outcome::{ChosenBackoff, End, Outcome, SettleStatus, Settled};
use crate::db::effects::Effects;
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::tx::{Operation, Prefetch, Tx};
use crate::error::StoreError;
use crate::queue::claim::fast_path::claimed_row_cache::ClaimedRowCache;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::queue::workers::living::{load_living, prefetch_living};
use crate::store::Store;

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
        vec![prefetch_living(&self.asking())]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SettleReply>, StoreError> {
        let mut counters = CounterDeltas::default();
        let mut effects = Effects::default();
        let living = load_living(tx, &self.asking()).await?;
        let mut statuses: Vec<Vec<SettleStatus>> =
            self.requests.iter().map(|request| vec![SettleStatus::ClaimLost; request.outcomes.len()]).collect();
        let (finishes, mut others) = self.open(&living);
        let refused = self.finish(tx, finishes, &mut statuses, &mut counters, &mut effects).await?;
        others.extend(refused);
        // A job may be named twice: the first outcome counts.
        others.sort_by_key(|open| open.place);
        self.decide(tx, others, &mut statuses, &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
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
    /// The workers of the requests, with their tenants.
    fn asking(&self) -> HashSet<(WorkerId, TenantId)> {
        self.requests.iter().map(|request| (request.worker, request.tenant)).collect()
    }

    /// Splits the outcomes of live workers into successes and others. The second outcome of a job counts as other.
    fn open(&self, living: &HashMap<(WorkerId, TenantId), bool>) -> (Vec<OpenOutcome<'_>>, Vec<OpenOutcome<'_>>) {
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

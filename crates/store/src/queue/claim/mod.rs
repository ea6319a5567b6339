//! Claims jobs for a worker. Long-polls, pools and the engine's own workers call `Store::claim`.
//!
//! The plain claim is the definition: it reads the first waiting job of every lane that the worker serves, asks
//! `domain::queue::claim` which lanes to take from (priority, held affinity, age, starvation bound), and takes jobs within the
//! limits and holds. `fast_path` makes the same claim with less work where it can, and declines where it cannot.

mod capacity;
mod claimed_row;
pub(crate) mod fast_path;
mod fill;
mod guarded;
mod lane_heads;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use domain::limits::CLAIM_BYTES;
use domain::{Affinity, Epoch, JobId, JobState, Name, TenantId, Time, TraceContext, WorkerId};

use fast_path::FastPath;
use fast_path::claimed_row_cache::ClaimedRow;
use fast_path::hints::{FastPathLane, HintUpdate};
use fast_path::watermarks::{JobCursor, Watermark};
use fill::ClaimBuilder;
use lane_heads::LaneQuery;

use crate::db::effects::Effects;
use crate::db::notifier::{JobChange, Topic};
use crate::db::tx::{Operation, Prefetch, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::work::AttemptOutcome;
use crate::queue::claim_gate::ClaimFilter;
use crate::queue::lanes::LaneCache;
use crate::queue::traces::traces;
use crate::queue::transition::{ChangeDetails, StateChange, SubjectOutcome, WebhookInterest};
use crate::queue::workers;
use crate::store::Store;
use crate::workflows::journal::read::JournalPage;
use crate::workflows::runs::inputs::{Input, inputs};

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
    /// The job's tenant, if it is not the worker's own.
    pub tenant: Option<Name>,
    /// The first page of the job's journal, if it has one.
    pub journal: Option<JournalPage>,
    /// `loading` if the worker must load the affinity first, else `working`.
    pub state: JobState,
    /// The results of the jobs that this job needs, by the names of their nodes. `None` if it needs none.
    pub inputs: Option<Vec<(String, Input)>>,
    pub traceparent: Option<TraceContext>,
    run_at: Time,
    lane: i64,
    /// The row names a webhook, or says that its queue has one.
    has_webhook: bool,
}

#[derive(Clone, Debug)]
pub enum Claimed {
    Jobs {
        jobs: Vec<ClaimedJob>,
        /// What the worker serves: a waiter subscribes to these queues.
        claim_filter: ClaimFilter,
        draining: bool,
        /// The worker may get more jobs at once: other claims held locks on them, or the claim stopped at a limit.
        may_have_more: bool,
    },
    /// The worker's lease expired.
    LeaseExpired,
    NotFound,
}

impl ClaimedJob {
    fn cursor(&self) -> JobCursor {
        JobCursor { run_at: self.run_at, id: self.id.uuid() }
    }

    /// The change that the claim made to the job.
    fn state_change(&self, tenant: TenantId, worker: WorkerId) -> StateChange<'_> {
        let webhook = if self.has_webhook { WebhookInterest::Stored } else { WebhookInterest::None };
        let subject = self.subject.as_deref().map(|subject| SubjectOutcome {
            subject,
            process: self.process.as_deref(),
            worker: Some(worker),
            event: "started",
            actor: None,
            outcome: AttemptOutcome::Started,
        });
        let states = (JobState::Queued, self.state);
        let details = ChangeDetails { subject, ..ChangeDetails::default() }.boxed();
        StateChange { details, ..StateChange::plain((tenant, self.id, self.lane), states, self.attempt, webhook) }
    }
}

impl Store {
    /// Claims up to `max` jobs for this worker. `affinity` is the one that the worker holds now, if it says so.
    pub async fn claim(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        max: usize,
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        self.claim_of(tenant, tenant, worker, (max, CLAIM_BYTES), affinity).await
    }

    /// Claims from the queues of another tenant, `of`, for a worker of `tenant` that serves it. The limits are a number of
    /// jobs and the bytes of their payloads.
    pub(crate) async fn claim_of(
        &self,
        of: TenantId,
        tenant: TenantId,
        worker: WorkerId,
        (max, max_bytes): (usize, usize),
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        self.duration_sampler().observe_claim(worker, max);
        let request = ClaimRequest { of, tenant, worker, max, max_bytes, affinity };
        let done = match self.fast_path().claim(self, &request).await? {
            Some(done) => done,
            None => {
                let expected_queues = self.fast_path().expected_queues(worker);
                let (fast_path, lanes) = (self.fast_path().clone(), self.lanes().clone());
                let claim = Claim { request, expected_queues, prefetched: Mutex::default(), fast_path, lanes };
                self.write(claim).await?
            }
        };
        let mut claimed = self.claimed(of, worker, done);
        self.add_journals(of, &mut claimed).await;
        Ok(claimed)
    }

    /// Adds the first page of each journal to its job.
    async fn add_journals(&self, of: TenantId, claimed: &mut Claimed) {
        let Claimed::Jobs { jobs, .. } = claimed else { return };
        let with_journal: Vec<JobId> = jobs.iter().filter(|job| job.journal.is_some()).map(|job| job.id).collect();
        if with_journal.is_empty() {
            return;
        }
        // The claim is committed, so an error must not hide it. The worker reads the journal from its beginning.
        let mut pages = self.first_pages(of, with_journal).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the journals of claimed jobs; their workers read them in pages");
            Default::default()
        });
        for job in jobs.iter_mut().filter(|job| job.journal.is_some()) {
            let unread = || JournalPage { entries: Vec::new(), next: Some(0) };
            job.journal = Some(pages.remove(&job.id).unwrap_or_else(unread));
        }
    }

    /// Publishes a committed claim to this node's caches and waiters.
    fn claimed(&self, of: TenantId, worker: WorkerId, mut done: ClaimEffects) -> Claimed {
        self.fast_path().learn(of, worker, &mut done, self.is_postgres());
        for queue in done.skipped_queues {
            self.notifier().notify(Topic::Ready(of, queue));
        }
        // The plain claim has described its changes in the effects; a claim in one statement has not.
        if let (Claimed::Jobs { jobs, .. }, true) = (&done.claimed, done.effects.changes.is_empty()) {
            let change = |job: &ClaimedJob| JobChange {
                tenant: of,
                lane: Some(job.lane),
                job: job.id,
                to: Some(JobState::Working),
            };
            done.effects.changes.extend(jobs.iter().map(change));
        }
        self.announce(&done.effects);
        done.claimed
    }
}

#[derive(Clone)]
struct ClaimRequest {
    /// The tenant of the jobs: the worker's own, unless it serves others.
    of: TenantId,
    /// The tenant of the worker.
    tenant: TenantId,
    worker: WorkerId,
    max: usize,
    /// The claim stops with the job at which the payloads reach this size.
    max_bytes: usize,
    affinity: Affinity,
}

/// A claim, and what this node does after its commit.
struct ClaimEffects {
    claimed: Claimed,
    /// The claimed jobs whose rows the claimed-row cache can hold.
    claimed_rows: Vec<(JobId, ClaimedRow)>,
    watermarks: Vec<(Name, Watermark)>,
    /// Queues of jobs that the claim locked and did not take. Claims that skipped the locked rows must try again.
    skipped_queues: BTreeSet<Name>,
    effects: Effects,
    hint_update: HintUpdate,
}

impl ClaimEffects {
    fn of(claimed: Claimed) -> Self {
        Self {
            claimed,
            claimed_rows: Vec::new(),
            watermarks: Vec::new(),
            skipped_queues: BTreeSet::new(),
            effects: Effects::default(),
            hint_update: HintUpdate::Keep,
        }
    }
}

/// The plain claim.
struct Claim {
    request: ClaimRequest,
    /// The queues that the worker serves, as this node last saw it.
    expected_queues: Option<Arc<[Name]>>,
    /// The query of lane heads that was sent with the begin of the transaction.
    prefetched: Mutex<Option<LaneQuery>>,
    fast_path: FastPath,
    lanes: LaneCache,
}

impl Operation for Claim {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = ClaimEffects;

    fn tenant(&self) -> Option<TenantId> {
        let ClaimRequest { of, tenant, .. } = self.request;
        // A worker of the built-in tenant may hold jobs of other tenants.
        (of == tenant && of != TenantId::SYSTEM).then_some(of)
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        let heads = self.expected_queues.as_ref().map(|queues| {
            let query = LaneQuery::above_watermarks(self.fast_path.watermarks(), self.request.of, queues);
            let prefetch = query.prefetch(queues, self.request.of);
            *self.prefetched.lock().expect("lock poisoned") = Some(query);
            prefetch
        });
        [workers::prefetch_workers(&[self.request.worker])].into_iter().chain(heads).collect()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ClaimEffects, StoreError> {
        let ClaimRequest { of, tenant, max, max_bytes, affinity, .. } = &self.request;
        let now = tx.now();
        let worker = workers::load(tx, &[self.request.worker]).await?.pop().filter(|worker| worker.tenant == *tenant);
        let Some(worker) = worker else { return Ok(ClaimEffects::of(Claimed::NotFound)) };
        if !worker.is_alive(now) {
            return Ok(ClaimEffects::of(Claimed::LeaseExpired));
        }
        let claim_filter = worker.claim_filter();
        if worker.draining {
            worker.touch(tx).await?;
            let (jobs, may_have_more) = (Vec::new(), false);
            return Ok(ClaimEffects::of(Claimed::Jobs { jobs, claim_filter, draining: true, may_have_more }));
        }
        let held_affinity = affinity.clone().or_else(|| worker.affinity.clone());
        let mut builder = ClaimBuilder::new(now, *of, &worker, held_affinity, *max_bytes);
        let found = self.lane_heads(tx, &claim_filter.queues).await?;
        let found = self.served_heads(tx, &worker, found).await?;
        let heads = found.heads.iter().filter(|head| head.is_served_by(&worker)).cloned().collect();
        builder.fill(tx, heads, *max).await?;
        if builder.jobs.is_empty() {
            worker.touch(tx).await?;
        } else {
            let took_affinity = builder.jobs.iter().any(|job| job.affinity.is_some());
            worker.claimed(tx, if took_affinity { &builder.held_affinity } else { affinity }).await?;
        }
        let may_have_more = builder.may_have_more;
        let hint_update = match builder.jobs.iter().any(|job| job.has_webhook || job.inputs.is_some()) {
            true => HintUpdate::Remove,
            false => FastPathLane::learn(&found.heads, &worker),
        };
        let watermarks = found.watermarks_after(&builder.taken_up_to, now);
        let skipped_queues = std::mem::take(&mut builder.skipped_queues);
        let claimed_rows = std::mem::take(&mut builder.claimed_rows);
        let mut effects = Effects::default();
        let mut jobs = builder.write(tx, &self.lanes, &mut effects).await?;
        read_inputs(tx, &mut jobs).await?;
        let claimed = Claimed::Jobs { jobs, claim_filter, draining: false, may_have_more };
        Ok(ClaimEffects { claimed, claimed_rows, watermarks, skipped_queues, effects, hint_update })
    }
}

/// Reads the inputs and the trace contexts of the jobs that have some.
async fn read_inputs(tx: &mut Tx<'_>, jobs: &mut [ClaimedJob]) -> Result<(), StoreError> {
    let with_inputs: Vec<JobId> = jobs.iter().filter(|job| job.inputs.is_some()).map(|job| job.id).collect();
    let mut found = inputs(tx, with_inputs.iter().copied()).await?;
    let mut traces = traces(tx, with_inputs.iter().copied()).await?;
    for job in jobs.iter_mut().filter(|job| job.inputs.is_some()) {
        job.inputs = found.remove(&job.id);
        job.traceparent = traces.remove(&job.id);
    }
    Ok(())
}

//! Enqueues jobs, many requests in one commit. The HTTP API, triggers and processes call this module.
//!
//! Each request succeeds or fails as a whole. A request whose idempotency key or unique key is taken gets the job that
//! has it.

mod gather;
mod insert;
mod keys;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{Affinity, JobId, JobState, Label, Name, RetryPolicy, TenantId, Time, TraceContext};

use crate::db::clock::new_job_ids;
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::Lane;
use crate::store::Store;
use crate::workflows::runs::join::{self, Joining};

/// A validated job to enqueue.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub queue: Name,
    pub kind: Name,
    /// JSON, unchanged.
    pub payload: Box<str>,
    pub affinity: Affinity,
    pub priority: i32,
    /// `None`: now.
    pub run_at: Option<Time>,
    pub max_attempts: i32,
    pub principal: Arc<str>,
    /// Fields that most jobs do not set.
    pub extras: Option<Box<Extras>>,
}

#[derive(Clone, Debug, Default)]
pub struct Extras {
    pub subject: Option<Label>,
    pub process: Option<Name>,
    pub run: Option<Label>,
    pub unique: Option<Unique>,
    pub concurrency_key: Option<Label>,
    pub retry: Option<RetryPolicy>,
    pub timeout_s: Option<i64>,
    pub tags: Vec<Label>,
    /// The webhook, as JSON.
    pub webhook: Option<String>,
    pub parent: Option<JobId>,
    pub triggered_by: Option<String>,
    pub depth: i32,
    /// Seconds from its creation after which the live job fails.
    pub deadline_s: Option<i64>,
    pub traceparent: Option<TraceContext>,
    /// With a unique key without a lifetime: further requests change the job that has the key until it starts.
    pub gather: Option<Gather>,
    /// The job waits until something wakes it.
    pub waits: bool,
    /// A claim of the job carries the results of the jobs that it needs.
    pub has_inputs: bool,
}

/// Within its lifetime, the same key in the same queue refers to the same job.
#[derive(Clone, Debug)]
pub struct Unique {
    pub key: String,
    /// `None`: until the job ends.
    pub for_s: Option<i64>,
}

/// How requests with the same unique key become one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gather {
    /// The job runs with the last payload, `delay_s` after the last request and at most `max_s` after the first.
    Debounce { delay_s: i64, max_s: Option<i64> },
    /// The job runs with the array of up to `max` payloads, at most `within_s` after the first.
    Batch { max: i64, within_s: i64 },
}

#[derive(Clone, Debug)]
pub struct Idempotency {
    pub key: String,
    pub body_hash: [u8; 32],
}

/// An enqueued job, as the reply describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub id: JobId,
    pub tenant: TenantId,
    pub state: JobState,
    pub queue: Name,
    pub kind: Name,
    pub run_at: Time,
    pub created_at: Time,
    /// The job existed before.
    pub existing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueReply {
    Accepted(Vec<Accepted>),
    /// The idempotency key was used with another body.
    KeyReused,
}

impl Store {
    /// Enqueues jobs, all or none, and returns after the commit.
    pub async fn enqueue(
        &self,
        tenant: TenantId,
        mut jobs: Vec<NewJob>,
        idempotency: Option<Idempotency>,
    ) -> Result<EnqueueReply, StoreError> {
        self.seal_webhooks(tenant, &mut jobs).await?;
        let lanes: Vec<Lane> = jobs.iter().map(|job| job.lane(tenant)).collect();
        let lanes = self.lane_ids(&lanes).await?;
        self.shared_enqueue(EnqueueRequest { tenant, jobs, lanes, ids: Vec::new(), idempotency }).await
    }
}

impl NewJob {
    pub(crate) fn lane(&self, tenant: TenantId) -> Lane {
        let guarded = |extras: &Extras| extras.subject.is_some() || extras.concurrency_key.is_some();
        Lane {
            tenant,
            queue: self.queue.clone(),
            kind: self.kind.clone(),
            priority: self.priority,
            affinity: self.affinity.clone(),
            guarded: self.extras.as_deref().is_some_and(guarded),
        }
    }

    fn gather(&self) -> Option<Gather> {
        self.extras.as_deref().and_then(|extras| extras.gather)
    }

    fn unique(&self) -> Option<&Unique> {
        self.extras.as_deref().and_then(|extras| extras.unique.as_ref())
    }
}

pub(crate) struct EnqueueRequest {
    tenant: TenantId,
    jobs: Vec<NewJob>,
    lanes: Vec<i64>,
    /// Ids that were assigned earlier. Without them jobs get new ids.
    ids: Vec<JobId>,
    idempotency: Option<Idempotency>,
}

impl EnqueueRequest {
    pub(crate) fn new(tenant: TenantId, jobs: Vec<NewJob>, lanes: Vec<i64>) -> Self {
        Self { tenant, jobs, lanes, ids: Vec::new(), idempotency: None }
    }

    pub(crate) fn with_ids(self, ids: Vec<JobId>) -> Self {
        Self { ids, ..self }
    }

    pub(crate) fn with_idempotency(self, idempotency: Option<Idempotency>) -> Self {
        Self { idempotency, ..self }
    }
}

pub(crate) struct EnqueueBatch {
    requests: Vec<EnqueueRequest>,
}

impl EnqueueBatch {
    /// For an operation that enqueues as part of its own transaction. The rows are deferred to the commit: the
    /// operation cannot read them.
    pub(crate) fn one(request: EnqueueRequest) -> Self {
        Self::several(vec![request])
    }

    pub(crate) fn several(requests: Vec<EnqueueRequest>) -> Self {
        Self { requests }
    }
}

impl Batch for EnqueueBatch {
    type Request = EnqueueRequest;
    type Reply = EnqueueReply;

    fn batcher(store: &Store) -> &GroupCommit<Self> {
        &store.group_commits().enqueue
    }

    fn of(_: &Store, requests: Vec<EnqueueRequest>) -> Self {
        Self { requests }
    }

    fn size(request: &EnqueueRequest) -> RequestSize {
        let bytes = request.jobs.iter().map(|job| job.payload.len()).sum();
        RequestSize { jobs: request.jobs.len(), bytes }
    }

    fn tenant_of(request: &EnqueueRequest) -> TenantId {
        request.tenant
    }

    fn committed(store: &Store, replies: &[EnqueueReply]) {
        let mut last_notified: Option<(TenantId, &Name)> = None;
        for reply in replies {
            let EnqueueReply::Accepted(jobs) = reply else { continue };
            // A batch that is full runs at once.
            if jobs.iter().any(|job| job.existing && job.state == JobState::Scheduled) {
                store.notifier().notify_local(&Topic::Due);
            }
            for job in jobs.iter().filter(|job| !job.existing) {
                if job.run_at < job.created_at {
                    store.fast_path().watermarks().remove(job.tenant, &job.queue);
                }
                if job.state == JobState::Waiting {
                    continue;
                }
                if job.state == JobState::Scheduled {
                    store.notifier().notify_local(&Topic::Due);
                } else if last_notified != Some((job.tenant, &job.queue)) {
                    store.notifier().notify(Topic::Ready(job.tenant, job.queue.clone()));
                    last_notified = Some((job.tenant, &job.queue));
                }
            }
        }
    }
}

/// A job on its way in.
struct PendingJob<'a> {
    request: usize,
    tenant: TenantId,
    job: &'a NewJob,
    lane: i64,
    id: JobId,
    run_at: Time,
    state: JobState,
    /// The payload of a job that gathers the payloads of several requests.
    gathered: Option<String>,
    /// Number of these payloads.
    payloads: i64,
}

impl Operation for EnqueueBatch {
    const LAZY_BEGIN: bool = true;
    type Output = Vec<EnqueueReply>;

    fn tenants(&self) -> Vec<TenantId> {
        self.requests.iter().map(|request| request.tenant).collect()
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EnqueueReply>, StoreError> {
        let now = tx.now();
        let count = self.requests.iter().map(|request| request.jobs.len()).sum();
        let mut ids = new_job_ids(now, count).into_iter();
        let mut entries: Vec<PendingJob<'_>> = Vec::with_capacity(count);
        for (number, request) in self.requests.iter().enumerate() {
            for (place, (job, lane)) in request.jobs.iter().zip(&request.lanes).enumerate() {
                let gather = job.gather();
                let run_at = gather.map_or(job.run_at.unwrap_or(now), |gather| gather.first_run_at(now));
                let waits = job.extras.as_deref().is_some_and(|extras| extras.waits);
                let state = match run_at > now {
                    _ if waits => JobState::Waiting,
                    true => JobState::Scheduled,
                    false => JobState::Queued,
                };
                let fresh = ids.next().expect("one id per job");
                let id = request.ids.get(place).copied().unwrap_or(fresh);
                entries.push(PendingJob {
                    request: number,
                    tenant: request.tenant,
                    job,
                    lane: *lane,
                    id,
                    run_at,
                    state,
                    gathered: gather.and_then(|gather| gather.first_payload(&job.payload)),
                    payloads: 1,
                });
            }
        }
        let keys::UsedKeys { mut replies, repeats } = keys::answer_used(tx, &self.requests, &entries).await?;
        entries.retain(|entry| replies[entry.request].is_none() && !repeats.contains_key(&entry.request));
        let keys::UniqueKeys { taken, mut gathered } = keys::take_unique(tx, &entries).await?;
        for entry in entries.iter_mut() {
            let Some(keys::PendingChange { payload, payloads, run_at }) = gathered.remove(&entry.id) else { continue };
            entry.state = if run_at > now { JobState::Scheduled } else { JobState::Queued };
            (entry.gathered, entry.payloads, entry.run_at) = (Some(payload), payloads, run_at);
        }
        let mut counters = CounterDeltas::default();
        let made: Vec<&PendingJob<'_>> = entries.iter().filter(|entry| !taken.contains_key(&entry.id)).collect();
        for entry in &made {
            counters.add(entry.tenant, &entry.job.queue, entry.state, 1);
        }
        insert::jobs(tx, &made, &counters).await?;
        insert::tags(tx, &made).await?;
        insert::options(tx, &made).await?;
        let mut accepted: HashMap<usize, Vec<Accepted>> = HashMap::new();
        for entry in &entries {
            let answer = taken.get(&entry.id).cloned().unwrap_or_else(|| entry.accepted(now));
            accepted.entry(entry.request).or_default().push(answer);
        }
        join_runs(tx, &made).await?;
        keys::store_replies(tx, &self.requests, &accepted).await?;
        for (number, first) in repeats {
            replies[number] = Some(keys::repeat_reply(accepted.get(&first).map(Vec::as_slice).unwrap_or_default()));
        }
        for (number, jobs) in accepted {
            replies[number] = Some(EnqueueReply::Accepted(jobs));
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or(EnqueueReply::Accepted(Vec::new()))).collect())
    }
}

/// Counts the jobs into their runs.
async fn join_runs(tx: &mut Tx<'_>, made: &[&PendingJob<'_>]) -> Result<(), StoreError> {
    let mut runs: BTreeMap<(TenantId, &str), Joining> = BTreeMap::new();
    for entry in made {
        let Some((extras, run)) = entry.job.extras.as_deref().and_then(|extras| Some((extras, extras.run.as_ref()?)))
        else {
            continue;
        };
        let (principal, depth) = (entry.job.principal.clone(), extras.depth);
        let joining = runs.entry((entry.tenant, run.as_str())).or_insert(Joining { jobs: 0, principal, depth });
        joining.jobs += 1;
        joining.depth = joining.depth.max(depth);
    }
    join::join(tx, &runs).await
}

impl PendingJob<'_> {
    fn payload(&self) -> &str {
        self.gathered.as_deref().unwrap_or(&self.job.payload)
    }

    fn accepted(&self, now: Time) -> Accepted {
        Accepted {
            id: self.id,
            tenant: self.tenant,
            state: self.state,
            queue: self.job.queue.clone(),
            kind: self.job.kind.clone(),
            run_at: self.run_at,
            created_at: now,
            existing: false,
        }
    }
}

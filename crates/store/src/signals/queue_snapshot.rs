//! A snapshot of one queue: its waiting and running jobs, its workers, pause and limits.
//!
//! Signals are read far more often than a queue's state changes. So the snapshot is cached for a second per queue, and
//! the queue position of a job is computed from it in memory. `why` reads it uncached.

use std::collections::HashMap;
use std::sync::Arc;

use domain::limits::{QUEUE_SNAPSHOT_JOBS, QUEUE_SNAPSHOT_WORKERS};
use domain::queue::queue_position::{QueueOrder, QueuedJob};
use domain::{Affinity, Backoff, JobId, JobState, Label, Name, QueueSettings, TenantId, Time, WorkerId};
use uuid::Uuid;

use crate::cache::stale_while_revalidate::CacheStatus;
use crate::db::codec::from_json;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::holds::queue_scope;
use crate::queue::lanes::Lane;
use crate::queue::queues::read_settings;
use crate::queue::workers::{Worker, list};
use crate::runtimes::lost;
use crate::runtimes::pools::member_backoff;
use crate::signals::duration_statistics::{arrival_rate, seconds_of};
use crate::store::Store;

/// The state of a queue at one moment.
#[derive(Clone, Debug)]
pub struct QueueSnapshot {
    pub now: Time,
    /// The reason of the pause; `None` if the queue is not paused.
    pub paused: Option<String>,
    pub settings: QueueSettings,
    /// Running jobs that count towards the queue's concurrency limit; 0 if it has none.
    pub slots_in_use: u64,
    /// The token bucket of the queue's rate limit, if it has one.
    pub bucket: Option<RateLimitBucket>,
    pub workers: Vec<ServingWorker>,
    /// The waiting jobs, in the order in which they are claimed.
    pub order: QueueOrder,
    pub running: Vec<RunningJob>,
    pub lanes: HashMap<i64, Lane>,
    /// Mean rate at which jobs arrive by lane, learned from ended jobs.
    pub arrivals_per_s: HashMap<i64, f64>,
    /// By affinity, why no worker serves it: the node that would is lost.
    pub lost: HashMap<Affinity, String>,
    /// By affinity, the backoff of a pool member that could not be loaded.
    pub member_backoff: HashMap<Affinity, Backoff>,
}

/// The token bucket of a queue with a rate limit. Each job that starts takes one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimitBucket {
    pub tokens: f64,
    pub rate_per_s: f64,
}

impl RateLimitBucket {
    fn is_empty(self) -> bool {
        self.tokens < 1.0
    }

    /// Returns how long a job waits for its token if `ahead` other jobs take theirs first.
    fn wait_ms(self, ahead: u64) -> i64 {
        let missing = ahead as f64 + 1.0 - self.tokens;
        (missing / self.rate_per_s * 1_000.0).ceil().max(0.0) as i64
    }
}

/// A live worker that serves the queue and is not draining.
#[derive(Clone, Debug)]
pub struct ServingWorker {
    pub id: WorkerId,
    pub kinds: Option<Vec<Name>>,
    pub affinities: Option<Vec<Label>>,
    /// The affinity that the worker has loaded.
    pub loaded: Affinity,
    /// Jobs that the worker has claimed now.
    pub claims: u64,
    /// Jobs that the worker runs at the same time, as far as it is known from its claims.
    pub concurrency: Option<u64>,
}

/// A job that a worker has claimed.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningJob {
    pub id: JobId,
    pub lane: i64,
    pub worker: WorkerId,
    pub started_at: Time,
    /// Since when it works: after its model was loaded.
    pub begun_at: Option<Time>,
    pub is_loading: bool,
    /// As last reported, and when.
    pub progress: Option<(f64, Time)>,
}

impl ServingWorker {
    fn new(worker: Worker, claims: i64, concurrency: Option<i64>) -> Self {
        let Worker { id, kinds, affinities, affinity, .. } = worker;
        let concurrency = concurrency.map(|jobs| jobs.max(1) as u64);
        Self { id, kinds, affinities, loaded: affinity, claims: claims.max(0) as u64, concurrency }
    }

    /// True if the worker claims jobs of this kind and affinity.
    pub fn serves(&self, kind: &Name, affinity: &Affinity) -> bool {
        let kind = self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        let affinity = match (&self.affinities, affinity) {
            (Some(served), Some(affinity)) => served.contains(affinity),
            _ => true,
        };
        kind && affinity
    }
}

impl QueueSnapshot {
    /// Describes the limit that blocks the queue, if one is reached: its concurrency limit, or its rate limit.
    pub fn limit(&self) -> Option<String> {
        self.full().or_else(|| {
            let rate_per_s = self.saturated()?.rate_per_s;
            Some(format!("the queue's rate limit of {rate_per_s} jobs per second is reached"))
        })
    }

    /// Returns until when the rate limit delays a job with `ahead` jobs before it. Returns `None` if the concurrency
    /// limit blocks the queue, because the time at which a slot becomes free is unknown.
    pub fn limit_until(&self, ahead: u64) -> Option<Time> {
        let bucket = self.saturated().filter(|_| self.full().is_none())?;
        Some(self.now.plus_ms(bucket.wait_ms(ahead)))
    }

    fn full(&self) -> Option<String> {
        let limit = u64::from(self.settings.concurrency?);
        let used = self.slots_in_use;
        (used >= limit).then(|| format!("{used} of {limit} jobs of the queue are running"))
    }

    fn saturated(&self) -> Option<RateLimitBucket> {
        self.bucket.filter(|bucket| bucket.is_empty())
    }

    /// Returns the workers that serve jobs of this kind and affinity.
    pub fn serving(&self, kind: &Name, affinity: &Affinity) -> impl Iterator<Item = &ServingWorker> {
        self.workers.iter().filter(move |worker| worker.serves(kind, affinity))
    }

    /// Returns the distinct affinities that the workers serving such a job have loaded, sorted.
    pub fn loaded(&self, kind: &Name, affinity: &Affinity) -> Vec<&str> {
        let mut loaded: Vec<&str> =
            self.serving(kind, affinity).filter_map(|worker| worker.loaded.as_ref()).map(Label::as_str).collect();
        loaded.sort_unstable();
        loaded.dedup();
        loaded
    }
}

impl Store {
    /// Returns the snapshot of a queue, at most a second old.
    pub async fn queue_snapshot(
        &self,
        tenant: TenantId,
        queue: &Name,
    ) -> Result<(Arc<QueueSnapshot>, CacheStatus), StoreError> {
        let (store, read) = (self.clone(), ReadQueueSnapshot { tenant, queue: queue.clone() });
        self.queue_snapshot_cache().get((tenant, queue.clone()), || async move { store.read(read).await }).await
    }
}

struct ReadQueueSnapshot {
    tenant: TenantId,
    queue: Name,
}

impl Operation for ReadQueueSnapshot {
    type Output = QueueSnapshot;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<QueueSnapshot, StoreError> {
        read(tx, self.tenant, &self.queue).await
    }
}

const QUEUE: Sql = Sql::both(&["select settings, concurrency, per_key, rate_per_s, starvation_s,
         case when paused_at is not null then coalesce(paused_reason, 'no reason given') end as paused
     from queues where tenant = $1 and name = $2"]);
const SLOTS_IN_USE: Sql = Sql::both(&["select count(*) as holds from holds where tenant = $1 and scope = $2"]);
const RATE: Sql = Sql::both(&["select tokens, at from rates where tenant = $1 and queue = $2"]);
const WORKERS: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, w.concurrency, s.since, s.beat_at,
           (select coalesce(sum(c.remaining), 0) from claims c where c.worker = w.id) as claims
       from workers w join service s on s.id = 1
       where w.tenant = $1 and w.dead_at is null limit $2"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, w.concurrency, s.since, s.beat_at,
         (select coalesce(sum(c.remaining), 0)::bigint from claims c where c.worker = w.id) as claims
     from workers w join service s on s.id = 1
     where w.tenant = $1 and w.dead_at is null limit $2",
);
// Lanes remain after their last job, so those with waiting jobs come first. On PostgreSQL these include running jobs.
const LANES: Sql = Sql::new(
    &["select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded from lanes l
       where l.tenant = $1 and l.queue = $2
       order by exists (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
           and j.worker is null) desc limit 1000"],
    "select l.lane, l.tenant, l.queue, l.kind, l.priority, l.affinity, l.guarded from lanes l
     where l.tenant = $1 and l.queue = $2
     order by exists (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null) desc
     limit 1000",
);
// On PostgreSQL claimed jobs stay in the index until they end, so the oldest jobs of a lane are the running ones and
// then those that are claimed next. On SQLite a claim removes a job from the index, so running jobs are found by their
// claims.
const OLDEST: Sql = Sql::new(
    &["select lane, id, run_at, worker, started_at, begun_at, state, progress, updated_at from jobs
       where lane = $1 and due_at is null and parked is null and worker is null order by run_at, id limit $2"],
    "select j.lane, j.id, j.run_at, j.worker, j.started_at, j.begun_at, j.state, j.progress, j.updated_at from unnest($1::bigint[]) as l(lane)
     cross join lateral (select * from jobs where jobs.lane = l.lane and due_at is null and parked is null
         order by run_at, id limit $2) j",
);
const CLAIMED: Sql = Sql::both(&["select jobs from claims where tenant = $1 limit $2"]);
const RUNNING: Sql = Sql::new(
    &["select lane, id, run_at, worker, started_at, begun_at, state, progress, updated_at from jobs
       where id = $1 and worker is not null"],
    "select lane, id, run_at, worker, started_at, begun_at, state, progress, updated_at from jobs
     where id = any($1::uuid[]) and worker is not null",
);
const ARRIVALS: Sql = Sql::both(&["select a.lane, a.per_s, a.at from arrival_rates a join lanes l on l.lane = a.lane
     where l.tenant = $1 and l.queue = $2 limit 1000"]);
const QUEUED: Sql = Sql::new(
    &["select coalesce(sum(queued), 0) as queued
       from (select queued from counters where tenant = $1 and queue = $2
           union all select queued from counter_deltas where tenant = $1 and queue = $2)"],
    "select coalesce(sum(queued), 0)::bigint as queued
     from (select queued from counters where tenant = $1 and queue = $2
         union all select queued from counter_deltas where tenant = $1 and queue = $2) kept",
);

/// Reads the snapshot of a queue from a bounded number of rows.
pub(crate) async fn read(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<QueueSnapshot, StoreError> {
    let key = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let (settings, paused) = match tx.query_opt(&QUEUE, &key).await? {
        Some(row) => (read_settings(&row)?, row.opt_text("paused")?),
        None => (QueueSettings::default(), None),
    };
    let slots_in_use = match settings.concurrency {
        Some(_) => {
            let scope = queue_scope(queue);
            let row = tx.query_opt(&SLOTS_IN_USE, &[key[0], Param::Text(&scope)]).await?;
            row.map(|row| row.int("holds")).transpose()?.unwrap_or(0) as u64
        }
        None => 0,
    };
    let bucket = bucket(tx, &key, settings.rate_per_s).await?;
    let rows = tx.query(&LANES, &key).await?;
    let lanes: HashMap<i64, Lane> =
        rows.iter().map(|row| Ok((row.int("lane")?, Lane::read(row)?))).collect::<Result<_, StoreError>>()?;
    let mut workers = workers(tx, tenant, queue).await?;
    workers.extend(shared_workers(tx, tenant, queue, &lanes).await?);
    let (order, running) = jobs(tx, &key, &lanes).await?;
    let arrivals_per_s = arrivals(tx, &key).await?;
    let lost = lost::explain(tx, tenant, queue, workers.len()).await?;
    // The slots of a pool register with the affinities that they serve. If all workers of the queue serve any affinity,
    // no pool serves it, and the query is saved.
    let may_have_pool = workers.is_empty() || workers.iter().any(|worker| worker.affinities.is_some());
    let member_backoff =
        if may_have_pool { member_backoff::of_queue(tx, tenant, queue).await? } else { HashMap::new() };
    Ok(QueueSnapshot {
        now: tx.now(),
        paused,
        settings,
        slots_in_use,
        bucket,
        workers,
        order,
        running,
        lanes,
        arrivals_per_s,
        lost,
        member_backoff,
    })
}

/// Returns the bucket as a claim would find it now. A bucket without a row has not been used yet and is full.
async fn bucket(tx: &mut Tx<'_>, key: &[Param<'_>], rate: Option<f64>) -> Result<Option<RateLimitBucket>, StoreError> {
    let Some(rate_per_s) = rate else { return Ok(None) };
    let full = rate_per_s.max(1.0);
    let tokens = match tx.query_opt(&RATE, key).await? {
        Some(row) => {
            let elapsed_s = (tx.now().micros() - row.time("at")?.micros()).max(0) as f64 / 1_000_000.0;
            (row.opt_real("tokens")?.unwrap_or(full) + elapsed_s * rate_per_s).min(full)
        }
        None => full,
    };
    Ok(Some(RateLimitBucket { tokens, rate_per_s }))
}

/// Returns the arrival rates of the lanes of a queue, as of now.
async fn arrivals(tx: &mut Tx<'_>, key: &[Param<'_>]) -> Result<HashMap<i64, f64>, StoreError> {
    let now_s = seconds_of(tx.now());
    let rows = tx.query(&ARRIVALS, key).await?;
    rows.iter().map(|row| Ok((row.int("lane")?, arrival_rate(row)?.at(now_s)))).collect()
}

async fn workers(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<Vec<ServingWorker>, StoreError> {
    let params = [Param::Int(tenant.0), Param::Int(QUEUE_SNAPSHOT_WORKERS as i64)];
    let mut serving = Vec::new();
    for row in tx.query(&WORKERS, &params).await? {
        let worker = Worker::read(&row)?;
        if worker.queues.contains(queue) && worker.is_alive(tx.now()) && !worker.draining {
            serving.push(ServingWorker::new(worker, row.int("claims")?, row.opt_int("concurrency")?));
        }
    }
    Ok(serving)
}

/// Returns the workers of the built-in tenant that serve the queue for this tenant. Their loaded affinity is included
/// only if this tenant has a lane with it: any other affinity was loaded for another tenant and must not be visible.
async fn shared_workers(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    queue: &Name,
    lanes: &HashMap<i64, Lane>,
) -> Result<Vec<ServingWorker>, StoreError> {
    let all = list::serving(tx, tenant).await?.into_iter();
    let here = all.filter(|listed| listed.worker.queues.contains(queue));
    let mut shared: Vec<ServingWorker> =
        here.map(|listed| ServingWorker::new(listed.worker, listed.claims, None)).collect();
    for worker in &mut shared {
        let has_lane = lanes.values().any(|lane| lane.affinity == worker.loaded);
        worker.loaded = worker.loaded.take().filter(|_| has_lane);
    }
    Ok(shared)
}

/// Reads the oldest jobs of each lane and returns the waiting and the running ones.
async fn jobs(
    tx: &mut Tx<'_>,
    key: &[Param<'_>],
    lanes: &HashMap<i64, Lane>,
) -> Result<(QueueOrder, Vec<RunningJob>), StoreError> {
    let per_lane = (QUEUE_SNAPSHOT_JOBS / lanes.len().max(1)).max(50);
    let mut ids: Vec<i64> = lanes.keys().copied().collect();
    ids.sort_unstable();
    let rows = tx.query_each(&OLDEST, &[Column::ints(ids)], &[Param::Int(per_lane as i64)]).await?;
    let claimed = if tx.is_postgres() { Vec::new() } else { claimed(tx, key[0]).await? };
    let mut waiting = Vec::with_capacity(rows.len());
    let mut running = Vec::new();
    let mut scanned: HashMap<i64, (usize, Time)> = HashMap::new();
    for SnapshotJob { lane, id, run_at, running: claim } in SnapshotJob::read_all(&rows)? {
        let (count, newest) = scanned.entry(lane).or_insert((0, run_at));
        *count += 1;
        *newest = run_at.max(*newest);
        match claim {
            Some(claim) => running.push(claim),
            None => {
                let Lane { priority, affinity, .. } =
                    lanes.get(&lane).ok_or_else(|| StoreError::unexpected("a job of a lane that was not queried"))?;
                waiting.push(QueuedJob { id, priority: *priority, run_at, affinity: affinity.clone(), lane });
            }
        }
    }
    running.extend(claimed.into_iter().filter_map(|job| job.running).filter(|job| lanes.contains_key(&job.lane)));
    let mut order = QueueOrder::new(waiting);
    order.complete_until = scanned.values().filter(|(count, _)| *count >= per_lane).map(|(_, newest)| *newest).min();
    order.queued = match order.complete_until {
        None => order.scanned(),
        Some(_) => {
            let row = tx.query_opt(&QUEUED, key).await?;
            row.map(|row| row.int("queued")).transpose()?.unwrap_or(0).max(order.scanned() as i64) as u64
        }
    };
    Ok((order, running))
}

/// Returns claimed jobs of a tenant, at most as many as a snapshot considers.
async fn claimed(tx: &mut Tx<'_>, tenant: Param<'_>) -> Result<Vec<SnapshotJob>, StoreError> {
    let limit = QUEUE_SNAPSHOT_JOBS;
    let rows = tx.query(&CLAIMED, &[tenant, Param::Int(limit as i64)]).await?;
    let mut ids: Vec<JobId> = Vec::new();
    for row in &rows {
        ids.extend(from_json::<Vec<Uuid>>(&row.text("jobs")?)?.into_iter().map(JobId::new));
    }
    ids.truncate(limit);
    SnapshotJob::read_all(&tx.query_each(&RUNNING, &[Column::jobs(ids.iter().copied())], &[]).await?)
}

/// A job of the queue. `OLDEST` and `RUNNING` return its columns.
struct SnapshotJob {
    lane: i64,
    id: JobId,
    run_at: Time,
    /// `None` if it waits.
    running: Option<RunningJob>,
}

impl SnapshotJob {
    fn read_all(rows: &[Row]) -> Result<Vec<Self>, StoreError> {
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        let [lane, id, run_at, worker, started_at] =
            first.positions(["lane", "id", "run_at", "worker", "started_at"])?;
        let read = |row: &Row| {
            let (lane, id, run_at) = (row.int(lane)?, row.job(id)?, row.time(run_at)?);
            let started_at = if row.is_null(worker)? { None } else { row.opt_time(started_at)? };
            let Some(started_at) = started_at else { return Ok(Self { lane, id, run_at, running: None }) };
            let progress = row.opt_real("progress")?;
            let updated_at = row.time("updated_at")?;
            let running = RunningJob {
                id,
                lane,
                worker: WorkerId::new(row.uuid(worker)?),
                started_at,
                begun_at: row.opt_time("begun_at")?,
                is_loading: row.text("state")? == JobState::Loading.as_str(),
                progress: progress.map(|progress| (progress, updated_at)),
            };
            Ok(Self { lane, id, run_at, running: Some(running) })
        };
        rows.iter().map(read).collect()
    }
}

//! What surrounds the jobs of one queue: the line, the workers, a pause, a limit.
//!
//! Signals are read far more often than any of it changes. So it is read whole, at most once a second for each queue that
//! somebody asks about, and a signal finds its job's place in memory. `why` reads it fresh.

use std::collections::HashMap;
use std::sync::Arc;

use domain::limits::{SURROUNDINGS_LINE, SURROUNDINGS_WORKERS};
use domain::line::{Line, Waiting};
use domain::{Affinity, Backoff, JobId, Label, Name, QueueSettings, TenantId, Time};
use uuid::Uuid;

use crate::codec::from_json;
use crate::error::StoreError;
use crate::jobs::holds::queue_scope;
use crate::kept::Freshness;
use crate::lanes::{Lane, lane_at};
use crate::pools::left_alone;
use crate::queues::settings_at;
use crate::runtimes::lost;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::workers::{Worker, list};

#[derive(Clone, Debug)]
pub struct Surroundings {
    pub now: Time,
    /// Why the queue is paused, when it is.
    pub paused: Option<String>,
    pub settings: QueueSettings,
    /// Claims that hold a place in the queue, when it has a limit.
    pub places_taken: u64,
    /// What its rate leaves, when it has one.
    pub bucket: Option<Bucket>,
    pub workers: Vec<ServingWorker>,
    pub line: Line,
    pub running: Vec<RunningJob>,
    pub lanes: HashMap<i64, Lane>,
    /// By affinity, why nobody serves it: what would is on a node that is lost.
    pub lost: HashMap<Affinity, String>,
    /// By affinity, what its pool could not load and leaves alone for a while.
    pub left_alone: HashMap<Affinity, Backoff>,
}

/// The tokens of a queue with a rate: each job that begins takes one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    pub tokens: f64,
    pub rate_per_s: f64,
}

impl Bucket {
    fn is_used_up(self) -> bool {
        self.tokens < 1.0
    }

    /// How long a job waits for its token that so many others take one before.
    fn wait_ms(self, ahead: u64) -> i64 {
        let missing = ahead as f64 + 1.0 - self.tokens;
        (missing / self.rate_per_s * 1_000.0).ceil().max(0.0) as i64
    }
}

/// A live worker that serves the queue.
#[derive(Clone, Debug)]
pub struct ServingWorker {
    pub kinds: Option<Vec<Name>>,
    pub affinities: Option<Vec<Label>>,
    pub holds: Affinity,
    pub claims: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningJob {
    pub id: JobId,
    pub lane: i64,
    pub started_at: Time,
}

impl ServingWorker {
    fn new(worker: Worker, claims: i64) -> Self {
        let Worker { kinds, affinities, affinity, .. } = worker;
        Self { kinds, affinities, holds: affinity, claims: claims.max(0) as u64 }
    }

    pub fn serves(&self, kind: &Name, affinity: &Affinity) -> bool {
        let kind = self.kinds.as_ref().is_none_or(|kinds| kinds.contains(kind));
        let affinity = match (&self.affinities, affinity) {
            (Some(served), Some(affinity)) => served.contains(affinity),
            _ => true,
        };
        kind && affinity
    }
}

impl Surroundings {
    /// The queue's limit, in words, when it is reached: all places are taken, or its rate is used up.
    pub fn limit(&self) -> Option<String> {
        self.full().or_else(|| {
            let rate_per_s = self.used_up()?.rate_per_s;
            Some(format!("the queue's rate of {rate_per_s} jobs a second is used up"))
        })
    }

    /// Until when its rate holds back a job that so many are ahead of. When a place comes free nobody knows.
    pub fn limit_until(&self, ahead: u64) -> Option<Time> {
        let bucket = self.used_up().filter(|_| self.full().is_none())?;
        Some(self.now.plus_ms(bucket.wait_ms(ahead)))
    }

    fn full(&self) -> Option<String> {
        let limit = u64::from(self.settings.concurrency?);
        let taken = self.places_taken;
        (taken >= limit).then(|| format!("{taken} of {limit} jobs of the queue are running"))
    }

    fn used_up(&self) -> Option<Bucket> {
        self.bucket.filter(|bucket| bucket.is_used_up())
    }

    pub fn serving(&self, kind: &Name, affinity: &Affinity) -> impl Iterator<Item = &ServingWorker> {
        self.workers.iter().filter(move |worker| worker.serves(kind, affinity))
    }

    /// What the workers that serve such a job have loaded, each once.
    pub fn loaded(&self, kind: &Name, affinity: &Affinity) -> Vec<&str> {
        let mut loaded: Vec<&str> =
            self.serving(kind, affinity).filter_map(|worker| worker.holds.as_ref()).map(Label::as_str).collect();
        loaded.sort_unstable();
        loaded.dedup();
        loaded
    }
}

impl Store {
    /// What surrounds the jobs of a queue, at most a second old.
    pub async fn surroundings(
        &self,
        tenant: TenantId,
        queue: &Name,
    ) -> Result<(Arc<Surroundings>, Freshness), StoreError> {
        let (store, read) = (self.clone(), ReadSurroundings { tenant, queue: queue.clone() });
        self.kept_surroundings().get((tenant, queue.clone()), || async move { store.read(read).await }).await
    }
}

struct ReadSurroundings {
    tenant: TenantId,
    queue: Name,
}

impl Operation for ReadSurroundings {
    type Output = Surroundings;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Surroundings, StoreError> {
        read(tx, self.tenant, &self.queue).await
    }
}

const QUEUE: Sql = Sql::both(&["select settings, concurrency, per_key, rate_per_s, starvation_s,
         case when paused_at is not null then coalesce(paused_reason, 'no reason given') end
     from queues where tenant = $1 and name = $2"]);
const PLACES_TAKEN: Sql = Sql::both(&["select count(*) from holds where tenant = $1 and scope = $2"]);
const RATE: Sql = Sql::both(&["select tokens, at from rates where tenant = $1 and queue = $2"]);
const WORKERS: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at,
           (select coalesce(sum(c.remaining), 0) from claims c where c.worker = w.id)
       from workers w join service s on s.id = 1
       where w.tenant = $1 and w.dead_at is null limit $2"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at,
         (select coalesce(sum(c.remaining), 0)::bigint from claims c where c.worker = w.id)
     from workers w join service s on s.id = 1
     where w.tenant = $1 and w.dead_at is null limit $2",
);
// Lanes stay when their jobs are gone: those with work come first. On PostgreSQL that includes what runs.
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
// On PostgreSQL claimed jobs stay in the index until they end, so the oldest of a lane are those that run and those that
// come next. On SQLite they leave it, and what runs is found by its claims.
const OLDEST: Sql = Sql::new(
    &["select lane, id, run_at, worker, started_at from jobs
       where lane = $1 and due_at is null and parked is null and worker is null order by run_at, id limit $2"],
    "select j.lane, j.id, j.run_at, j.worker, j.started_at from unnest($1::bigint[]) as l(lane)
     cross join lateral (select * from jobs where jobs.lane = l.lane and due_at is null and parked is null
         order by run_at, id limit $2) j",
);
const CLAIMED: Sql = Sql::both(&["select jobs from claims where tenant = $1 limit $2"]);
const RUNNING: Sql = Sql::new(
    &["select lane, id, run_at, worker, started_at from jobs where id = $1 and worker is not null"],
    "select lane, id, run_at, worker, started_at from jobs where id = any($1::uuid[]) and worker is not null",
);
const QUEUED: Sql = Sql::new(
    &["select coalesce(sum(queued), 0) from (select queued from counters where tenant = $1 and queue = $2
           union all select queued from counter_deltas where tenant = $1 and queue = $2)"],
    "select coalesce(sum(queued), 0)::bigint from (select queued from counters where tenant = $1 and queue = $2
         union all select queued from counter_deltas where tenant = $1 and queue = $2) kept",
);

/// What surrounds the jobs of a queue at this moment, from a bounded number of rows.
pub(crate) async fn read(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<Surroundings, StoreError> {
    let key = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let (settings, paused) = match tx.query_opt(&QUEUE, &key).await? {
        Some(row) => (settings_at(&row, 0)?, row.opt_text(5)?),
        None => (QueueSettings::default(), None),
    };
    let places_taken = match settings.concurrency {
        Some(_) => {
            let scope = queue_scope(queue);
            let row = tx.query_opt(&PLACES_TAKEN, &[key[0], Param::Text(&scope)]).await?;
            row.map(|row| row.int(0)).transpose()?.unwrap_or(0) as u64
        }
        None => 0,
    };
    let bucket = bucket(tx, &key, settings.rate_per_s).await?;
    let rows = tx.query(&LANES, &key).await?;
    let lanes: HashMap<i64, Lane> =
        rows.iter().map(|row| Ok((row.int(0)?, lane_at(row, 1)?))).collect::<Result<_, StoreError>>()?;
    let mut workers = workers(tx, tenant, queue).await?;
    workers.extend(shared(tx, tenant, queue, &lanes).await?);
    let (line, running) = line(tx, &key, &lanes).await?;
    let lost = lost::behind(tx, tenant, queue, workers.len()).await?;
    // The slots of a pool name what they serve. A queue whose workers take whatever comes has none.
    let may_be_a_pools = workers.is_empty() || workers.iter().any(|worker| worker.affinities.is_some());
    let left_alone = if may_be_a_pools { left_alone::of_queue(tx, tenant, queue).await? } else { HashMap::new() };
    Ok(Surroundings {
        now: tx.now(),
        paused,
        settings,
        places_taken,
        bucket,
        workers,
        line,
        running,
        lanes,
        lost,
        left_alone,
    })
}

/// The bucket as a claim would find it now. One that nobody has taken from is full.
async fn bucket(tx: &mut Tx<'_>, key: &[Param<'_>], rate: Option<f64>) -> Result<Option<Bucket>, StoreError> {
    let Some(rate_per_s) = rate else { return Ok(None) };
    let full = rate_per_s.max(1.0);
    let tokens = match tx.query_opt(&RATE, key).await? {
        Some(row) => {
            let elapsed_s = (tx.now().micros() - row.time(1)?.micros()).max(0) as f64 / 1_000_000.0;
            (row.opt_real(0)?.unwrap_or(full) + elapsed_s * rate_per_s).min(full)
        }
        None => full,
    };
    Ok(Some(Bucket { tokens, rate_per_s }))
}

async fn workers(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<Vec<ServingWorker>, StoreError> {
    let params = [Param::Int(tenant.0), Param::Int(SURROUNDINGS_WORKERS as i64)];
    let mut serving = Vec::new();
    for row in tx.query(&WORKERS, &params).await? {
        let worker = Worker::read(&row)?;
        if worker.queues.contains(queue) && worker.is_alive(tx.now()) && !worker.draining {
            serving.push(ServingWorker::new(worker, row.int(15)?));
        }
    }
    Ok(serving)
}

/// The workers of the built-in tenant that serve the queue for this tenant. What they hold is told where the tenant has
/// jobs for it: anything else was loaded for others.
async fn shared(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    queue: &Name,
    lanes: &HashMap<i64, Lane>,
) -> Result<Vec<ServingWorker>, StoreError> {
    let all = list::serving(tx, tenant).await?.into_iter();
    let here = all.filter(|listed| listed.worker.queues.contains(queue));
    let mut shared: Vec<ServingWorker> = here.map(|listed| ServingWorker::new(listed.worker, listed.claims)).collect();
    for worker in &mut shared {
        let is_known = lanes.values().any(|lane| lane.affinity == worker.holds);
        worker.holds = worker.holds.take().filter(|_| is_known);
    }
    Ok(shared)
}

async fn line(
    tx: &mut Tx<'_>,
    key: &[Param<'_>],
    lanes: &HashMap<i64, Lane>,
) -> Result<(Line, Vec<RunningJob>), StoreError> {
    let per_lane = (SURROUNDINGS_LINE / lanes.len().max(1)).max(50);
    let mut ids: Vec<i64> = lanes.keys().copied().collect();
    ids.sort_unstable();
    let rows = tx.query_each(&OLDEST, &[Column::ints(ids)], &[Param::Int(per_lane as i64)]).await?;
    let claimed = if tx.is_postgres() { Vec::new() } else { claimed(tx, key[0]).await? };
    let mut waiting = Vec::with_capacity(rows.len());
    let mut running = Vec::new();
    let mut seen: HashMap<i64, (usize, Time)> = HashMap::new();
    for row in &rows {
        let (lane, id, run_at) = (row.int(0)?, row.job(1)?, row.time(2)?);
        let (count, newest) = seen.entry(lane).or_insert((0, run_at));
        *count += 1;
        *newest = run_at.max(*newest);
        match read_start(row)? {
            Some(started_at) => running.push(RunningJob { id, lane, started_at }),
            None => {
                let of = lanes.get(&lane).ok_or_else(|| StoreError::unexpected("a lane that was not asked for"))?;
                let (priority, affinity) = (of.priority, of.affinity.clone());
                waiting.push(Waiting { id, priority, run_at, affinity, lane });
            }
        }
    }
    for row in &claimed {
        let (lane, id) = (row.int(0)?, row.job(1)?);
        if let Some(started_at) = read_start(row)?.filter(|_| lanes.contains_key(&lane)) {
            running.push(RunningJob { id, lane, started_at });
        }
    }
    let mut line = Line::new(waiting);
    line.complete_until = seen.values().filter(|(count, _)| *count >= per_lane).map(|(_, newest)| *newest).min();
    line.queued = match line.complete_until {
        None => line.seen(),
        Some(_) => {
            let row = tx.query_opt(&QUEUED, key).await?;
            row.map(|row| row.int(0)).transpose()?.unwrap_or(0).max(line.seen() as i64) as u64
        }
    };
    Ok((line, running))
}

/// The jobs that a tenant's workers hold, as many as are looked at.
async fn claimed(tx: &mut Tx<'_>, tenant: Param<'_>) -> Result<Vec<Row>, StoreError> {
    let most = SURROUNDINGS_LINE;
    let rows = tx.query(&CLAIMED, &[tenant, Param::Int(most as i64)]).await?;
    let mut ids: Vec<JobId> = Vec::new();
    for row in &rows {
        ids.extend(from_json::<Vec<Uuid>>(&row.text(0)?)?.into_iter().map(JobId::new));
    }
    ids.truncate(most);
    tx.query_each(&RUNNING, &[Column::jobs(ids.iter().copied())], &[]).await
}

/// Since when the job runs, if it does.
fn read_start(row: &Row) -> Result<Option<Time>, StoreError> {
    Ok(match row.opt_uuid(3)? {
        Some(_) => row.opt_time(4)?,
        None => None,
    })
}

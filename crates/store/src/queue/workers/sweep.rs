//! Ends the claims of dead workers and of attempts past their timeout. The engine's lease sweep calls it. A row that
//! fails is quarantined, so that it does not block the others.

use domain::limits::{MAINTENANCE_ROWS, MAX_COUNTED_ROWS, OUTAGE_MS};
use domain::queue::job::{ClaimRef, Event};
use domain::{Epoch, JobError, JobId, WorkerId};
use uuid::Uuid;

use crate::db::codec::from_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::holds::Holder;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::queue::transition::{LiveJob, Transition};
use crate::queue::workers::attempt_timeouts::{self, ListTimedOut, TimeOutAttempt};
use crate::queue::workers::load;
use crate::store::Store;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub workers: usize,
    pub jobs: usize,
    pub timed_out: usize,
    pub quarantined: usize,
}

impl Store {
    /// Ends the claims of workers whose lease expired and of attempts past their timeout.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept { workers: self.write(MarkDead).await?, ..Swept::default() };
        for worker in self.read(ListDeadWithClaims).await? {
            match self.write(EndDeadClaims { worker, only: None, lanes: self.lanes().clone() }).await {
                Ok((jobs, effects)) => {
                    self.announce(&effects);
                    swept.jobs += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(_) => self.end_claims_one_by_one(worker, &mut swept).await?,
            }
        }
        for job in self.read(ListTimedOut).await? {
            match self.write(TimeOutAttempt { job, lanes: self.lanes().clone() }).await {
                Ok((timed_out, effects)) => {
                    self.announce(&effects);
                    swept.timed_out += usize::from(timed_out);
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => self.quarantine("sweep_leases", job.uuid(), &error, &mut swept).await?,
            }
        }
        Ok(swept)
    }

    /// Returns the number of quarantined rows, counted up to `MAX_COUNTED_ROWS`.
    pub async fn quarantined(&self) -> Result<i64, StoreError> {
        self.read(CountQuarantined).await
    }

    async fn end_claims_one_by_one(&self, worker: WorkerId, swept: &mut Swept) -> Result<(), StoreError> {
        for job in self.read(ListClaimedJobs { worker }).await? {
            match self.write(EndDeadClaims { worker, only: Some(job), lanes: self.lanes().clone() }).await {
                Ok((jobs, effects)) => {
                    self.announce(&effects);
                    swept.jobs += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => self.quarantine("sweep_leases", job.uuid(), &error, swept).await?,
            }
        }
        let effects = self.write(DropRevocations { worker, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(())
    }

    async fn quarantine(
        &self,
        task: &'static str,
        id: Uuid,
        error: &StoreError,
        swept: &mut Swept,
    ) -> Result<(), StoreError> {
        swept.quarantined += 1;
        self.write(QuarantineRow { task, id, error: error.to_string() }).await
    }
}

struct MarkDead;

// A lease runs from its renewal or from the end of the last outage, whichever is later. No lease expires during an
// outage that no service heartbeat has ended yet.
const EXPIRED: Sql = Sql::new(
    &["select w.id from workers w join service s on s.id = 1
       where w.dead_at is null and w.lease_until < $1 and s.since + w.lease_ms * 1000 < $1 and s.beat_at >= $3
       order by w.lease_until limit $2"],
    "select w.id from workers w join service s on s.id = 1
     where w.dead_at is null and w.lease_until < $1 and s.since + w.lease_ms * interval '1 millisecond' < $1
         and s.beat_at >= $3
     order by w.lease_until limit $2",
);
// The lease is checked again: a heartbeat may have renewed it since the scan.
const MARK: Sql =
    Sql::both(&["update workers set dead_at = $2 where id = $1 and dead_at is null and lease_until < $2"]);
const DROP_REVOCATIONS: Sql = Sql::both(&["delete from revocations where worker = $1 returning job, epoch"]);

impl Operation for MarkDead {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let now = Param::Time(tx.now());
        let min_beat_at = Param::Time(tx.now().plus_ms(-OUTAGE_MS));
        let mut marked = 0;
        for row in tx.query(&EXPIRED, &[now, Param::Int(MAINTENANCE_ROWS as i64), min_beat_at]).await? {
            marked += tx.execute(&MARK, &[Param::Uuid(row.uuid("id")?), now]).await? as usize;
        }
        Ok(marked)
    }
}

struct ListDeadWithClaims;

// A claim may name a worker whose row no longer exists: the claim raced with the worker's removal.
const DEAD_WITH_CLAIMS: Sql =
    Sql::both(&["select distinct c.worker from claims c left join workers w on w.id = c.worker
     where w.id is null or w.dead_at is not null
     union select r.worker from revocations r left join workers w on w.id = r.worker
     where w.id is null or w.dead_at is not null
     limit 1000"]);

impl Operation for ListDeadWithClaims {
    type Output = Vec<WorkerId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<WorkerId>, StoreError> {
        let rows = tx.query(&DEAD_WITH_CLAIMS, &[]).await?;
        rows.iter().map(|row| row.uuid("worker").map(WorkerId::new)).collect()
    }
}

struct ListClaimedJobs {
    worker: WorkerId,
}

impl Operation for ListClaimedJobs {
    type Output = Vec<JobId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        Ok(claimed_by(tx, self.worker).await?.into_iter().flat_map(|(_, jobs)| jobs).collect())
    }
}

const CLAIMS: Sql = Sql::both(&["select claim, jobs from claims where worker = $1 order by claim limit 1000"]);

async fn claimed_by(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Vec<(Uuid, Vec<JobId>)>, StoreError> {
    let rows = tx.query(&CLAIMS, &[Param::from(worker)]).await?;
    let read = |row: &crate::db::tx::Row| {
        let jobs: Vec<Uuid> = from_json(&row.text("jobs")?)?;
        Ok((row.uuid("claim")?, jobs.into_iter().map(JobId::new).collect()))
    };
    rows.iter().map(read).collect()
}

/// How a worker stopped. Decides how its claims end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// Unregistered. Its attempts do not count.
    Released,
    /// Its lease expired.
    Expired,
}

struct EndDeadClaims {
    worker: WorkerId,
    only: Option<JobId>,
    lanes: LaneCache,
}

impl Operation for EndDeadClaims {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (usize, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(usize, Effects), StoreError> {
        let mut effects = Effects::default();
        let mut counters = CounterDeltas::default();
        // A worker without a row was removed while a claim of its own was in flight.
        let is_removed = load(tx, &[self.worker]).await?.is_empty();
        let exit = if is_removed { WorkerExit::Released } else { WorkerExit::Expired };
        let jobs = match self.only {
            Some(job) => {
                let live = transition::load(tx, &[job]).await?.into_values();
                end_jobs(tx, &self.lanes, self.worker, live, exit, &mut counters, &mut effects).await?
            }
            None => end_claims(tx, &self.lanes, self.worker, exit, &mut counters, &mut effects).await?,
        };
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        Ok((jobs, effects))
    }
}

struct DropRevocations {
    worker: WorkerId,
    lanes: LaneCache,
}

impl Operation for DropRevocations {
    type Output = Effects;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Effects, StoreError> {
        let mut effects = Effects::default();
        drop_revocations(tx, &self.lanes, self.worker, &mut effects).await?;
        Ok(effects)
    }
}

const DELETE_CLAIM: Sql = Sql::both(&["delete from claims where claim = $1"]);

/// Ends all claims of a worker. The caller ensures that the worker is dead or leaving.
pub(crate) async fn end_claims(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    worker: WorkerId,
    exit: WorkerExit,
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<usize, StoreError> {
    let mut taken = 0;
    // Loop until no claim remains: after the worker's row is deleted, a remaining claim would count as a dead
    // worker's.
    loop {
        let claims = claimed_by(tx, worker).await?;
        if claims.is_empty() {
            break;
        }
        let jobs: Vec<JobId> = claims.iter().flat_map(|(_, jobs)| jobs.iter().copied()).collect();
        let live = transition::load(tx, &jobs).await?;
        taken += end_jobs(tx, lanes, worker, live.into_values(), exit, counters, effects).await?;
        for (claim, _) in claims {
            tx.execute(&DELETE_CLAIM, &[Param::Uuid(claim)]).await?;
        }
    }
    drop_revocations(tx, lanes, worker, effects).await?;
    Ok(taken)
}

/// Deletes the worker's revocations and releases the holds of the revoked claims.
async fn drop_revocations(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    worker: WorkerId,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let rows = tx.query(&DROP_REVOCATIONS, &[Param::from(worker)]).await?;
    let holder = |row: &crate::db::tx::Row| Ok::<Holder, StoreError>((row.job("job")?, Epoch(row.int("epoch")?)));
    let revoked: Vec<Holder> = rows.iter().map(holder).collect::<Result<_, _>>()?;
    transition::release_holds(tx, lanes, &revoked, effects).await
}

async fn end_jobs(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    worker: WorkerId,
    live: impl Iterator<Item = LiveJob>,
    exit: WorkerExit,
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<usize, StoreError> {
    let now = tx.now();
    let live: Vec<LiveJob> = live.filter(|job| job.worker == Some(worker)).collect();
    let of_lane = lanes.of(tx, &live.iter().map(|job| job.lane).collect::<Vec<_>>()).await?;
    let mut transitions = Vec::new();
    for before in live {
        let lane = &of_lane[&before.lane];
        let job = before.job(&lane.kind, &Default::default())?;
        let by = ClaimRef { worker, epoch: before.epoch };
        let (event, name, error) = match exit {
            WorkerExit::Released => (Event::Release { by }, "released", None),
            WorkerExit::Expired => (Event::Expire { by }, "expired", Some(JobError::expired())),
        };
        let after = job.apply(event, now).map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        transitions.push(Transition::new(before, after, name, error, None));
    }
    let taken = transitions.len();
    transition::write(tx, lanes, transitions, counters, effects).await?;
    Ok(taken)
}

struct CountQuarantined;

const QUARANTINED: Sql =
    Sql::both(&["select count(*) as quarantined from (select 1 from quarantine limit $1) counted"]);

impl Operation for CountQuarantined {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&QUARANTINED, &[Param::Int(MAX_COUNTED_ROWS as i64)]).await?;
        row.map(|row| row.int("quarantined")).transpose().map(Option::unwrap_or_default)
    }
}

struct QuarantineRow {
    task: &'static str,
    id: Uuid,
    error: String,
}

const QUARANTINE: Sql = Sql::both(&["insert into quarantine (task, id, error, since) values ($1, $2, $3, $4)
     on conflict (task, id) do update set error = excluded.error"]);

impl Operation for QuarantineRow {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [Param::Text(self.task), Param::Uuid(self.id), Param::Text(&self.error), Param::Time(tx.now())];
        tx.execute(&QUARANTINE, &params).await?;
        attempt_timeouts::clear(tx, self.id).await
    }
}

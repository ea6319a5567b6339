//! The dead give back what they held (X4, Q7): nobody's help is needed, and one bad row never stops the others.

use domain::job::{Event, Held};
use domain::limits::{COUNTED, MAINTENANCE_ROWS, OUTAGE_MS, TIME_OUT_GRACE_MS};
use domain::{Epoch, JobError, JobId, WorkerId};
use uuid::Uuid;

use crate::clock::dice;
use crate::codec::from_json;
use crate::counters::Changes;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::queues::drained;
use crate::jobs::holds::Holder;
use crate::jobs::transition::{self, LiveJob, Step};
use crate::lanes::LaneCache;
use crate::queues;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::workers::load;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub workers: usize,
    pub jobs: usize,
    pub timed_out: usize,
    pub quarantined: usize,
}

impl Store {
    /// Ends the claims of workers whose lease has passed, and of attempts past their time-out.
    pub async fn sweep(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept { workers: self.write(MarkDead).await?, ..Swept::default() };
        for worker in self.read(DeadWithClaims).await? {
            match self.write(Bury { worker, only: None, lanes: self.lanes().clone() }).await {
                Ok((jobs, effects)) => {
                    self.announce(&effects);
                    swept.jobs += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(_) => self.bury_one_by_one(worker, &mut swept).await?,
            }
        }
        for job in self.read(PastDeadline).await? {
            match self.write(TimeOut { job, lanes: self.lanes().clone() }).await {
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

    /// How many rows were set aside because nothing could be done with them; counted up to a bound.
    pub async fn quarantined(&self) -> Result<i64, StoreError> {
        self.read(Quarantined).await
    }

    async fn bury_one_by_one(&self, worker: WorkerId, swept: &mut Swept) -> Result<(), StoreError> {
        for job in self.read(ClaimedBy { worker }).await? {
            match self.write(Bury { worker, only: Some(job), lanes: self.lanes().clone() }).await {
                Ok((jobs, effects)) => {
                    self.announce(&effects);
                    swept.jobs += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => self.quarantine("sweep_leases", job.uuid(), &error, swept).await?,
            }
        }
        let effects = self.write(LetGo { worker, lanes: self.lanes().clone() }).await?;
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
        self.write(Quarantine { task, id, error: error.to_string() }).await
    }
}

struct MarkDead;

// A lease counts from its renewal or from the end of the last outage, whichever is later; and in one that no beat has
// ended yet, nobody is judged.
const EXPIRED: Sql = Sql::new(
    &["select w.id from workers w join service s on s.id = 1
       where w.dead_at is null and w.lease_until < $1 and s.since + w.lease_ms * 1000 < $1 and s.beat_at >= $3
       order by w.lease_until limit $2"],
    "select w.id from workers w join service s on s.id = 1
     where w.dead_at is null and w.lease_until < $1 and s.since + w.lease_ms * interval '1 millisecond' < $1
         and s.beat_at >= $3
     order by w.lease_until limit $2",
);
// The lease is looked at again: a heartbeat may have come in between.
const MARK: Sql =
    Sql::both(&["update workers set dead_at = $2 where id = $1 and dead_at is null and lease_until < $2"]);
const DROP_REVOCATIONS: Sql = Sql::both(&["delete from revocations where worker = $1 returning job, epoch"]);

impl Operation for MarkDead {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let now = Param::Time(tx.now());
        let served = Param::Time(tx.now().plus_ms(-OUTAGE_MS));
        let mut marked = 0;
        for row in tx.query(&EXPIRED, &[now, Param::Int(MAINTENANCE_ROWS as i64), served]).await? {
            marked += tx.execute(&MARK, &[Param::Uuid(row.uuid(0)?), now]).await? as usize;
        }
        Ok(marked)
    }
}

struct DeadWithClaims;

// A claim may name a worker that is gone altogether: it raced with the worker's end.
const DEAD_WITH_CLAIMS: Sql =
    Sql::both(&["select distinct c.worker from claims c left join workers w on w.id = c.worker
     where w.id is null or w.dead_at is not null
     union select r.worker from revocations r left join workers w on w.id = r.worker
     where w.id is null or w.dead_at is not null
     limit 1000"]);

impl Operation for DeadWithClaims {
    type Output = Vec<WorkerId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<WorkerId>, StoreError> {
        let rows = tx.query(&DEAD_WITH_CLAIMS, &[]).await?;
        rows.iter().map(|row| row.uuid(0).map(WorkerId::new)).collect()
    }
}

struct ClaimedBy {
    worker: WorkerId,
}

impl Operation for ClaimedBy {
    type Output = Vec<JobId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        Ok(claimed_by(tx, self.worker).await?.into_iter().flat_map(|(_, jobs)| jobs).collect())
    }
}

const CLAIMS: Sql = Sql::both(&["select claim, jobs from claims where worker = $1 order by claim limit 1000"]);

async fn claimed_by(tx: &mut Tx<'_>, worker: WorkerId) -> Result<Vec<(Uuid, Vec<JobId>)>, StoreError> {
    let rows = tx.query(&CLAIMS, &[Param::from(worker)]).await?;
    let read = |row: &crate::tx::Row| {
        let jobs: Vec<Uuid> = from_json(&row.text(1)?)?;
        Ok((row.uuid(0)?, jobs.into_iter().map(JobId::new).collect()))
    };
    rows.iter().map(read).collect()
}

/// Why a worker's jobs leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It said good-bye: no attempt is burnt.
    Released,
    /// It died or fell silent.
    Expired,
}

struct Bury {
    worker: WorkerId,
    only: Option<JobId>,
    lanes: LaneCache,
}

impl Operation for Bury {
    const WATCHES_TRIGGERS: bool = true;
    type Output = (usize, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(usize, Effects), StoreError> {
        let mut effects = Effects::default();
        let mut changes = Changes::default();
        // One that is gone altogether has said good-bye, while a claim of its own was under way.
        let left = load(tx, &[self.worker]).await?.is_empty();
        let fate = if left { Fate::Released } else { Fate::Expired };
        let jobs = match self.only {
            Some(job) => {
                let live = transition::load(tx, &[job]).await?.into_values();
                take_from(tx, &self.lanes, self.worker, live, fate, &mut changes, &mut effects).await?
            }
            None => take_claims_from(tx, &self.lanes, self.worker, fate, &mut changes, &mut effects).await?,
        };
        drained(tx, &self.lanes.triggers, &changes, &mut effects).await?;
        changes.write(tx).await?;
        Ok((jobs, effects))
    }
}

struct LetGo {
    worker: WorkerId,
    lanes: LaneCache,
}

impl Operation for LetGo {
    type Output = Effects;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Effects, StoreError> {
        let mut effects = Effects::default();
        let_go(tx, &self.lanes, self.worker, &mut effects).await?;
        Ok(effects)
    }
}

const FORGET_CLAIM: Sql = Sql::both(&["delete from claims where claim = $1"]);

/// Takes everything from a worker. The caller makes sure that it is dead or leaving.
pub(crate) async fn take_claims_from(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    worker: WorkerId,
    fate: Fate,
    changes: &mut Changes,
    effects: &mut Effects,
) -> Result<usize, StoreError> {
    let mut taken = 0;
    // All of them: what one that leaves kept would be taken for a dead worker's.
    loop {
        let claims = claimed_by(tx, worker).await?;
        if claims.is_empty() {
            break;
        }
        let jobs: Vec<JobId> = claims.iter().flat_map(|(_, jobs)| jobs.iter().copied()).collect();
        let live = transition::load(tx, &jobs).await?;
        taken += take_from(tx, lanes, worker, live.into_values(), fate, changes, effects).await?;
        for (claim, _) in claims {
            tx.execute(&FORGET_CLAIM, &[Param::Uuid(claim)]).await?;
        }
    }
    let_go(tx, lanes, worker, effects).await?;
    Ok(taken)
}

/// What the server took from the worker earlier is free now too.
async fn let_go(tx: &mut Tx<'_>, lanes: &LaneCache, worker: WorkerId, effects: &mut Effects) -> Result<(), StoreError> {
    let rows = tx.query(&DROP_REVOCATIONS, &[Param::from(worker)]).await?;
    let holder = |row: &crate::tx::Row| Ok::<Holder, StoreError>((row.job(0)?, Epoch(row.int(1)?)));
    let revoked: Vec<Holder> = rows.iter().map(holder).collect::<Result<_, _>>()?;
    transition::free(tx, lanes, &revoked, effects).await
}

async fn take_from(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    worker: WorkerId,
    live: impl Iterator<Item = LiveJob>,
    fate: Fate,
    changes: &mut Changes,
    effects: &mut Effects,
) -> Result<usize, StoreError> {
    let now = tx.now();
    let live: Vec<LiveJob> = live.filter(|job| job.worker == Some(worker)).collect();
    let of_lane = lanes.of(tx, &live.iter().map(|job| job.lane).collect::<Vec<_>>()).await?;
    let mut steps = Vec::new();
    for before in live {
        let lane = &of_lane[&before.lane];
        let job = before.job(&lane.kind, &Default::default())?;
        let by = Held { worker, epoch: before.epoch };
        let (event, name, error) = match fate {
            Fate::Released => (Event::Release { by }, "released", None),
            Fate::Expired => (Event::Expire { by }, "expired", Some(JobError::expired())),
        };
        let after = job.apply(event, now).map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        steps.push(Step::new(before, after, name, error, None));
    }
    let taken = steps.len();
    transition::apply(tx, lanes, steps, changes, effects).await?;
    Ok(taken)
}

struct PastDeadline;

// Whoever could not tell us in an outage of ours has a while to do so when it is over.
const PAST_DEADLINE: Sql = Sql::both(&["select id from jobs where deadline_at < $1
         and (select s.since < $3 and s.beat_at >= $4 from service s where s.id = 1)
     order by deadline_at, id limit $2"]);

impl Operation for PastDeadline {
    type Output = Vec<JobId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JobId>, StoreError> {
        let now = tx.now();
        let params = [
            Param::Time(now),
            Param::Int(MAINTENANCE_ROWS as i64),
            Param::Time(now.plus_ms(-TIME_OUT_GRACE_MS)),
            Param::Time(now.plus_ms(-OUTAGE_MS)),
        ];
        tx.query(&PAST_DEADLINE, &params).await?.iter().map(|row| row.job(0)).collect()
    }
}

struct TimeOut {
    job: JobId,
    lanes: LaneCache,
}

const DEADLINE: Sql = Sql::both(&["select deadline_at from jobs where id = $1"]);

impl Operation for TimeOut {
    const WATCHES_TRIGGERS: bool = true;
    type Output = (bool, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, Effects), StoreError> {
        let now = tx.now();
        let mut effects = Effects::default();
        let Some(before) = transition::load(tx, &[self.job]).await?.remove(&self.job) else {
            return Ok((false, effects));
        };
        let row = tx.query_opt(&DEADLINE, &[Param::from(self.job)]).await?;
        let deadline = row.map(|row| row.opt_time(0)).transpose()?.flatten();
        let (Some(worker), Some(started_at), Some(deadline)) = (before.worker, before.started_at, deadline) else {
            return Ok((false, effects));
        };
        if deadline >= now {
            return Ok((false, effects));
        }
        let lane = self.lanes.of(tx, &[before.lane]).await?.remove(&before.lane).expect("asked for");
        let settings = queues::settings(tx, before.tenant, &lane.queue).await?;
        let by = Held { worker, epoch: before.epoch };
        let timeout_s = deadline.ms_since(started_at) / 1_000;
        let event = Event::TimeOut { by, timeout_s, dice: dice() };
        let after = before.job(&lane.kind, &settings)?.apply(event, now);
        let after = after.map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        let error = Some(JobError::timeout(timeout_s));
        let step = Step { revoke: true, ..Step::new(before, after, "failed", error, None) };
        let mut changes = Changes::default();
        transition::apply(tx, &self.lanes, vec![step], &mut changes, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &changes, &mut effects).await?;
        changes.write(tx).await?;
        Ok((true, effects))
    }
}

struct Quarantined;

const QUARANTINED: Sql = Sql::both(&["select count(*) from (select 1 from quarantine limit $1) counted"]);

impl Operation for Quarantined {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&QUARANTINED, &[Param::Int(COUNTED as i64)]).await?;
        row.map(|row| row.int(0)).transpose().map(Option::unwrap_or_default)
    }
}

struct Quarantine {
    task: &'static str,
    id: Uuid,
    error: String,
}

const QUARANTINE: Sql = Sql::both(&["insert into quarantine (task, id, error, since) values ($1, $2, $3, $4)
     on conflict (task, id) do update set error = excluded.error"]);
const SET_ASIDE: Sql = Sql::both(&["update jobs set deadline_at = null where id = $1"]);

impl Operation for Quarantine {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [Param::Text(self.task), Param::Uuid(self.id), Param::Text(&self.error), Param::Time(tx.now())];
        tx.execute(&QUARANTINE, &params).await?;
        tx.execute(&SET_ASIDE, &params[1..2]).await.map(|_| ())
    }
}

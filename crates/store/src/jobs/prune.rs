//! Forgets ended jobs after their queue's retention, with their artifacts, together (Q14). History keeps the last word.

mod history;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use domain::limits::{IDEMPOTENCY_KEEP_S, MAINTENANCE_PARTS, MAINTENANCE_ROWS, RETENTION_S_DEFAULT};
use domain::{JobId, Name, TenantId, Time};
use uuid::Uuid;

use crate::codec::from_json;
use crate::error::StoreError;
use crate::jobs::history::end_event;
use crate::queues::settings_at;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::unread::pass_over;
use domain::JobState;
use history::{OldHistory, Place, Told};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub jobs: u64,
    pub history: u64,
    pub idempotency: u64,
    pub unique_keys: u64,
    pub workers: u64,
}

impl Pruned {
    /// Whether a round was full, so that more may be waiting.
    pub fn is_full(&self) -> bool {
        let Self { jobs, history, idempotency, unique_keys, workers } = *self;
        [jobs, history, idempotency, unique_keys, workers].iter().any(|rows| *rows as usize >= MAINTENANCE_ROWS)
    }
}

/// How far this node has looked for what is past its retention. What is kept meanwhile is not looked at again in every round:
/// a look goes on where the last one ended, and begins anew behind the end.
#[derive(Default)]
pub(crate) struct Looks {
    /// By lane, the last job that was looked at.
    lanes: Mutex<HashMap<i64, Uuid>>,
    history: Mutex<Option<Place>>,
}

impl Looks {
    fn lane(&self, lane: i64) -> Uuid {
        self.lanes.lock().expect("nobody panics with the map in hand").get(&lane).copied().unwrap_or_default()
    }

    fn lane_until(&self, lane: i64, until: Option<Uuid>) {
        let mut lanes = self.lanes.lock().expect("nobody panics with the map in hand");
        match until {
            Some(until) => lanes.insert(lane, until),
            None => lanes.remove(&lane),
        };
    }

    fn history(&self) -> Option<Place> {
        *self.history.lock().expect("nobody panics with it in hand")
    }

    fn history_until(&self, until: Option<Place>) {
        *self.history.lock().expect("nobody panics with it in hand") = until;
    }
}

impl Store {
    /// One bounded round; the caller comes again while there was something to do. A lane that cannot be pruned stops no
    /// other.
    pub async fn prune(&self, history_retention_s: i64) -> Result<Pruned, StoreError> {
        let jobs = self.prune_jobs(&self.read(Lanes).await?).await?;
        let (told, until) = self.read(OldHistory { history_retention_s, after: self.looks().history() }).await?;
        let rest = self.write(PruneRest { history_retention_s, told }).await?;
        self.looks().history_until(until);
        Ok(Pruned { jobs: jobs as u64, ..rest })
    }

    async fn prune_jobs(&self, mut lanes: &[LaneRetention]) -> Result<usize, StoreError> {
        let (mut pruned, mut at_once) = (0, MAINTENANCE_ROWS);
        while pruned < MAINTENANCE_ROWS && !lanes.is_empty() {
            let some = &lanes[..at_once.min(lanes.len())];
            match self.prune_lanes(some, MAINTENANCE_ROWS - pruned).await {
                Ok((looked_at, jobs)) => {
                    lanes = &lanes[looked_at..];
                    pruned += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                // Which of them it was shows when each is on its own.
                Err(_) if some.len() > 1 => at_once = 1,
                Err(error) => {
                    tracing::warn!(lane = some[0].lane, %error, "the ended jobs of a lane could not be pruned");
                    lanes = &lanes[1..];
                }
            }
        }
        Ok(pruned)
    }

    /// Prunes the first of these lanes, up to so many jobs. Gives how many lanes it has looked at, and how many jobs went.
    async fn prune_lanes(&self, lanes: &[LaneRetention], room: usize) -> Result<(usize, usize), StoreError> {
        let lanes = lanes.iter().map(|lane| (lane.clone(), self.looks().lane(lane.lane))).collect();
        // Where it holds up nobody who writes: there may be much to pass over.
        let mut looked = self.read(Look { lanes, room }).await?;
        let reached: Vec<(i64, _)> = looked.iter().map(|looked| (looked.lane.lane, looked.until)).collect();
        looked.retain(|looked| !looked.old.is_empty());
        let jobs = if looked.is_empty() { 0 } else { self.write(PruneJobs { looked }).await? };
        // What could not be pruned is met again at the next round.
        for (lane, until) in &reached {
            self.looks().lane_until(*lane, *until);
        }
        Ok((reached.len(), jobs))
    }
}

#[derive(Clone, Debug)]
struct LaneRetention {
    lane: i64,
    tenant: TenantId,
    queue: Name,
    retention_s: i64,
    /// Of its ended jobs, the one that was made first.
    first: Uuid,
}

struct Lanes;

// The wall between tenants keeps PostgreSQL from using an index for what a sub-select gives: nothing is joined by it.
const LANES: Sql =
    Sql::both(&["select lane, tenant, queue, settings, concurrency, per_key, rate_per_s, starvation_s, first
     from (
         select l.lane, l.tenant, l.queue, q.settings, q.concurrency, q.per_key, q.rate_per_s, q.starvation_s,
             (select o.id from ended o where o.lane = l.lane order by o.id limit 1) as first
         from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue) heads
     where first is not null order by lane"]);

impl Operation for Lanes {
    type Output = Vec<LaneRetention>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneRetention>, StoreError> {
        let rows = tx.query(&LANES, &[]).await?;
        let now = tx.now();
        let read = |row: &Row| {
            let lane = LaneRetention::read(row);
            lane.inspect_err(|error| tracing::warn!(%error, "a lane cannot be read and is not pruned")).ok()
        };
        let has_old = |lane: &LaneRetention| lane.first <= lane.newest(now);
        Ok(rows.iter().filter_map(read).filter(has_old).collect())
    }
}

impl LaneRetention {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            lane: row.int(0)?,
            tenant: TenantId(row.int(1)?),
            queue: Name::stored(&row.text(2)?),
            retention_s: settings_at(row, 3)?.retention_s(),
            first: row.uuid(8)?,
        })
    }

    fn cut(&self, now: Time) -> Time {
        now.plus_s(-self.retention_s)
    }

    /// Ids carry the time of creation: what was created after the cut cannot have ended before it.
    fn newest(&self, now: Time) -> Uuid {
        let millis = self.cut(now).millis().max(0) as u64;
        uuid::Builder::from_unix_timestamp_millis(millis, &[0xff; 10]).into_uuid()
    }
}

struct Look {
    /// Each with the job behind which the look begins.
    lanes: Vec<(LaneRetention, Uuid)>,
    room: usize,
}

/// What was found in a lane.
struct Looked {
    lane: LaneRetention,
    old: Vec<OldJob>,
    /// How far the look got; nothing when it came to the end.
    until: Option<Uuid>,
}

// What the files of a batch are still to be written from stays until they are.
const OLD: Sql =
    Sql::both(&["select id, tenant, state, epoch, attempt, worker, actor, error_code, created_at, started_at,
         finished_at, subject, process, tags, principal, triggered_by, finished_at < $3 and (run is null or not exists (
             select 1 from openai_batches b where b.id = ended.run and b.ended_at is null))
     from ended where lane = $1 and id < $2 and id > $5 order by id limit $4"]);
// Another node may be at the same ones, and a caller may be putting an artifact to one of them.
const HOLD: Sql = Sql::new(
    &["select e.id from rarray($1) n cross join ended e where e.id = n.value"],
    "select id from ended where id = any($1::uuid[]) for update skip locked",
);
const KEEP: Sql = Sql::new(
    &["insert into history (job, epoch, event, attempt, worker, actor, cause, enqueued_at, started_at, at, subject,
           process, principal, triggered_by, tenant, lane)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) on conflict do nothing"],
    "insert into history (job, epoch, event, attempt, worker, actor, cause, enqueued_at, started_at, at, subject,
         process, principal, triggered_by, tenant, lane)
     select n.* from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::uuid[], $6::text[], $7::text[],
         $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::text[], $14::text[],
         $15::bigint[], $16::bigint[]) n
     on conflict do nothing",
);
const DELETE: Sql = Sql::new(
    &[
        "insert into blob_garbage (location, since)
         select location, $2 from artifacts where job = $1 and location is not null on conflict do nothing",
        "delete from artifacts where job = $1",
        "delete from signals where job = $1",
        "delete from ended where id = $1",
    ],
    "with garbage as (
         insert into blob_garbage (location, since)
         select location, $2 from artifacts where job = any($1::uuid[]) and location is not null on conflict do nothing),
     no_artifacts as (delete from artifacts where job = any($1::uuid[])),
     no_signals as (delete from signals where job = any($1::uuid[]))
     delete from ended where id = any($1::uuid[])",
);
const UNTAG: Sql = Sql::new(
    &["delete from job_tags where tenant = $3 and tag = $1 and job = $2"],
    "delete from job_tags t using unnest($1::text[], $2::uuid[], $3::bigint[]) as n(tag, job, tenant)
     where t.tenant = n.tenant and t.tag = n.tag and t.job = n.job",
);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

struct OldJob {
    id: JobId,
    event: &'static str,
    epoch: i64,
    attempt: i64,
    worker: Option<Uuid>,
    actor: Option<String>,
    cause: Option<String>,
    created_at: Time,
    started_at: Option<Time>,
    finished_at: Time,
    subject: Option<String>,
    process: Option<String>,
    tags: Vec<String>,
    principal: String,
    triggered_by: Option<String>,
}

impl Operation for Look {
    type Output = Vec<Looked>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Looked>, StoreError> {
        let (mut room, mut parts) = (self.room, MAINTENANCE_PARTS);
        let mut looked = Vec::new();
        for (lane, after) in &self.lanes {
            looked.push(lane.look(tx, *after, &mut room, &mut parts).await?);
            if room == 0 || parts == 0 {
                break;
            }
        }
        Ok(looked)
    }
}

impl LaneRetention {
    /// Those that were made long ago may have ended only now: they are passed over, so many parts at most.
    async fn look(
        &self,
        tx: &mut Tx<'_>,
        mut after: Uuid,
        room: &mut usize,
        parts: &mut usize,
    ) -> Result<Looked, StoreError> {
        let (now, mut old) = (tx.now(), Vec::new());
        let looked = |old, until| Looked { lane: self.clone(), old, until };
        loop {
            let params = [
                Param::Int(self.lane),
                Param::Uuid(self.newest(now)),
                Param::Time(self.cut(now)),
                Param::Int(MAINTENANCE_ROWS as i64),
                Param::Uuid(after),
            ];
            let rows = tx.query(&OLD, &params).await?;
            for row in &rows {
                if *room == 0 {
                    return Ok(looked(old, Some(after)));
                }
                after = row.uuid(0)?;
                if row.bool(16)? {
                    old.extend(pass_over(OldJob::read(row), || format!("ended job {after}")));
                    *room -= 1;
                }
            }
            if rows.len() < MAINTENANCE_ROWS {
                return Ok(looked(old, None));
            }
            *parts -= 1;
            if *room == 0 || *parts == 0 {
                return Ok(looked(old, Some(after)));
            }
        }
    }
}

struct PruneJobs {
    /// What was found a moment ago.
    looked: Vec<Looked>,
}

impl Operation for PruneJobs {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let now = tx.now();
        let found = self.looked.iter().flat_map(|looked| looked.old.iter().map(move |job| (&looked.lane, job)));
        let mut old: Vec<(&LaneRetention, &OldJob)> = found.collect();
        let ids: Vec<Uuid> = old.iter().map(|(_, job)| job.id.uuid()).collect();
        let held = tx.query_listed(&HOLD, &ids, &[]).await?;
        let held = held.iter().map(|row| row.job(0)).collect::<Result<HashSet<_>, _>>()?;
        old.retain(|(_, job)| held.contains(&job.id));
        keep_the_last_word(tx, &old).await?;
        let tagged: Vec<(&str, JobId, TenantId)> = old
            .iter()
            .flat_map(|(lane, job)| job.tags.iter().map(move |tag| (tag.as_str(), job.id, lane.tenant)))
            .collect();
        let tags = [
            Column::texts(tagged.iter().map(|(tag, ..)| *tag)),
            Column::jobs(tagged.iter().map(|(_, job, _)| *job)),
            Column::ints(tagged.iter().map(|(.., tenant)| tenant.0)),
        ];
        tx.execute_each(&UNTAG, &tags, &[]).await?;
        tx.execute_each(&DELETE, &[Column::jobs(old.iter().map(|(_, job)| job.id))], &[Param::Time(now)]).await?;
        let mut of_queues: BTreeMap<(TenantId, &Name, i64), i64> = BTreeMap::new();
        for (lane, _) in &old {
            *of_queues.entry((lane.tenant, &lane.queue, lane.retention_s)).or_default() += 1;
        }
        for ((_, queue, retention_s), count) in of_queues {
            let why = format!("jobs of queue {queue} are kept {retention_s} s after they end");
            tx.execute(&LOG, &[Param::Time(now), Param::Text("jobs"), Param::Int(count), Param::Text(&why)]).await?;
        }
        Ok(old.len())
    }
}

async fn keep_the_last_word(tx: &mut Tx<'_>, old: &[(&LaneRetention, &OldJob)]) -> Result<(), StoreError> {
    let of = || old.iter().map(|(_, job)| *job);
    let columns = [
        Column::jobs(of().map(|job| job.id)),
        Column::ints(of().map(|job| job.epoch)),
        Column::texts(of().map(|job| job.event)),
        Column::ints(of().map(|job| job.attempt)),
        Column::Uuid(of().map(|job| job.worker).collect()),
        Column::Text(of().map(|job| job.actor.as_deref()).collect()),
        Column::Text(of().map(|job| job.cause.as_deref()).collect()),
        Column::Time(of().map(|job| Some(job.created_at)).collect()),
        Column::Time(of().map(|job| job.started_at).collect()),
        Column::Time(of().map(|job| Some(job.finished_at)).collect()),
        Column::Text(of().map(|job| job.subject.as_deref()).collect()),
        Column::Text(of().map(|job| job.process.as_deref()).collect()),
        Column::texts(of().map(|job| job.principal.as_str())),
        Column::Text(of().map(|job| job.triggered_by.as_deref()).collect()),
        Column::ints(old.iter().map(|(lane, _)| lane.tenant.0)),
        Column::ints(old.iter().map(|(lane, _)| lane.lane)),
    ];
    tx.execute_each(&KEEP, &columns, &[]).await.map(|_| ())
}

impl OldJob {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let state = JobState::parse(&row.text(2)?).ok_or_else(|| StoreError::unexpected("an ended job's state"))?;
        let tags: Option<Vec<String>> = row.opt_text(13)?.map(|text| from_json(&text)).transpose()?;
        Ok(Self {
            id: row.job(0)?,
            event: end_event(state),
            epoch: row.int(3)?,
            attempt: row.int(4)?,
            worker: row.opt_uuid(5)?,
            actor: row.opt_text(6)?,
            cause: row.opt_text(7)?,
            created_at: row.time(8)?,
            started_at: row.opt_time(9)?,
            finished_at: row.time(10)?,
            subject: row.opt_text(11)?,
            process: row.opt_text(12)?,
            tags: tags.unwrap_or_default(),
            principal: row.text(14)?,
            triggered_by: row.opt_text(15)?,
        })
    }
}

struct PruneRest {
    history_retention_s: i64,
    /// Of jobs that are gone.
    told: Vec<Told>,
}

const FORGET: Sql = Sql::new(
    &["delete from history where job = $1 and epoch = $2 and event = $3"],
    "delete from history h using unnest($1::uuid[], $2::bigint[], $3::text[]) as n(job, epoch, event)
     where h.job = n.job and h.epoch = n.epoch and h.event = n.event",
);
// Asked twice: a key may be taken anew while we wait for its row.
const OLD_KEYS: Sql = Sql::both(&["delete from idempotency where created_at <= $1 and (tenant, key) in (
         select tenant, key from idempotency where created_at <= $1 order by created_at limit $2)"]);
const OLD_UNIQUE: Sql = Sql::both(&["delete from unique_keys where until <= $1 and (tenant, queue, key) in (
         select tenant, queue, key from unique_keys where until <= $1 order by until limit $2)"]);
// The dead are kept for a day, so that a late word of theirs is told apart from a stranger's.
const OLD_WORKERS: Sql = Sql::both(&["delete from workers where id in (
         select id from workers where dead_at < $1 order by dead_at, id limit $2)"]);
const OLD_LOG: Sql = Sql::both(&["delete from prunings where id in (
         select id from prunings where at < $1 order by at limit $2)"]);

impl Operation for PruneRest {
    type Output = Pruned;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Pruned, StoreError> {
        let now = tx.now();
        let rows = Param::Int(MAINTENANCE_ROWS as i64);
        let told = [
            Column::jobs(self.told.iter().map(|(job, ..)| *job)),
            Column::ints(self.told.iter().map(|(_, epoch, _)| *epoch)),
            Column::texts(self.told.iter().map(|(.., event)| event.as_str())),
        ];
        let history = tx.execute_each(&FORGET, &told, &[]).await?;
        let keys = tx.execute(&OLD_KEYS, &[Param::Time(now.plus_s(-IDEMPOTENCY_KEEP_S)), rows]).await?;
        let unique_keys = tx.execute(&OLD_UNIQUE, &[Param::Time(now), rows]).await?;
        let workers = tx.execute(&OLD_WORKERS, &[Param::Time(now.plus_s(-86_400)), rows]).await?;
        tx.execute(&OLD_LOG, &[Param::Time(now.plus_s(-RETENTION_S_DEFAULT)), rows]).await?;
        let kinds = [("history", history, self.history_retention_s), ("idempotency", keys, IDEMPOTENCY_KEEP_S)];
        for (kind, count, kept_s) in kinds {
            if count > 0 {
                let why = format!("{kind} is kept {kept_s} s");
                let params = [Param::Time(now), Param::Text(kind), Param::Int(count as i64), Param::Text(&why)];
                tx.execute(&LOG, &params).await?;
            }
        }
        Ok(Pruned { jobs: 0, history, idempotency: keys, unique_keys, workers })
    }
}

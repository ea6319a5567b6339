//! Forgets ended jobs after their queue's retention, with their artifacts, together (Q14). History keeps the last word.

use std::collections::HashSet;

use domain::limits::{IDEMPOTENCY_KEEP_S, MAINTENANCE_ROWS, RETENTION_S_DEFAULT, TIMELINE_RETENTION_S};
use domain::{JobId, Name, TenantId, Time};
use uuid::Uuid;

use crate::codec::from_json;
use crate::error::StoreError;
use crate::jobs::history::end_event;
use crate::queues::settings_at;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};
use domain::JobState;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub jobs: u64,
    pub history: u64,
    pub idempotency: u64,
    pub unique_keys: u64,
    pub timeline: u64,
    pub workers: u64,
}

impl Pruned {
    /// Whether a round was full, so that more may be waiting.
    pub fn is_full(&self) -> bool {
        let Self { jobs, history, idempotency, unique_keys, timeline, workers } = *self;
        [jobs, history, idempotency, unique_keys, timeline, workers]
            .iter()
            .any(|rows| *rows as usize >= MAINTENANCE_ROWS)
    }
}

impl Store {
    /// One bounded round; the caller comes again while there was something to do. A lane that cannot be pruned stops no
    /// other.
    pub async fn prune(&self, history_retention_s: i64) -> Result<Pruned, StoreError> {
        let mut pruned = Pruned::default();
        for lane in self.read(Lanes).await? {
            let id = lane.lane;
            match self.write(PruneLane { lane }).await {
                Ok(jobs) => pruned.jobs += jobs,
                Err(error) if error.is_unavailable() => return Err(error),
                Err(error) => tracing::warn!(lane = id, %error, "the ended jobs of a lane could not be pruned"),
            }
            if pruned.jobs as usize >= MAINTENANCE_ROWS {
                break;
            }
        }
        let told = self.read(OldHistory { history_retention_s }).await?;
        let rest = self.write(PruneRest { history_retention_s, told }).await?;
        Ok(Pruned { jobs: pruned.jobs, ..rest })
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

const LANES: Sql = Sql::both(&["select l.lane, l.tenant, l.queue, q.settings, q.concurrency, q.per_key, q.rate_per_s,
         q.starvation_s, e.id
     from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
         join ended e on e.id = (select o.id from ended o where o.lane = l.lane order by o.id limit 1)
     order by l.lane"]);

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

struct PruneLane {
    lane: LaneRetention,
}

/// Parts of a lane that one round looks through: those that were made long ago may have ended only now.
const PARTS: usize = 20;

// What the files of a batch are still to be written from stays until they are.
const OLD: Sql =
    Sql::both(&["select id, tenant, state, epoch, attempt, worker, actor, error_code, created_at, started_at,
         finished_at, subject, process, tags, principal, triggered_by, finished_at < $3 and (run is null or not exists (
             select 1 from openai_batches b where b.id = ended.run and b.ended_at is null))
     from ended where lane = $1 and id < $2 and id > $5 order by id limit $4"]);
// Another node may be at the same ones, and a caller may be putting an artifact to one of them.
const HOLD: Sql = Sql::new(
    &["select value from rarray($1)"],
    "select id from ended where id = any($1::uuid[]) for update skip locked",
);
const KEEP: Sql = Sql::new(
    &["insert into history (job, epoch, event, attempt, worker, actor, cause, enqueued_at, started_at, at, subject,
           process, principal, triggered_by, tenant, lane)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16) on conflict do nothing"],
    "insert into history (job, epoch, event, attempt, worker, actor, cause, enqueued_at, started_at, at, subject,
         process, principal, triggered_by, tenant, lane)
     select n.*, $15, $16 from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::uuid[], $6::text[],
         $7::text[], $8::timestamptz[], $9::timestamptz[], $10::timestamptz[], $11::text[], $12::text[], $13::text[],
         $14::text[]) n
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
    "delete from job_tags t using unnest($1::text[], $2::uuid[]) as n(tag, job)
     where t.tenant = $3 and t.tag = n.tag and t.job = n.job",
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

impl Operation for PruneLane {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let old = self.old(tx).await?;
        if old.is_empty() {
            return Ok(0);
        }
        self.keep_the_last_word(tx, &old).await?;
        let tagged: Vec<(&str, JobId)> =
            old.iter().flat_map(|job| job.tags.iter().map(|tag| (tag.as_str(), job.id))).collect();
        let tags =
            [Column::texts(tagged.iter().map(|(tag, _)| *tag)), Column::jobs(tagged.iter().map(|(_, job)| *job))];
        tx.execute_each(&UNTAG, &tags, &[Param::Int(self.lane.tenant.0)]).await?;
        tx.execute_each(&DELETE, &[Column::jobs(old.iter().map(|job| job.id))], &[Param::Time(now)]).await?;
        let why = format!("jobs of queue {} are kept {} s after they end", self.lane.queue, self.lane.retention_s);
        let count = old.len() as i64;
        tx.execute(&LOG, &[Param::Time(now), Param::Text("jobs"), Param::Int(count), Param::Text(&why)]).await?;
        Ok(old.len() as u64)
    }
}

impl PruneLane {
    /// The first part of the lane that has some, for nobody else's hands.
    async fn old(&self, tx: &mut Tx<'_>) -> Result<Vec<OldJob>, StoreError> {
        let (now, mut after) = (tx.now(), Uuid::nil());
        for _ in 0..PARTS {
            let params = [
                Param::Int(self.lane.lane),
                Param::Uuid(self.lane.newest(now)),
                Param::Time(self.lane.cut(now)),
                Param::Int(MAINTENANCE_ROWS as i64),
                Param::Uuid(after),
            ];
            let rows = tx.query(&OLD, &params).await?;
            let mut old = Vec::new();
            for row in &rows {
                after = row.uuid(0)?;
                if row.bool(16)? {
                    old.push(OldJob::read(row)?);
                }
            }
            if !old.is_empty() {
                let ids: Vec<Uuid> = old.iter().map(|job| job.id.uuid()).collect();
                let held = tx.query_listed(&HOLD, &ids, &[]).await?;
                let held = held.iter().map(|row| row.job(0)).collect::<Result<HashSet<_>, _>>()?;
                old.retain(|job| held.contains(&job.id));
            }
            if !old.is_empty() || rows.len() < MAINTENANCE_ROWS {
                return Ok(old);
            }
        }
        Ok(Vec::new())
    }

    async fn keep_the_last_word(&self, tx: &mut Tx<'_>, old: &[OldJob]) -> Result<(), StoreError> {
        let of = || old.iter();
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
        ];
        let params = [Param::Int(self.lane.tenant.0), Param::Int(self.lane.lane)];
        tx.execute_each(&KEEP, &columns, &params).await.map(|_| ())
    }
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

struct OldHistory {
    history_retention_s: i64,
}

// What a job that is still kept went through is kept with it. There may be much of it to pass over, which nobody who writes
// should wait for.
const OLD_HISTORY: Sql = Sql::both(&["select h.job, h.epoch, h.event from history h where h.at < $1
         and not exists (select 1 from jobs j where j.id = h.job)
         and not exists (select 1 from ended e where e.id = h.job)
     order by h.at limit $2"]);

impl Operation for OldHistory {
    type Output = Vec<(JobId, i64, String)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let before = tx.now().plus_s(-self.history_retention_s);
        let rows = tx.query(&OLD_HISTORY, &[Param::Time(before), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        rows.iter().map(|row| Ok((row.job(0)?, row.int(1)?, row.text(2)?))).collect()
    }
}

struct PruneRest {
    history_retention_s: i64,
    /// Of jobs that are gone.
    told: Vec<(JobId, i64, String)>,
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
const OLD_TIMELINE: Sql = Sql::both(&["delete from timeline where id in (
         select id from timeline where at < $1 order by at, id limit $2)"]);
const OLD_LOG: Sql = Sql::both(&["delete from prunings where at < $1"]);

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
        tx.execute(&OLD_LOG, &[Param::Time(now.plus_s(-RETENTION_S_DEFAULT))]).await?;
        let timeline = tx.execute(&OLD_TIMELINE, &[Param::Time(now.plus_s(-TIMELINE_RETENTION_S)), rows]).await?;
        for (kind, count, kept_s) in [
            ("history", history, self.history_retention_s),
            ("timeline", timeline, TIMELINE_RETENTION_S),
            ("idempotency", keys, IDEMPOTENCY_KEEP_S),
        ] {
            if count > 0 {
                let why = format!("{kind} is kept {kept_s} s");
                let params = [Param::Time(now), Param::Text(kind), Param::Int(count as i64), Param::Text(&why)];
                tx.execute(&LOG, &params).await?;
            }
        }
        Ok(Pruned { jobs: 0, history, idempotency: keys, unique_keys, timeline, workers })
    }
}

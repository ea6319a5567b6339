//! Deletes ended jobs past their queue's retention together with their artifacts, and other rows past their retention.
//! The engine's prune task calls it. A job's last event stays in `history`.

mod history;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;

use domain::limits::{
    IDEMPOTENCY_RETENTION_S, MAINTENANCE_BATCHES, MAINTENANCE_ROWS, QUEUE_PRUNE_ROUNDS, RETENTION_DEFAULT_S,
};
use domain::{JobId, Name, TenantId, Time};
use uuid::Uuid;

use crate::db::codec::from_json;
use crate::db::skip_unreadable::skip_unreadable;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::history::end_event;
use crate::queue::queues::read_settings;
use crate::store::Store;
use domain::JobState;
use history::{HistoryCursor, HistoryKey, OldHistory};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub jobs: u64,
    pub history: u64,
    pub idempotency: u64,
    pub unique_keys: u64,
    pub workers: u64,
}

impl Pruned {
    /// True if some kind of row reached the batch limit, so that more rows may be due.
    pub fn is_full(&self) -> bool {
        let Self { jobs, history, idempotency, unique_keys, workers } = *self;
        [jobs, history, idempotency, unique_keys, workers].iter().any(|rows| *rows as usize >= MAINTENANCE_ROWS)
    }
}

/// Where the next scan of this node continues. Rows that are still retained are not scanned in every round: a scan
/// continues where the last one stopped, and restarts after the end.
#[derive(Default)]
pub(crate) struct PruneCursors {
    /// The last scanned job of each lane.
    lanes: Mutex<HashMap<i64, Uuid>>,
    history: Mutex<Option<HistoryCursor>>,
}

impl PruneCursors {
    fn lane(&self, lane: i64) -> Uuid {
        self.lanes.lock().expect("lock poisoned").get(&lane).copied().unwrap_or_default()
    }

    fn set_lane(&self, lane: i64, until: Option<Uuid>) {
        let mut lanes = self.lanes.lock().expect("lock poisoned");
        match until {
            Some(until) => lanes.insert(lane, until),
            None => lanes.remove(&lane),
        };
    }

    fn history(&self) -> Option<HistoryCursor> {
        *self.history.lock().expect("lock poisoned")
    }

    fn set_history(&self, until: Option<HistoryCursor>) {
        *self.history.lock().expect("lock poisoned") = until;
    }
}

impl Store {
    /// Runs one bounded round. The caller repeats while [`Pruned::is_full`] is true. A lane that cannot be pruned does
    /// not block the others.
    pub async fn prune(&self, history_retention_s: i64) -> Result<Pruned, StoreError> {
        let jobs = self.prune_jobs(&self.read(ListLanes { of: None, older_than_s: None }).await?).await?;
        let (rows, until) =
            self.read(OldHistory { history_retention_s, after: self.prune_cursors().history() }).await?;
        let rest = self.write(PruneRest { history_retention_s, history: rows }).await?;
        self.prune_cursors().set_history(until);
        Ok(Pruned { jobs: jobs as u64, ..rest })
    }

    /// Deletes the ended jobs of one queue that ended at least `older_than_s` ago, or are past the queue's retention if
    /// it is `None`. Runs at most `QUEUE_PRUNE_ROUNDS` rounds. Returns the number of jobs, and true if there may be more.
    pub async fn prune_queue(
        &self,
        tenant: TenantId,
        queue: Name,
        older_than_s: Option<i64>,
    ) -> Result<(usize, bool), StoreError> {
        let lanes = self.read(ListLanes { of: Some((tenant, queue)), older_than_s }).await?;
        let (mut pruned, mut rounds) = (0, 0);
        for lane in lanes {
            let mut after = Uuid::nil();
            loop {
                if rounds == QUEUE_PRUNE_ROUNDS {
                    return Ok((pruned, true));
                }
                rounds += 1;
                let find = FindExpiredJobs { lanes: vec![(lane.clone(), after)], capacity: MAINTENANCE_ROWS };
                let Some(scan) = self.read(find).await?.pop() else { break };
                let until = scan.until;
                if !scan.expired.is_empty() {
                    pruned += self.write(PruneJobs { scans: vec![scan] }).await?;
                }
                match until {
                    Some(until) => after = until,
                    None => break,
                }
            }
        }
        Ok((pruned, false))
    }

    async fn prune_jobs(&self, mut lanes: &[LaneRetention]) -> Result<usize, StoreError> {
        let (mut pruned, mut batch_lanes) = (0, MAINTENANCE_ROWS);
        while pruned < MAINTENANCE_ROWS && !lanes.is_empty() {
            let batch = &lanes[..batch_lanes.min(lanes.len())];
            match self.prune_lanes(batch, MAINTENANCE_ROWS - pruned).await {
                Ok((scanned, jobs)) => {
                    lanes = &lanes[scanned..];
                    pruned += jobs;
                }
                Err(error) if error.is_unavailable() => return Err(error),
                // One lane of the batch failed. Continue lane by lane to find it.
                Err(_) if batch.len() > 1 => batch_lanes = 1,
                Err(error) => {
                    tracing::warn!(lane = batch[0].lane, %error, "cannot prune the ended jobs of a lane; skipping it");
                    lanes = &lanes[1..];
                }
            }
        }
        Ok(pruned)
    }

    /// Prunes up to `capacity` jobs from the first of these lanes. Returns how many lanes it scanned and how many jobs
    /// it deleted.
    async fn prune_lanes(&self, lanes: &[LaneRetention], capacity: usize) -> Result<(usize, usize), StoreError> {
        let lanes = lanes.iter().map(|lane| (lane.clone(), self.prune_cursors().lane(lane.lane))).collect();
        // Outside the write transaction, so that a long scan does not block writers.
        let mut scans = self.read(FindExpiredJobs { lanes, capacity }).await?;
        let reached: Vec<(i64, _)> = scans.iter().map(|scan| (scan.lane.lane, scan.until)).collect();
        scans.retain(|scan| !scan.expired.is_empty());
        let jobs = if scans.is_empty() { 0 } else { self.write(PruneJobs { scans }).await? };
        // The cursors move only after the delete succeeded, so that the next round retries a failed one.
        for (lane, until) in &reached {
            self.prune_cursors().set_lane(*lane, *until);
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
    /// The oldest of its ended jobs by id.
    first: Uuid,
}

struct ListLanes {
    /// Only the lanes of this queue.
    of: Option<(TenantId, Name)>,
    /// Replaces the retention of the queues.
    older_than_s: Option<i64>,
}

// With row-level security PostgreSQL cannot use an index for a value from a sub-select, so nothing is joined by
// `first`.
const LANES: Sql =
    Sql::both(&["select lane, tenant, queue, settings, concurrency, per_key, rate_per_s, starvation_s, first
     from (
         select l.lane, l.tenant, l.queue, q.settings, q.concurrency, q.per_key, q.rate_per_s, q.starvation_s,
             (select o.id from ended o where o.lane = l.lane order by o.id limit 1) as first
         from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue) heads
     where first is not null order by lane"]);

const LANES_OF: Sql =
    Sql::both(&["select lane, tenant, queue, settings, concurrency, per_key, rate_per_s, starvation_s, first
     from (
         select l.lane, l.tenant, l.queue, q.settings, q.concurrency, q.per_key, q.rate_per_s, q.starvation_s,
             (select o.id from ended o where o.lane = l.lane order by o.id limit 1) as first
         from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
         where l.tenant = $1 and l.queue = $2) heads
     where first is not null order by lane"]);

impl Operation for ListLanes {
    type Output = Vec<LaneRetention>;

    fn tenant(&self) -> Option<TenantId> {
        self.of.as_ref().map(|(tenant, _)| *tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneRetention>, StoreError> {
        let rows = match &self.of {
            Some((tenant, queue)) => tx.query(&LANES_OF, &[Param::Int(tenant.0), Param::Text(queue.as_str())]).await?,
            None => tx.query(&LANES, &[]).await?,
        };
        let now = tx.now();
        let read = |row: &Row| {
            let lane = LaneRetention::read(row)
                .map(|lane| LaneRetention { retention_s: self.older_than_s.unwrap_or(lane.retention_s), ..lane });
            lane.inspect_err(|error| tracing::warn!(%error, "cannot decode a lane; its jobs are not pruned")).ok()
        };
        let has_expired = |lane: &LaneRetention| lane.first <= lane.newest_id(now);
        Ok(rows.iter().filter_map(read).filter(has_expired).collect())
    }
}

impl LaneRetention {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            lane: row.int("lane")?,
            tenant: TenantId(row.int("tenant")?),
            queue: Name::stored(&row.text("queue")?),
            retention_s: read_settings(row)?.retention_s(),
            first: row.uuid("first")?,
        })
    }

    fn cutoff(&self, now: Time) -> Time {
        now.plus_s(-self.retention_s)
    }

    /// Returns the largest id that may be due. Ids carry the time of creation, and a job created after the cutoff
    /// cannot have ended before it.
    fn newest_id(&self, now: Time) -> Uuid {
        let millis = self.cutoff(now).millis().max(0) as u64;
        uuid::Builder::from_unix_timestamp_millis(millis, &[0xff; 10]).into_uuid()
    }
}

struct FindExpiredJobs {
    /// Each lane with the id after which the scan starts.
    lanes: Vec<(LaneRetention, Uuid)>,
    capacity: usize,
}

/// The result of scanning one lane.
struct LaneScan {
    lane: LaneRetention,
    expired: Vec<ExpiredJob>,
    /// Where the scan stopped. `None` when it reached the end of the lane.
    until: Option<Uuid>,
}

// A job of an unfinished batch is retained: its result has yet to be written to the batch's files. A job of an unfinished run
// is retained: its result may be an input of another.
const OLD: Sql =
    Sql::both(&["select id, tenant, state, epoch, attempt, worker, actor, error_code, created_at, started_at,
         finished_at, subject, process, tags, principal, triggered_by, finished_at < $3 and (run is null or not exists (
             select 1 from openai_batches b where b.id = ended.run and b.ended_at is null) and not exists (
             select 1 from runs r where r.tenant = ended.tenant and r.run = ended.run and r.state = 'running'
                 and not r.is_open)) as is_expired
     from ended where lane = $1 and id < $2 and id > $5 order by id limit $4"]);
// Another node may prune the same jobs, and a caller may be uploading an artifact to one of them.
const LOCK: Sql = Sql::new(
    &["select e.id from rarray($1) n cross join ended e where e.id = n.value"],
    "select id from ended where id = any($1::uuid[]) for update skip locked",
);
const INSERT_HISTORY: Sql = Sql::new(
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
        "delete from journal_entries where job = $1",
        "delete from journals where job = $1",
        "delete from journal_children where job = $1",
        "delete from job_events where job = $1",
        "delete from job_options where job = $1",
        "delete from ended where id = $1",
    ],
    "with garbage as (
         insert into blob_garbage (location, since)
         select location, $2 from artifacts where job = any($1::uuid[]) and location is not null on conflict do nothing),
     no_artifacts as (delete from artifacts where job = any($1::uuid[])),
     no_signals as (delete from signals where job = any($1::uuid[])),
     no_entries as (delete from journal_entries where job = any($1::uuid[])),
     no_journals as (delete from journals where job = any($1::uuid[])),
     no_children as (delete from journal_children where job = any($1::uuid[])),
     no_events as (delete from job_events where job = any($1::uuid[])),
     no_options as (delete from job_options where job = any($1::uuid[]))
     delete from ended where id = any($1::uuid[])",
);
const UNTAG: Sql = Sql::new(
    &["delete from job_tags where tenant = $3 and tag = $1 and job = $2"],
    "delete from job_tags t using unnest($1::text[], $2::uuid[], $3::bigint[]) as n(tag, job, tenant)
     where t.tenant = n.tenant and t.tag = n.tag and t.job = n.job",
);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

struct ExpiredJob {
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

impl Operation for FindExpiredJobs {
    type Output = Vec<LaneScan>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneScan>, StoreError> {
        let (mut capacity, mut batches) = (self.capacity, MAINTENANCE_BATCHES);
        let mut scans = Vec::new();
        for (lane, after) in &self.lanes {
            scans.push(lane.scan(tx, *after, &mut capacity, &mut batches).await?);
            if capacity == 0 || batches == 0 {
                break;
            }
        }
        Ok(scans)
    }
}

impl LaneRetention {
    /// Scans for expired jobs after `after`. A job created long ago may have ended recently; such jobs are skipped.
    /// The scan reads at most `batches` batches and returns at most `capacity` jobs, and decrements both.
    async fn scan(
        &self,
        tx: &mut Tx<'_>,
        mut after: Uuid,
        capacity: &mut usize,
        batches: &mut usize,
    ) -> Result<LaneScan, StoreError> {
        let (now, mut expired) = (tx.now(), Vec::new());
        let scan = |expired, until| LaneScan { lane: self.clone(), expired, until };
        loop {
            let params = [
                Param::Int(self.lane),
                Param::Uuid(self.newest_id(now)),
                Param::Time(self.cutoff(now)),
                Param::Int(MAINTENANCE_ROWS as i64),
                Param::Uuid(after),
            ];
            let rows = tx.query(&OLD, &params).await?;
            for row in &rows {
                if *capacity == 0 {
                    return Ok(scan(expired, Some(after)));
                }
                after = row.uuid("id")?;
                if row.bool("is_expired")? {
                    expired.extend(skip_unreadable(ExpiredJob::read(row), || format!("ended job {after}")));
                    *capacity -= 1;
                }
            }
            if rows.len() < MAINTENANCE_ROWS {
                return Ok(scan(expired, None));
            }
            *batches -= 1;
            if *capacity == 0 || *batches == 0 {
                return Ok(scan(expired, Some(after)));
            }
        }
    }
}

struct PruneJobs {
    /// Expired jobs that an earlier read transaction found.
    scans: Vec<LaneScan>,
}

impl Operation for PruneJobs {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let now = tx.now();
        let found = self.scans.iter().flat_map(|scan| scan.expired.iter().map(move |job| (&scan.lane, job)));
        let mut expired: Vec<(&LaneRetention, &ExpiredJob)> = found.collect();
        let ids: Vec<Uuid> = expired.iter().map(|(_, job)| job.id.uuid()).collect();
        let locked = tx.query_by_ids(&LOCK, &ids, &[]).await?;
        let locked = locked.iter().map(|row| row.job("id")).collect::<Result<HashSet<_>, _>>()?;
        expired.retain(|(_, job)| locked.contains(&job.id));
        insert_history(tx, &expired).await?;
        let tagged: Vec<(&str, JobId, TenantId)> = expired
            .iter()
            .flat_map(|(lane, job)| job.tags.iter().map(move |tag| (tag.as_str(), job.id, lane.tenant)))
            .collect();
        let tags = [
            Column::texts(tagged.iter().map(|(tag, ..)| *tag)),
            Column::jobs(tagged.iter().map(|(_, job, _)| *job)),
            Column::ints(tagged.iter().map(|(.., tenant)| tenant.0)),
        ];
        tx.execute_each(&UNTAG, &tags, &[]).await?;
        tx.execute_each(&DELETE, &[Column::jobs(expired.iter().map(|(_, job)| job.id))], &[Param::Time(now)]).await?;
        let mut by_queue: BTreeMap<(TenantId, &Name, i64), i64> = BTreeMap::new();
        for (lane, _) in &expired {
            *by_queue.entry((lane.tenant, &lane.queue, lane.retention_s)).or_default() += 1;
        }
        for ((_, queue, retention_s), count) in by_queue {
            let why = format!("jobs of queue {queue} are retained for {retention_s} s after they end");
            tx.execute(&LOG, &[Param::Time(now), Param::Text("jobs"), Param::Int(count), Param::Text(&why)]).await?;
        }
        Ok(expired.len())
    }
}

/// Writes the final event of each job to `history`.
async fn insert_history(tx: &mut Tx<'_>, expired: &[(&LaneRetention, &ExpiredJob)]) -> Result<(), StoreError> {
    let jobs = || expired.iter().map(|(_, job)| *job);
    let columns = [
        Column::jobs(jobs().map(|job| job.id)),
        Column::ints(jobs().map(|job| job.epoch)),
        Column::texts(jobs().map(|job| job.event)),
        Column::ints(jobs().map(|job| job.attempt)),
        Column::Uuid(jobs().map(|job| job.worker).collect()),
        Column::Text(jobs().map(|job| job.actor.as_deref()).collect()),
        Column::Text(jobs().map(|job| job.cause.as_deref()).collect()),
        Column::Time(jobs().map(|job| Some(job.created_at)).collect()),
        Column::Time(jobs().map(|job| job.started_at).collect()),
        Column::Time(jobs().map(|job| Some(job.finished_at)).collect()),
        Column::Text(jobs().map(|job| job.subject.as_deref()).collect()),
        Column::Text(jobs().map(|job| job.process.as_deref()).collect()),
        Column::texts(jobs().map(|job| job.principal.as_str())),
        Column::Text(jobs().map(|job| job.triggered_by.as_deref()).collect()),
        Column::ints(expired.iter().map(|(lane, _)| lane.tenant.0)),
        Column::ints(expired.iter().map(|(lane, _)| lane.lane)),
    ];
    tx.execute_each(&INSERT_HISTORY, &columns, &[]).await.map(|_| ())
}

impl ExpiredJob {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let state =
            JobState::parse(&row.text("state")?).ok_or_else(|| StoreError::unexpected("an ended job's state"))?;
        let tags: Option<Vec<String>> = row.opt_text("tags")?.map(|text| from_json(&text)).transpose()?;
        Ok(Self {
            id: row.job("id")?,
            event: end_event(state),
            epoch: row.int("epoch")?,
            attempt: row.int("attempt")?,
            worker: row.opt_uuid("worker")?,
            actor: row.opt_text("actor")?,
            cause: row.opt_text("error_code")?,
            created_at: row.time("created_at")?,
            started_at: row.opt_time("started_at")?,
            finished_at: row.time("finished_at")?,
            subject: row.opt_text("subject")?,
            process: row.opt_text("process")?,
            tags: tags.unwrap_or_default(),
            principal: row.text("principal")?,
            triggered_by: row.opt_text("triggered_by")?,
        })
    }
}

struct PruneRest {
    history_retention_s: i64,
    /// History rows of jobs that no longer exist.
    history: Vec<HistoryKey>,
}

const DELETE_HISTORY: Sql = Sql::new(
    &["delete from history where job = $1 and epoch = $2 and event = $3"],
    "delete from history h using unnest($1::uuid[], $2::bigint[], $3::text[]) as n(job, epoch, event)
     where h.job = n.job and h.epoch = n.epoch and h.event = n.event",
);
// The condition is repeated outside the sub-select: another transaction may reuse the key while this one waits for the
// row lock.
const OLD_KEYS: Sql = Sql::both(&["delete from idempotency where created_at <= $1 and (tenant, key) in (
         select tenant, key from idempotency where created_at <= $1 order by created_at limit $2)"]);
const OLD_UNIQUE: Sql = Sql::both(&["delete from unique_keys where until <= $1 and (tenant, queue, key) in (
         select tenant, queue, key from unique_keys where until <= $1 order by until limit $2)"]);
// Dead workers are retained for a day, so that a late request of one gets `lease_expired` and not `not_found`.
const OLD_WORKERS: Sql = Sql::both(&["delete from workers where id in (
         select id from workers where dead_at < $1 order by dead_at, id limit $2)"]);
const OLD_LOG: Sql = Sql::both(&["delete from prunings where id in (
         select id from prunings where at < $1 order by at limit $2)"]);

impl Operation for PruneRest {
    type Output = Pruned;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Pruned, StoreError> {
        let now = tx.now();
        let rows = Param::Int(MAINTENANCE_ROWS as i64);
        let history = [
            Column::jobs(self.history.iter().map(|(job, ..)| *job)),
            Column::ints(self.history.iter().map(|(_, epoch, _)| *epoch)),
            Column::texts(self.history.iter().map(|(.., event)| event.as_str())),
        ];
        let history = tx.execute_each(&DELETE_HISTORY, &history, &[]).await?;
        let keys = tx.execute(&OLD_KEYS, &[Param::Time(now.plus_s(-IDEMPOTENCY_RETENTION_S)), rows]).await?;
        let unique_keys = tx.execute(&OLD_UNIQUE, &[Param::Time(now), rows]).await?;
        let workers = tx.execute(&OLD_WORKERS, &[Param::Time(now.plus_s(-86_400)), rows]).await?;
        tx.execute(&OLD_LOG, &[Param::Time(now.plus_s(-RETENTION_DEFAULT_S)), rows]).await?;
        let kinds = [("history", history, self.history_retention_s), ("idempotency", keys, IDEMPOTENCY_RETENTION_S)];
        for (kind, count, retention_s) in kinds {
            if count > 0 {
                let why = format!("{kind} is retained for {retention_s} s");
                let params = [Param::Time(now), Param::Text(kind), Param::Int(count as i64), Param::Text(&why)];
                tx.execute(&LOG, &params).await?;
            }
        }
        Ok(Pruned { jobs: 0, history, idempotency: keys, unique_keys, workers })
    }
}

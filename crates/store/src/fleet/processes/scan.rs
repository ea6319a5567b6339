//! The scan makes a job for each eligible subject of each process, up to the process's `max_active`. A task on every
//! node calls it.
//!
//! It reads only what changed. The transaction that sets a fact evaluates the selectors. The scan re-evaluates a
//! subject only when the age of a fact may have changed the result, and sweeps all subjects in batches when a selector
//! is new. Each step is its own transaction, which any node may run at any time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::limits::PROCESS_SCAN_ROWS;
use domain::{JobId, Label, Name, Origin, ProcessSettings, TenantId, Time};

use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::processes::codec::settings_from_json;
use crate::fleet::subjects;
use crate::fleet::subjects::SubjectRow;
use crate::fleet::subjects::eligibility;
use crate::fleet::subjects::eligibility::ProcessSelector;
use crate::fleet::subjects::facts::FactDocument;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::store::Store;

/// What one scan did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Subjects that were evaluated.
    pub evaluated: usize,
    pub jobs: usize,
    /// Jobs unparked because their backoff has expired.
    pub unparked: usize,
    /// A step reached its batch limit, so the next scan may have work at once.
    pub more: bool,
    /// Time until the next check, ready time or backoff expiry that is stored.
    pub next_in_ms: Option<i64>,
}

impl Store {
    /// Runs one bounded scan over all tenants.
    pub async fn scan(&self) -> Result<Scanned, StoreError> {
        let unparked = backoffs::unpark_expired(self).await?;
        let mut scanned = Scanned { unparked, more: unparked >= PROCESS_SCAN_ROWS, ..Scanned::default() };
        for (tenant, subjects) in self.read(ListDueChecks).await? {
            scanned.more |= subjects.len() >= PROCESS_SCAN_ROWS;
            scanned.evaluated += self.write(EvaluateDue { tenant, subjects }).await?;
        }
        for (tenant, name) in self.read(ListUnswept).await? {
            let swept = self.write(SweepProcess { tenant, name }).await?;
            scanned.evaluated += swept.evaluated;
            scanned.more |= swept.more;
        }
        for candidate in self.read(ListProcessesWithWork).await? {
            let made = self.make_jobs_for(candidate).await?;
            scanned.jobs += made;
            scanned.more |= made >= PROCESS_SCAN_ROWS;
        }
        scanned.next_in_ms = self.read(NextScan).await?;
        Ok(scanned)
    }

    async fn make_jobs_for(&self, process: ProcessWork) -> Result<usize, StoreError> {
        let lane = process.job("", "null".into())?.lane(process.tenant);
        let lane = self.lane_ids(&[lane]).await?[0];
        let queue = (process.tenant, process.settings.queue.clone());
        let made = self.write(MakeProcessJobs { process, lane }).await?;
        if made > 0 {
            self.announce(&Effects { ready: BTreeSet::from([queue]), ..Effects::default() });
        }
        Ok(made)
    }
}

struct ListDueChecks;

const DUE_CHECKS: Sql = Sql::both(&["select tenant, subject from standings where check_at <= $1
     order by check_at, tenant, subject limit $2"]);

impl Operation for ListDueChecks {
    type Output = BTreeMap<TenantId, BTreeSet<String>>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::Time(tx.now()), Param::Int(PROCESS_SCAN_ROWS as i64)];
        let mut due: Self::Output = BTreeMap::new();
        for row in tx.query(&DUE_CHECKS, &params).await? {
            due.entry(TenantId(row.int("tenant")?)).or_default().insert(row.text("subject")?);
        }
        Ok(due)
    }
}

/// Re-evaluates subjects whose facts' age may have changed the result.
struct EvaluateDue {
    tenant: TenantId,
    subjects: BTreeSet<String>,
}

impl Operation for EvaluateDue {
    type Output = usize;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let selectors = eligibility::selectors(tx, self.tenant).await?;
        let ids: Vec<&str> = self.subjects.iter().map(String::as_str).collect();
        let rows = subjects::lock(tx, self.tenant, &ids).await?;
        eligibility::evaluate(tx, self.tenant, &rows, &selectors).await?;
        Ok(rows.len())
    }
}

struct ListUnswept;

const UNSWEPT: Sql =
    Sql::both(&["select tenant, name from processes where swept_to is not null order by tenant, name"]);

impl Operation for ListUnswept {
    type Output = Vec<(TenantId, Name)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query(&UNSWEPT, &[]).await?;
        rows.iter().map(|row| Ok((TenantId(row.int("tenant")?), Name::stored(&row.text("name")?)))).collect()
    }
}

/// Evaluates the next batch of subjects against a new selector, or deletes the next `standings` rows of a deleted
/// process.
struct SweepProcess {
    tenant: TenantId,
    name: Name,
}

struct ProcessSwept {
    evaluated: usize,
    more: bool,
}

const LOCK: Sql = Sql::new(
    &["select p.swept_to, p.dropped_at, p.settings, s.since, s.beat_at from processes p join service s on s.id = 1
       where p.tenant = $1 and p.name = $2 and p.swept_to is not null"],
    "select p.swept_to, p.dropped_at, p.settings, s.since, s.beat_at from processes p join service s on s.id = 1
     where p.tenant = $1 and p.name = $2 and p.swept_to is not null for update of p skip locked",
);
const NEXT_SUBJECTS: Sql = Sql::new(
    &["select id, kind, facts, created_at, updated_at from subjects where tenant = $1 and id > $2
       order by id limit $3"],
    "select id, kind, facts, created_at, updated_at from subjects where tenant = $1 and id > $2
     order by id limit $3 for update",
);
const SWEPT_TO: Sql = Sql::both(&["update processes set swept_to = $3 where tenant = $1 and name = $2"]);
const NEXT_STANDINGS: Sql = Sql::new(
    &["select subject from standings where tenant = $1 and process = $2 and subject > $3 order by subject limit $4"],
    "select subject from standings where tenant = $1 and process = $2 and subject > $3 order by subject limit $4
     for update",
);
const DELETE_STANDINGS: Sql = Sql::new(
    &["delete from standings where tenant = $2 and subject = $1 and process = $3"],
    "delete from standings where tenant = $2 and subject = any($1::text[]) and process = $3",
);
const DELETE_PROCESS: Sql = Sql::both(&["delete from processes where tenant = $1 and name = $2"]);

impl Operation for SweepProcess {
    type Output = ProcessSwept;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ProcessSwept, StoreError> {
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let nothing = ProcessSwept { evaluated: 0, more: false };
        let Some(row) = tx.query_opt(&LOCK, &id).await? else { return Ok(nothing) };
        let rows = Param::Int(PROCESS_SCAN_ROWS as i64);
        let swept_to = row.text("swept_to")?;
        if row.opt_time("dropped_at")?.is_some() {
            let found = tx.query(&NEXT_STANDINGS, &[id[0], id[1], Param::Text(&swept_to), rows]).await?;
            let found = found.iter().map(|row| row.text("subject")).collect::<Result<Vec<_>, _>>()?;
            tx.execute_each(&DELETE_STANDINGS, &[Column::texts(found.iter().map(String::as_str))], &id).await?;
            match found.last() {
                Some(last) => tx.execute(&SWEPT_TO, &[id[0], id[1], Param::Text(last)]).await?,
                None => tx.execute(&DELETE_PROCESS, &id).await?,
            };
            return Ok(ProcessSwept { evaluated: 0, more: !found.is_empty() });
        }
        let selector = ProcessSelector::read(self.name.to_string(), &row, tx.now())?;
        let found = tx.query(&NEXT_SUBJECTS, &[id[0], Param::Text(&swept_to), rows]).await?;
        let found = found.iter().map(SubjectRow::read).collect::<Result<Vec<_>, _>>()?;
        eligibility::evaluate(tx, self.tenant, &found, &[ProcessSelector { is_new: true, ..selector }]).await?;
        let more = found.len() == PROCESS_SCAN_ROWS;
        let swept_to = found.last().filter(|_| more).map(|last| last.id.as_str());
        tx.execute(&SWEPT_TO, &[id[0], id[1], Param::text(swept_to)]).await?;
        Ok(ProcessSwept { evaluated: found.len(), more })
    }
}

/// A process with eligible subjects.
#[derive(Clone, Debug)]
struct ProcessWork {
    tenant: TenantId,
    name: Name,
    settings: ProcessSettings,
    principal: String,
    updated_at: Time,
}

struct ListProcessesWithWork;

const WITH_WORK: Sql = Sql::both(&["select p.tenant, p.name, p.queue, p.kind, p.settings, p.principal, p.updated_at
     from processes p where p.dropped_at is null and exists (
         select 1 from standings s where s.tenant = p.tenant and s.process = p.name and s.job is null
             and s.ready_at <= $1 and (s.check_at is null or s.check_at > $1)
             and (p.swept_to is null or s.subject <= p.swept_to))"]);

impl Operation for ListProcessesWithWork {
    type Output = Vec<ProcessWork>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ProcessWork>, StoreError> {
        let now = Param::Time(tx.now());
        tx.query(&WITH_WORK, &[now]).await?.iter().map(ProcessWork::read).collect()
    }
}

impl ProcessWork {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let (queue, kind) = (Name::stored(&row.text("queue")?), Name::stored(&row.text("kind")?));
        Ok(Self {
            tenant: TenantId(row.int("tenant")?),
            name: Name::stored(&row.text("name")?),
            settings: settings_from_json(queue, kind, &row.text("settings")?)?,
            principal: row.text("principal")?,
            updated_at: row.time("updated_at")?,
        })
    }

    /// Builds the job for one subject. It has a single attempt: the process's backoff and the next scan replace job
    /// retries.
    fn job(&self, subject: &str, payload: Box<str>) -> Result<NewJob, StoreError> {
        Ok(NewJob {
            queue: self.settings.queue.clone(),
            kind: self.settings.kind.clone(),
            payload,
            affinity: None,
            priority: 0,
            run_at: None,
            max_attempts: 1,
            principal: self.principal.as_str().into(),
            extras: Some(Box::new(Extras {
                subject: Some(Label::stored(subject)),
                process: Some(self.name.clone()),
                triggered_by: Origin::Process(self.name.to_string()).stored(),
                ..Extras::default()
            })),
        })
    }

    fn payload(&self, subject: &str, facts: Option<&FactDocument>) -> Box<str> {
        if let Some(payload) = &self.settings.payload {
            return payload.clone();
        }
        let subject = crate::db::codec::to_json(&subject);
        let facts = facts.map_or_else(|| "{}".to_owned(), FactDocument::values);
        format!(r#"{{"subject":{subject},"facts":{facts}}}"#).into()
    }
}

/// Makes jobs for the first eligible subjects of one process, up to its free capacity. The lock on the process row
/// admits one node at a time, so `max_active` is exact.
struct MakeProcessJobs {
    process: ProcessWork,
    lane: i64,
}

const LOCK_UNCHANGED: Sql = Sql::new(
    &["select name from processes where tenant = $1 and name = $2 and updated_at = $3 and dropped_at is null"],
    "select name from processes where tenant = $1 and name = $2 and updated_at = $3 and dropped_at is null
     for update skip locked",
);
const ACTIVE: Sql = Sql::both(&["select count(*) as jobs from (
         select 1 from standings where tenant = $1 and process = $2 and job is not null limit $3) active"]);
const CANDIDATES: Sql = Sql::new(
    &["select s.subject from processes p
           join standings s on s.tenant = p.tenant and s.process = p.name and s.job is null and s.ready_at <= $3
               and (s.check_at is null or s.check_at > $3) and (p.swept_to is null or s.subject <= p.swept_to)
       where p.tenant = $1 and p.name = $2 and p.dropped_at is null
       order by s.ready_at, s.subject limit $4"],
    "select s.subject from processes p
         join standings s on s.tenant = p.tenant and s.process = p.name and s.job is null and s.ready_at <= $3
             and (s.check_at is null or s.check_at > $3) and (p.swept_to is null or s.subject <= p.swept_to)
     where p.tenant = $1 and p.name = $2 and p.dropped_at is null
     order by s.ready_at, s.subject limit $4 for update of s skip locked",
);
// A producer may have pushed a job of its own for the same subject and process. That job is adopted instead of a new
// one. A job whose row another transaction has locked may be ending, and nothing would free its subject afterwards: it
// is skipped until the next scan. Waiting for the lock could deadlock, because the transaction that ends a job locks
// `standings` last.
const LIVE: Sql = Sql::new(
    &["select subject, id, 1 as is_ours from jobs where tenant = $2 and subject = $1 and process = $3
       order by id limit 1"],
    "with live as materialized (
         select distinct on (subject) subject, id from jobs
         where tenant = $2 and subject = any($1::text[]) and process = $3 order by subject, id),
     ours as materialized (
         select j.id from jobs j where j.id in (select id from live) for update of j skip locked)
     select live.subject, live.id, ours.id is not null as is_ours from live left join ours on ours.id = live.id",
);
const FACTS: Sql = Sql::new(
    &["select id, facts from subjects where tenant = $2 and id = $1"],
    "select id, facts from subjects where tenant = $2 and id = any($1::text[])",
);
const HAND_OVER: Sql = Sql::new(
    &["update standings set job = $2, made_at = $4 where tenant = $3 and subject = $1 and process = $5"],
    "update standings s set job = n.job, made_at = $4 from unnest($1::text[], $2::uuid[]) as n(subject, job)
     where s.tenant = $3 and s.subject = n.subject and s.process = $5",
);

impl Operation for MakeProcessJobs {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let process = &self.process;
        let id = [Param::Int(process.tenant.0), Param::Text(process.name.as_str())];
        let unchanged = [id[0], id[1], Param::Time(process.updated_at)];
        if tx.query_opt(&LOCK_UNCHANGED, &unchanged).await?.is_none() {
            return Ok(0);
        }
        let capacity = self.free_capacity(tx, &id).await?;
        if capacity == 0 {
            return Ok(0);
        }
        let params = [id[0], id[1], Param::Time(tx.now()), Param::Int(capacity)];
        let rows = tx.query(&CANDIDATES, &params).await?;
        let subjects = rows.iter().map(|row| row.text("subject")).collect::<Result<Vec<String>, _>>()?;
        // `None` skips the subject until the next scan.
        let mut live: HashMap<String, Option<JobId>> = HashMap::new();
        let columns = [Column::texts(subjects.iter().map(String::as_str))];
        for row in tx.query_each(&LIVE, &columns, &id).await? {
            let (job, is_ours) = (row.job("id")?, row.bool("is_ours")?);
            live.insert(row.text("subject")?, is_ours.then_some(job));
        }
        let (with_job, without_job): (Vec<&str>, Vec<&str>) =
            subjects.iter().map(String::as_str).partition(|subject| live.contains_key(*subject));
        let mut jobs: Vec<(&str, JobId)> =
            with_job.into_iter().filter_map(|subject| Some((subject, live[subject]?))).collect();
        let made = self.make(tx, &without_job).await?;
        jobs.extend(without_job.iter().copied().zip(made));
        let columns =
            [Column::texts(jobs.iter().map(|(subject, _)| *subject)), Column::jobs(jobs.iter().map(|(_, job)| *job))];
        let now = Param::Time(tx.now());
        tx.execute_each(&HAND_OVER, &columns, &[id[0], now, id[1]]).await?;
        Ok(jobs.len())
    }
}

impl MakeProcessJobs {
    /// Returns how many more jobs the process may have now, at most one batch.
    async fn free_capacity(&self, tx: &mut Tx<'_>, id: &[Param<'_>; 2]) -> Result<i64, StoreError> {
        let batch = PROCESS_SCAN_ROWS as i64;
        let Some(max_active) = self.process.settings.max_active.map(i64::from) else { return Ok(batch) };
        let row = tx.query_opt(&ACTIVE, &[id[0], id[1], Param::Int(max_active)]).await?;
        let active = row.map(|row| row.int("jobs")).transpose()?.unwrap_or(0);
        Ok((max_active - active).clamp(0, batch))
    }

    async fn make(&self, tx: &mut Tx<'_>, subjects: &[&str]) -> Result<Vec<JobId>, StoreError> {
        if subjects.is_empty() {
            return Ok(Vec::new());
        }
        let mut facts: HashMap<String, FactDocument> = HashMap::new();
        if self.process.settings.payload.is_none() {
            let columns = [Column::texts(subjects.iter().copied())];
            for row in tx.query_each(&FACTS, &columns, &[Param::Int(self.process.tenant.0)]).await? {
                facts.insert(row.text("id")?, FactDocument::read(&row.text("facts")?)?);
            }
        }
        let job = |subject: &&str| self.process.job(subject, self.process.payload(subject, facts.get(*subject)));
        let jobs = subjects.iter().map(job).collect::<Result<Vec<_>, _>>()?;
        let lanes = vec![self.lane; jobs.len()];
        let request = EnqueueRequest::new(self.process.tenant, jobs, lanes);
        match EnqueueBatch::one(request).run(tx).await?.pop() {
            Some(EnqueueReply::Accepted(made)) if made.len() == subjects.len() => {
                Ok(made.into_iter().map(|job| job.id).collect())
            }
            _ => Err(StoreError::unexpected("the enqueue of the scan's jobs was refused")),
        }
    }
}

/// Returns in how many milliseconds the next scan has work, if any time is stored.
struct NextScan;

const NEXT_CHECK: Sql =
    Sql::both(&["select check_at as at from standings where check_at is not null order by check_at limit 1"]);
const NEXT_READY: Sql = Sql::new(
    &["select (select s.ready_at from standings s where s.tenant = p.tenant and s.process = p.name and s.job is null
           and s.ready_at > $1 order by s.ready_at limit 1) as at from processes p order by at is null, at limit 1"],
    "select s.ready_at as at from processes p cross join lateral (
         select ready_at from standings where tenant = p.tenant and process = p.name and job is null and ready_at > $1
         order by ready_at limit 1) s
     order by 1 limit 1",
);
const NEXT_UNPARK: Sql =
    Sql::both(&["select until as at from backoffs where waiting and until is not null order by until limit 1"]);

impl Operation for NextScan {
    type Output = Option<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<i64>, StoreError> {
        let now = tx.now();
        let mut next: Option<Time> = None;
        for (sql, params) in [(&NEXT_CHECK, &[][..]), (&NEXT_READY, &[Param::Time(now)][..]), (&NEXT_UNPARK, &[][..])] {
            let at = tx.query_opt(sql, params).await?.map(|row| row.opt_time("at")).transpose()?.flatten();
            next = match (next, at) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        Ok(next.map(|next| next.ms_since(now).max(0) + 1))
    }
}

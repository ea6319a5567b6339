//! The scan: makes a job for each eligible subject of each process, as far as there is room (W1, W7).
//!
//! It reads only what changed. Facts are judged by the transaction that sets them; the scan judges again where age may
//! have changed the answer, judges all subjects a part at a time when a selector is new, and makes the jobs. Each step is
//! a transaction of its own that any node may run at any time.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::limits::SCAN_ROWS_AT_ONCE;
use domain::{JobId, Label, Name, Origin, ProcessSettings, TenantId, Time};

use crate::backoffs;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, Extras, NewJob};
use crate::processes::codec::settings_from_json;
use crate::store::Store;
use crate::subjects::facts::FactDocument;
use crate::subjects::standings::{self, ProcessSelector};
use crate::subjects::{self, SubjectRow};
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scanned {
    /// Subjects that were judged.
    pub judged: usize,
    pub jobs: usize,
    /// Jobs let go because the backoff they waited for has passed.
    pub unparked: usize,
    /// A step was full: there may be more at once.
    pub more: bool,
    /// How long until the next moment that is known of.
    pub next_in_ms: Option<i64>,
}

impl Store {
    pub async fn scan(&self) -> Result<Scanned, StoreError> {
        let unparked = backoffs::unpark_past(self).await?;
        let mut scanned = Scanned { unparked, more: unparked >= SCAN_ROWS_AT_ONCE, ..Scanned::default() };
        for (tenant, subjects) in self.read(DueChecks).await? {
            scanned.more |= subjects.len() >= SCAN_ROWS_AT_ONCE;
            scanned.judged += self.write(Check { tenant, subjects }).await?;
        }
        for (tenant, name) in self.read(Unswept).await? {
            let swept = self.write(Sweep { tenant, name }).await?;
            scanned.judged += swept.judged;
            scanned.more |= swept.more;
        }
        for candidate in self.read(WithWork).await? {
            let made = self.make_work(candidate).await?;
            scanned.jobs += made;
            scanned.more |= made >= SCAN_ROWS_AT_ONCE;
        }
        scanned.next_in_ms = self.read(NextMoment).await?;
        Ok(scanned)
    }

    async fn make_work(&self, process: ProcessWork) -> Result<usize, StoreError> {
        let lane = process.job("", "null".into())?.lane(process.tenant);
        let lane = self.lane_ids(&[lane]).await?[0];
        let queue = (process.tenant, process.settings.queue.clone());
        let made = self.write(MakeWork { process, lane }).await?;
        if made > 0 {
            self.announce(&Effects { ready: BTreeSet::from([queue]), ..Effects::default() });
        }
        Ok(made)
    }
}

struct DueChecks;

const DUE_CHECKS: Sql = Sql::both(&["select tenant, subject from standings where check_at <= $1
     order by check_at, tenant, subject limit $2"]);

impl Operation for DueChecks {
    type Output = BTreeMap<TenantId, BTreeSet<String>>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::Time(tx.now()), Param::Int(SCAN_ROWS_AT_ONCE as i64)];
        let mut due: Self::Output = BTreeMap::new();
        for row in tx.query(&DUE_CHECKS, &params).await? {
            due.entry(TenantId(row.int(0)?)).or_default().insert(row.text(1)?);
        }
        Ok(due)
    }
}

/// Judges subjects again because of their facts' age.
struct Check {
    tenant: TenantId,
    subjects: BTreeSet<String>,
}

impl Operation for Check {
    type Output = usize;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let selectors = standings::selectors(tx, self.tenant).await?;
        let ids: Vec<&str> = self.subjects.iter().map(String::as_str).collect();
        let rows = subjects::lock(tx, self.tenant, &ids).await?;
        standings::judge(tx, self.tenant, &rows, &selectors).await?;
        Ok(rows.len())
    }
}

struct Unswept;

const UNSWEPT: Sql =
    Sql::both(&["select tenant, name from processes where swept_to is not null order by tenant, name"]);

impl Operation for Unswept {
    type Output = Vec<(TenantId, Name)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query(&UNSWEPT, &[]).await?;
        rows.iter().map(|row| Ok((TenantId(row.int(0)?), Name::stored(&row.text(1)?)))).collect()
    }
}

/// Judges the next subjects by a selector that is new, or forgets the next standings of a process that is gone.
struct Sweep {
    tenant: TenantId,
    name: Name,
}

struct Swept {
    judged: usize,
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
const FORGET: Sql = Sql::new(
    &["delete from standings where tenant = $2 and subject = $1 and process = $3"],
    "delete from standings where tenant = $2 and subject = any($1::text[]) and process = $3",
);
const DROP: Sql = Sql::both(&["delete from processes where tenant = $1 and name = $2"]);

impl Operation for Sweep {
    type Output = Swept;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Swept, StoreError> {
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let nothing = Swept { judged: 0, more: false };
        let Some(row) = tx.query_opt(&LOCK, &id).await? else { return Ok(nothing) };
        let rows = Param::Int(SCAN_ROWS_AT_ONCE as i64);
        let swept_to = row.text(0)?;
        if row.opt_time(1)?.is_some() {
            let found = tx.query(&NEXT_STANDINGS, &[id[0], id[1], Param::Text(&swept_to), rows]).await?;
            let found = found.iter().map(|row| row.text(0)).collect::<Result<Vec<_>, _>>()?;
            tx.execute_each(&FORGET, &[Column::texts(found.iter().map(String::as_str))], &id).await?;
            match found.last() {
                Some(last) => tx.execute(&SWEPT_TO, &[id[0], id[1], Param::Text(last)]).await?,
                None => tx.execute(&DROP, &id).await?,
            };
            return Ok(Swept { judged: 0, more: !found.is_empty() });
        }
        let selector = ProcessSelector::read(self.name.to_string(), &row, 2, tx.now())?;
        let found = tx.query(&NEXT_SUBJECTS, &[id[0], Param::Text(&swept_to), rows]).await?;
        let found = found.iter().map(SubjectRow::read).collect::<Result<Vec<_>, _>>()?;
        standings::judge(tx, self.tenant, &found, &[ProcessSelector { is_new: true, ..selector }]).await?;
        let more = found.len() == SCAN_ROWS_AT_ONCE;
        let swept_to = found.last().filter(|_| more).map(|last| last.id.as_str());
        tx.execute(&SWEPT_TO, &[id[0], id[1], Param::text(swept_to)]).await?;
        Ok(Swept { judged: found.len(), more })
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

struct WithWork;

const WITH_WORK: Sql = Sql::both(&["select p.tenant, p.name, p.queue, p.kind, p.settings, p.principal, p.updated_at
     from processes p where p.dropped_at is null and exists (
         select 1 from standings s where s.tenant = p.tenant and s.process = p.name and s.job is null
             and s.ready_at <= $1 and (s.check_at is null or s.check_at > $1)
             and (p.swept_to is null or s.subject <= p.swept_to))"]);

impl Operation for WithWork {
    type Output = Vec<ProcessWork>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ProcessWork>, StoreError> {
        let now = Param::Time(tx.now());
        tx.query(&WITH_WORK, &[now]).await?.iter().map(ProcessWork::read).collect()
    }
}

impl ProcessWork {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let (queue, kind) = (Name::stored(&row.text(2)?), Name::stored(&row.text(3)?));
        Ok(Self {
            tenant: TenantId(row.int(0)?),
            name: Name::stored(&row.text(1)?),
            settings: settings_from_json(queue, kind, &row.text(4)?)?,
            principal: row.text(5)?,
            updated_at: row.time(6)?,
        })
    }

    /// One attempt: the backoff and the next look at the subject take the place of retries.
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
        let subject = crate::codec::to_json(&subject);
        let facts = facts.map_or_else(|| "{}".to_owned(), FactDocument::values);
        format!(r#"{{"subject":{subject},"facts":{facts}}}"#).into()
    }
}

/// Makes jobs for the first eligible subjects of one process, as many as it may have. One node at a time per process, so
/// that `max_active` is exact.
struct MakeWork {
    process: ProcessWork,
    lane: i64,
}

const LOCK_UNCHANGED: Sql = Sql::new(
    &["select name from processes where tenant = $1 and name = $2 and updated_at = $3 and dropped_at is null"],
    "select name from processes where tenant = $1 and name = $2 and updated_at = $3 and dropped_at is null
     for update skip locked",
);
const ACTIVE: Sql = Sql::both(&["select count(*) from (
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
// A producer may have pushed a job of its own for the same subject and process: that one is it, then. One that is in
// other hands may be ending, and nobody would free its subject afterwards. Waiting for those hands could close a circle:
// they come to the standings last.
const LIVE: Sql = Sql::new(
    &["select subject, id, 1 from jobs where tenant = $2 and subject = $1 and process = $3 order by id limit 1"],
    "with live as materialized (
         select distinct on (subject) subject, id from jobs
         where tenant = $2 and subject = any($1::text[]) and process = $3 order by subject, id),
     ours as materialized (
         select j.id from jobs j where j.id in (select id from live) for update of j skip locked)
     select live.subject, live.id, ours.id is not null from live left join ours on ours.id = live.id",
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

impl Operation for MakeWork {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let process = &self.process;
        let id = [Param::Int(process.tenant.0), Param::Text(process.name.as_str())];
        let unchanged = [id[0], id[1], Param::Time(process.updated_at)];
        if tx.query_opt(&LOCK_UNCHANGED, &unchanged).await?.is_none() {
            return Ok(0);
        }
        let room = self.room(tx, &id).await?;
        if room == 0 {
            return Ok(0);
        }
        let params = [id[0], id[1], Param::Time(tx.now()), Param::Int(room)];
        let rows = tx.query(&CANDIDATES, &params).await?;
        let subjects = rows.iter().map(|row| row.text(0)).collect::<Result<Vec<String>, _>>()?;
        // `None`: the subject is left to the next scan.
        let mut live: HashMap<String, Option<JobId>> = HashMap::new();
        let columns = [Column::texts(subjects.iter().map(String::as_str))];
        for row in tx.query_each(&LIVE, &columns, &id).await? {
            let (job, is_ours) = (row.job(1)?, row.bool(2)?);
            live.insert(row.text(0)?, is_ours.then_some(job));
        }
        let (met, fresh): (Vec<&str>, Vec<&str>) =
            subjects.iter().map(String::as_str).partition(|subject| live.contains_key(*subject));
        let mut jobs: Vec<(&str, JobId)> =
            met.into_iter().filter_map(|subject| Some((subject, live[subject]?))).collect();
        let made = self.make(tx, &fresh).await?;
        jobs.extend(fresh.iter().copied().zip(made));
        let columns =
            [Column::texts(jobs.iter().map(|(subject, _)| *subject)), Column::jobs(jobs.iter().map(|(_, job)| *job))];
        let now = Param::Time(tx.now());
        tx.execute_each(&HAND_OVER, &columns, &[id[0], now, id[1]]).await?;
        Ok(jobs.len())
    }
}

impl MakeWork {
    async fn room(&self, tx: &mut Tx<'_>, id: &[Param<'_>; 2]) -> Result<i64, StoreError> {
        let at_once = SCAN_ROWS_AT_ONCE as i64;
        let Some(most) = self.process.settings.max_active.map(i64::from) else { return Ok(at_once) };
        let row = tx.query_opt(&ACTIVE, &[id[0], id[1], Param::Int(most)]).await?;
        let active = row.map(|row| row.int(0)).transpose()?.unwrap_or(0);
        Ok((most - active).clamp(0, at_once))
    }

    async fn make(&self, tx: &mut Tx<'_>, subjects: &[&str]) -> Result<Vec<JobId>, StoreError> {
        if subjects.is_empty() {
            return Ok(Vec::new());
        }
        let mut facts: HashMap<String, FactDocument> = HashMap::new();
        if self.process.settings.payload.is_none() {
            let columns = [Column::texts(subjects.iter().copied())];
            for row in tx.query_each(&FACTS, &columns, &[Param::Int(self.process.tenant.0)]).await? {
                facts.insert(row.text(0)?, FactDocument::read(&row.text(1)?)?);
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
            _ => Err(StoreError::unexpected("the scan made no jobs")),
        }
    }
}

struct NextMoment;

const NEXT_CHECK: Sql =
    Sql::both(&["select check_at from standings where check_at is not null order by check_at limit 1"]);
const NEXT_READY: Sql = Sql::new(
    &["select (select s.ready_at from standings s where s.tenant = p.tenant and s.process = p.name and s.job is null
           and s.ready_at > $1 order by s.ready_at limit 1) as at from processes p order by at is null, at limit 1"],
    "select s.ready_at from processes p cross join lateral (
         select ready_at from standings where tenant = p.tenant and process = p.name and job is null and ready_at > $1
         order by ready_at limit 1) s
     order by 1 limit 1",
);
const NEXT_UNPARK: Sql =
    Sql::both(&["select until from backoffs where waiting and until is not null order by until limit 1"]);

impl Operation for NextMoment {
    type Output = Option<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<i64>, StoreError> {
        let now = tx.now();
        let mut next: Option<Time> = None;
        for (sql, params) in [(&NEXT_CHECK, &[][..]), (&NEXT_READY, &[Param::Time(now)][..]), (&NEXT_UNPARK, &[][..])] {
            let at = tx.query_opt(sql, params).await?.map(|row| row.opt_time(0)).transpose()?.flatten();
            next = match (next, at) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        Ok(next.map(|next| next.ms_since(now).max(0) + 1))
    }
}

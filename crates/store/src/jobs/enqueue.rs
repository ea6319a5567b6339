//! Takes jobs in: many callers' requests in one commit (Q3, Q4).
//!
//! Each request is all or nothing. A request whose idempotency key or unique key is taken gets the job that has it.

use std::collections::HashMap;
use std::sync::Arc;

use domain::limits::IDEMPOTENCY_KEEP_S;
use domain::{Affinity, JobId, JobState, Label, Name, RetryPolicy, TenantId, Time};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::batch::Batch;
use crate::clock::new_job_ids;
use crate::codec::{from_json, retry_to_json, to_json};
use crate::counters::Changes;
use crate::error::StoreError;
use crate::hints::Topic;
use crate::lanes::Lane;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

/// A job to be made. Everything in it has been checked.
#[derive(Clone, Debug)]
pub struct NewJob {
    pub queue: Name,
    pub kind: Name,
    /// JSON, as it came.
    pub payload: Box<str>,
    pub affinity: Affinity,
    pub priority: i32,
    /// At once, when `None`.
    pub run_at: Option<Time>,
    pub max_attempts: i32,
    pub principal: Arc<str>,
    /// What most jobs do without.
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
    /// JSON: where to send changes of state.
    pub webhook: Option<String>,
    pub parent: Option<JobId>,
    pub triggered_by: Option<String>,
    pub depth: i32,
}

/// While it holds, the same key in the same queue gives the same job.
#[derive(Clone, Debug)]
pub struct Unique {
    pub key: String,
    /// Until the job ends, when `None`.
    pub for_s: Option<i64>,
}

#[derive(Clone, Debug)]
pub struct Idempotency {
    pub key: String,
    pub body_hash: [u8; 32],
}

/// A job as its maker hears of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub id: JobId,
    pub tenant: TenantId,
    pub state: JobState,
    pub queue: Name,
    pub kind: Name,
    pub run_at: Time,
    pub created_at: Time,
    /// It was there already.
    pub existing: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnqueueReply {
    Accepted(Vec<Accepted>),
    /// The idempotency key was used before, with another body.
    KeyReused,
}

impl Store {
    /// Makes jobs, all or none, and returns once they are durable.
    pub async fn enqueue(
        &self,
        tenant: TenantId,
        jobs: Vec<NewJob>,
        idempotency: Option<Idempotency>,
    ) -> Result<EnqueueReply, StoreError> {
        let lanes: Vec<Lane> = jobs.iter().map(|job| job.lane(tenant)).collect();
        let lanes = self.lane_ids(&lanes).await?;
        self.shared_enqueue(EnqueueRequest { tenant, jobs, lanes, idempotency }).await
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

    fn unique(&self) -> Option<&Unique> {
        self.extras.as_deref().and_then(|extras| extras.unique.as_ref())
    }
}

pub(crate) struct EnqueueRequest {
    tenant: TenantId,
    jobs: Vec<NewJob>,
    lanes: Vec<i64>,
    idempotency: Option<Idempotency>,
}

impl EnqueueRequest {
    pub(crate) fn new(tenant: TenantId, jobs: Vec<NewJob>, lanes: Vec<i64>) -> Self {
        Self { tenant, jobs, lanes, idempotency: None }
    }
}

pub(crate) struct EnqueueBatch {
    requests: Vec<EnqueueRequest>,
}

impl EnqueueBatch {
    /// For an operation that enqueues as part of something larger.
    pub(crate) fn one(request: EnqueueRequest) -> Self {
        Self { requests: vec![request] }
    }
}

impl Batch for EnqueueBatch {
    type Request = EnqueueRequest;
    type Reply = EnqueueReply;

    fn of(_: &Store, requests: Vec<EnqueueRequest>) -> Self {
        Self { requests }
    }

    fn jobs(request: &EnqueueRequest) -> usize {
        request.jobs.len()
    }

    fn committed(store: &Store, replies: &[EnqueueReply]) {
        let mut told: Option<(TenantId, &Name)> = None;
        for reply in replies {
            let EnqueueReply::Accepted(jobs) = reply else { continue };
            for job in jobs.iter().filter(|job| !job.existing) {
                if job.state == JobState::Scheduled {
                    store.hints().wake(&Topic::Due);
                } else if told != Some((job.tenant, &job.queue)) {
                    store.hints().tell(Topic::Ready(job.tenant, job.queue.clone()));
                    told = Some((job.tenant, &job.queue));
                }
            }
        }
    }
}

/// A job on its way in: where it came from and what became of it.
struct Entry<'a> {
    request: usize,
    tenant: TenantId,
    job: &'a NewJob,
    lane: i64,
    id: JobId,
    run_at: Time,
    state: JobState,
}

impl Operation for EnqueueBatch {
    type Output = Vec<EnqueueReply>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EnqueueReply>, StoreError> {
        let now = tx.now();
        let count = self.requests.iter().map(|request| request.jobs.len()).sum();
        let mut ids = new_job_ids(now, count).into_iter();
        let mut entries: Vec<Entry<'_>> = Vec::with_capacity(count);
        for (number, request) in self.requests.iter().enumerate() {
            for (job, lane) in request.jobs.iter().zip(&request.lanes) {
                let run_at = job.run_at.unwrap_or(now);
                let state = if run_at > now { JobState::Scheduled } else { JobState::Queued };
                let id = ids.next().expect("one id per job");
                entries.push(Entry { request: number, tenant: request.tenant, job, lane: *lane, id, run_at, state });
            }
        }
        let mut replies = self.answer_used_keys(tx, &entries).await?;
        entries.retain(|entry| replies[entry.request].is_none());
        let taken = take_unique_keys(tx, &entries).await?;
        let mut changes = Changes::default();
        let made: Vec<&Entry<'_>> = entries.iter().filter(|entry| !taken.contains_key(&entry.id)).collect();
        insert_jobs(tx, &made).await?;
        insert_tags(tx, &made).await?;
        for entry in &made {
            changes.add(entry.tenant, &entry.job.queue, entry.state, 1);
        }
        changes.write(tx).await?;
        let mut accepted: HashMap<usize, Vec<Accepted>> = HashMap::new();
        for entry in &entries {
            let answer = taken.get(&entry.id).cloned().unwrap_or_else(|| entry.accepted(now));
            accepted.entry(entry.request).or_default().push(answer);
        }
        self.remember_taken(tx, &accepted).await?;
        for (number, jobs) in accepted {
            replies[number] = Some(EnqueueReply::Accepted(jobs));
        }
        Ok(replies.into_iter().map(|reply| reply.unwrap_or(EnqueueReply::Accepted(Vec::new()))).collect())
    }
}

impl Entry<'_> {
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

/// What is kept of an answer, to give it again.
#[derive(Serialize, Deserialize)]
struct Remembered {
    id: Uuid,
    state: String,
    queue: String,
    kind: String,
    run_at: i64,
    created_at: i64,
}

impl Remembered {
    fn of(job: &Accepted) -> Self {
        Self {
            id: job.id.uuid(),
            state: job.state.to_string(),
            queue: job.queue.to_string(),
            kind: job.kind.to_string(),
            run_at: job.run_at.micros(),
            created_at: job.created_at.micros(),
        }
    }

    fn again(self, tenant: TenantId) -> Accepted {
        Accepted {
            id: JobId::new(self.id),
            tenant,
            state: JobState::parse(&self.state).unwrap_or(JobState::Queued),
            queue: Name::stored(&self.queue),
            kind: Name::stored(&self.kind),
            run_at: Time::from_micros(self.run_at),
            created_at: Time::from_micros(self.created_at),
            existing: true,
        }
    }
}

// A key older than a day is free again. PostgreSQL waits here for a transaction that uses the same key now.
const TAKE_KEY: Sql = Sql::new(
    &["insert into idempotency (tenant, key, body_hash, jobs, created_at) values ($1, $2, $3, $4, $5)
       on conflict (tenant, key) do update
           set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
           where idempotency.created_at <= $6
       returning key"],
    "insert into idempotency (tenant, key, body_hash, jobs, created_at) values ($1, $2, $3, $4, $5)
     on conflict (tenant, key) do update
         set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
         where idempotency.created_at <= $6
     returning key",
);
const USED_KEY: Sql = Sql::both(&["select body_hash, jobs from idempotency where tenant = $1 and key = $2"]);
const REMEMBER: Sql = Sql::both(&["update idempotency set jobs = $3 where tenant = $1 and key = $2"]);

impl EnqueueBatch {
    /// Answers for requests whose idempotency key was used before, here or in this very batch.
    async fn answer_used_keys(
        &self,
        tx: &mut Tx<'_>,
        entries: &[Entry<'_>],
    ) -> Result<Vec<Option<EnqueueReply>>, StoreError> {
        let mut replies: Vec<Option<EnqueueReply>> = self.requests.iter().map(|_| None).collect();
        // In key order, so that two nodes that use the same keys never wait for each other in a circle.
        let mut keyed: Vec<(usize, TenantId, &Idempotency)> = self
            .requests
            .iter()
            .enumerate()
            .filter_map(|(number, request)| request.idempotency.as_ref().map(|key| (number, request.tenant, key)))
            .collect();
        keyed.sort_by(|a, b| (a.1, &a.2.key, a.0).cmp(&(b.1, &b.2.key, b.0)));
        let now = tx.now();
        for (number, tenant, idempotency) in keyed {
            let jobs: Vec<Remembered> = entries
                .iter()
                .filter(|entry| entry.request == number)
                .map(|entry| Remembered::of(&entry.accepted(now)))
                .collect();
            let jobs = to_json(&jobs);
            let params = [
                Param::Int(tenant.0),
                Param::Text(&idempotency.key),
                Param::Blob(&idempotency.body_hash),
                Param::Json(&jobs),
                Param::Time(now),
                Param::Time(now.plus_s(-IDEMPOTENCY_KEEP_S)),
            ];
            if tx.query_opt(&TAKE_KEY, &params).await?.is_some() {
                continue;
            }
            let row = tx.query_opt(&USED_KEY, &params[..2]).await?;
            let row = row.ok_or_else(|| StoreError::unavailable("an idempotency key was pruned in between"))?;
            let same = row.opt_blob(0)?.as_deref() == Some(&idempotency.body_hash[..]);
            replies[number] = Some(if same {
                let jobs: Vec<Remembered> = from_json(&row.text(1)?)?;
                EnqueueReply::Accepted(jobs.into_iter().map(|job| job.again(tenant)).collect())
            } else {
                EnqueueReply::KeyReused
            });
        }
        Ok(replies)
    }

    /// A keyed request that met a unique key remembers the job it was given.
    async fn remember_taken(
        &self,
        tx: &mut Tx<'_>,
        accepted: &HashMap<usize, Vec<Accepted>>,
    ) -> Result<(), StoreError> {
        for (number, jobs) in accepted {
            let request = &self.requests[*number];
            let Some(idempotency) = &request.idempotency else { continue };
            if jobs.iter().any(|job| job.existing) {
                let jobs = to_json(&jobs.iter().map(Remembered::of).collect::<Vec<_>>());
                let params = [Param::Int(request.tenant.0), Param::Text(&idempotency.key), Param::Json(&jobs)];
                tx.execute(&REMEMBER, &params).await?;
            }
        }
        Ok(())
    }
}

const TAKE_UNIQUE: Sql = Sql::both(&["insert into unique_keys (tenant, queue, key, job, until)
     values ($1, $2, $3, $4, $5)
     on conflict (tenant, queue, key) do update set job = excluded.job, until = excluded.until
         where unique_keys.until <= $6
     returning job"]);
const UNIQUE_JOB: Sql =
    Sql::both(&["select u.job, coalesce(j.state, e.state), coalesce(j.run_at, e.run_at, u.until, $4),
         coalesce(j.created_at, e.created_at, u.until, $4), l.kind
     from unique_keys u left join jobs j on j.id = u.job left join ended e on e.id = u.job
         left join lanes l on l.lane = coalesce(j.lane, e.lane)
     where u.tenant = $1 and u.queue = $2 and u.key = $3"]);

/// Jobs whose unique key another job has, with that job.
async fn take_unique_keys(tx: &mut Tx<'_>, entries: &[Entry<'_>]) -> Result<HashMap<JobId, Accepted>, StoreError> {
    let mut keyed: Vec<(&Entry<'_>, &Unique)> =
        entries.iter().filter_map(|entry| entry.job.unique().map(|unique| (entry, unique))).collect();
    keyed.sort_by(|(a, x), (b, y)| (a.tenant, &a.job.queue, &x.key, a.id).cmp(&(b.tenant, &b.job.queue, &y.key, b.id)));
    let now = tx.now();
    let mut taken = HashMap::new();
    let mut made_here: HashMap<JobId, Accepted> = HashMap::new();
    for (entry, unique) in keyed {
        let params = [
            Param::Int(entry.tenant.0),
            Param::Text(entry.job.queue.as_str()),
            Param::Text(&unique.key),
            Param::from(entry.id),
            Param::time(unique.for_s.map(|seconds| now.plus_s(seconds))),
            Param::Time(now),
        ];
        if tx.query_opt(&TAKE_UNIQUE, &params).await?.is_some() {
            made_here.insert(entry.id, entry.accepted(now));
            continue;
        }
        let find = [params[0], params[1], params[2], Param::Time(now)];
        let row = tx.query_opt(&UNIQUE_JOB, &find).await?;
        let row = row.ok_or_else(|| StoreError::unavailable("a unique key was freed in between"))?;
        let owner = made_here.get(&row.job(0)?).cloned();
        let owner = match owner {
            Some(owner) => owner,
            None => existing(&row, entry)?,
        };
        taken.insert(entry.id, Accepted { existing: true, ..owner });
    }
    Ok(taken)
}

fn existing(row: &Row, entry: &Entry<'_>) -> Result<Accepted, StoreError> {
    let state = row.opt_text(1)?.and_then(|state| JobState::parse(&state));
    Ok(Accepted {
        id: row.job(0)?,
        tenant: entry.tenant,
        // A key may outlive the pruned job that took it.
        state: state.unwrap_or(JobState::Succeeded),
        queue: entry.job.queue.clone(),
        kind: row.opt_text(4)?.map_or_else(|| entry.job.kind.clone(), |kind| Name::stored(&kind)),
        run_at: row.time(2)?,
        created_at: row.time(3)?,
        existing: true,
    })
}

const INSERT_PLAIN: Sql = Sql::new(
    &["insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10)"],
    "insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal, created_at, updated_at)
     select n.*, $10, $10 from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::timestamptz[],
         $6::timestamptz[], $7::bigint[], $8::json[], $9::text[]) n",
);
const INSERT_FULL: Sql = Sql::new(
    &["insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal,
           subject, process, run, unique_key, unique_until, concurrency_key, retry, timeout_s, tags, webhook, parent,
           triggered_by, depth, created_at, updated_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
           $23, $23)"],
    "insert into jobs (id, tenant, lane, state, run_at, due_at, max_attempts, payload, principal,
         subject, process, run, unique_key, unique_until, concurrency_key, retry, timeout_s, tags, webhook, parent,
         triggered_by, depth, created_at, updated_at)
     select n.*, $23, $23 from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::timestamptz[],
         $6::timestamptz[], $7::bigint[], $8::json[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
         $14::timestamptz[], $15::text[], $16::json[], $17::bigint[], $18::json[], $19::json[], $20::uuid[],
         $21::text[], $22::bigint[]) n",
);

async fn insert_jobs(tx: &mut Tx<'_>, entries: &[&Entry<'_>]) -> Result<(), StoreError> {
    let now = Param::Time(tx.now());
    let (plain, full): (Vec<&Entry<'_>>, Vec<&Entry<'_>>) =
        entries.iter().copied().partition(|entry| entry.job.extras.is_none());
    tx.execute_each(&INSERT_PLAIN, &plain_columns(&plain), &[now]).await?;
    if full.is_empty() {
        return Ok(());
    }
    let extras: Vec<&Extras> = full.iter().filter_map(|entry| entry.job.extras.as_deref()).collect();
    let stored: Vec<Stored> = extras.iter().map(|extras| Stored::of(extras)).collect();
    let until = |extras: &&Extras| extras.unique.as_ref().and_then(|unique| unique.for_s).map(|s| tx.now().plus_s(s));
    let mut columns = plain_columns(&full);
    columns.extend([
        Column::Text(extras.iter().map(|e| e.subject.as_ref().map(Label::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.process.as_ref().map(Name::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.run.as_ref().map(Label::as_str)).collect()),
        Column::Text(extras.iter().map(|e| e.unique.as_ref().map(|unique| unique.key.as_str())).collect()),
        Column::Time(extras.iter().map(until).collect()),
        Column::Text(extras.iter().map(|e| e.concurrency_key.as_ref().map(Label::as_str)).collect()),
        Column::Json(stored.iter().map(|s| s.retry.as_deref()).collect()),
        Column::Int(extras.iter().map(|e| e.timeout_s).collect()),
        Column::Json(stored.iter().map(|s| s.tags.as_deref()).collect()),
        Column::Json(extras.iter().map(|e| e.webhook.as_deref()).collect()),
        Column::Uuid(extras.iter().map(|e| e.parent.map(JobId::uuid)).collect()),
        Column::Text(extras.iter().map(|e| e.triggered_by.as_deref()).collect()),
        Column::ints(extras.iter().map(|e| i64::from(e.depth))),
    ]);
    tx.execute_each(&INSERT_FULL, &columns, &[now]).await.map(|_| ())
}

struct Stored {
    retry: Option<String>,
    tags: Option<String>,
}

impl Stored {
    fn of(extras: &Extras) -> Self {
        let tags: Vec<&str> = extras.tags.iter().map(Label::as_str).collect();
        Self { retry: extras.retry.map(retry_to_json), tags: (!tags.is_empty()).then(|| to_json(&tags)) }
    }
}

fn plain_columns<'a>(entries: &[&'a Entry<'a>]) -> Vec<Column<'a>> {
    let of = || entries.iter();
    vec![
        Column::jobs(of().map(|entry| entry.id)),
        Column::ints(of().map(|entry| entry.tenant.0)),
        Column::ints(of().map(|entry| entry.lane)),
        Column::texts(of().map(|entry| entry.state.as_str())),
        Column::Time(of().map(|entry| Some(entry.run_at)).collect()),
        Column::Time(of().map(|entry| (entry.state == JobState::Scheduled).then_some(entry.run_at)).collect()),
        Column::ints(of().map(|entry| i64::from(entry.job.max_attempts))),
        Column::Json(of().map(|entry| Some(&*entry.job.payload)).collect()),
        Column::texts(of().map(|entry| &*entry.job.principal)),
    ]
}

const INSERT_TAGS: Sql = Sql::new(
    &["insert into job_tags (tenant, tag, job) values ($1, $2, $3) on conflict do nothing"],
    "insert into job_tags (tenant, tag, job) select * from unnest($1::bigint[], $2::text[], $3::uuid[])
     on conflict do nothing",
);

async fn insert_tags(tx: &mut Tx<'_>, entries: &[&Entry<'_>]) -> Result<(), StoreError> {
    let tagged: Vec<(&Entry<'_>, &Label)> = entries
        .iter()
        .filter_map(|entry| entry.job.extras.as_deref().map(|extras| (*entry, extras)))
        .flat_map(|(entry, extras)| extras.tags.iter().map(move |tag| (entry, tag)))
        .collect();
    let columns = [
        Column::ints(tagged.iter().map(|(entry, _)| entry.tenant.0)),
        Column::texts(tagged.iter().map(|(_, tag)| tag.as_str())),
        Column::jobs(tagged.iter().map(|(entry, _)| entry.id)),
    ];
    tx.execute_each(&INSERT_TAGS, &columns, &[]).await.map(|_| ())
}

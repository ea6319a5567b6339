//! Records operations in the journals of claimed jobs, many requests in one commit. The HTTP API and embedded workers
//! call `Store::journal`.
//!
//! A write is fenced like an outcome: it applies only with the epoch of the current claim. The first record of a key
//! counts, and a repeated one gets the recorded answer. A request that a limit or the rules refuse changes nothing.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use domain::limits::{JOURNAL_ATTEMPT_MESSAGE_BYTES, JOURNAL_ATTEMPTS, JOURNAL_PAGE_BYTES};
use domain::triggers::trigger::Source;
use domain::workflows::journal::{JournalError, has_drifted};
use domain::{Epoch, JobError, JobId, JournalOp, Label, TenantId, Time, WorkerId};

use super::children::{self, NewChild};
use super::{AskedApproval, AwaitedEvent, FailedStepAttempt, JournalEntry, JournalHead};
use crate::db::codec::{error_from_json, error_to_json, from_json, storable_error, to_json};
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::notifier::Topic;
use crate::db::tx::{Column, Operation, Param, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::queue::lanes::Lane;
use crate::queue::settle::SettleStatus;
use crate::queue::traces::traces;
use crate::queue::workers;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::{Event, emit};

/// Operations of one claimed job.
#[derive(Clone, Debug)]
pub struct JournalWrite {
    pub job: JobId,
    pub epoch: Epoch,
    /// A step with another digest than the recorded one is refused.
    pub strict: bool,
    pub ops: Vec<NewJournalOperation>,
}

#[derive(Clone, Debug)]
pub struct NewJournalOperation {
    pub key: Label,
    pub hash: Option<String>,
    pub input: OperationInput,
}

#[derive(Clone, Debug)]
pub enum OperationInput {
    /// A finished step, or a failed attempt of one.
    Step { outcome: StepOutcome, attempt: Option<i64>, duration_ms: Option<i64> },
    /// An event to publish in the commit of the write.
    Publish { topic: Label, data: Box<str> },
    /// Resolves when the database clock reaches the end.
    Sleep { until: SleepEnd },
    /// Resolves with the data of a signal event, or with the error `timeout`.
    Event {
        name: Label,
        /// Members of the data that must have these values.
        matches: BTreeMap<String, serde_json::Value>,
        timeout_ms: Option<i64>,
        /// Events that were sent before are ignored.
        since_now: bool,
    },
    /// Resolves with the answer of a person, or with the error `timeout`.
    Approval {
        title: String,
        detail: Option<String>,
        /// The right that the approver needs.
        right: String,
        timeout_ms: Option<i64>,
    },
    /// Starts jobs, and resolves when all of them have ended.
    Child {
        jobs: Vec<NewJob>,
        /// The lanes of the jobs. `Store::journal` sets them.
        lanes: Vec<i64>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepEnd {
    At(Time),
    After { delay_ms: i64 },
}

#[derive(Clone, Debug)]
pub enum StepOutcome {
    /// JSON.
    Result(Box<str>),
    Error(JobError),
}

/// The answer to one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEntry {
    pub entry: JournalEntry,
    /// The key was resolved before. Otherwise the caller knows the result, and `entry` omits it.
    pub existing: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JournalResult {
    pub status: SettleStatus,
    /// One entry per operation, in order. Empty unless the write applied.
    pub entries: Vec<RecordedEntry>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Journaled {
    /// One result per write, in order.
    Results(Vec<JournalResult>),
    /// The journal refuses an operation. Nothing was recorded.
    Refused {
        write: usize,
        op: usize,
        error: JournalError,
    },
    NoSuchWorker,
}

impl NewJournalOperation {
    fn op(&self) -> JournalOp {
        match self.input {
            OperationInput::Step { .. } => JournalOp::Step,
            OperationInput::Publish { .. } => JournalOp::Publish,
            OperationInput::Sleep { .. } => JournalOp::Sleep,
            OperationInput::Event { .. } => JournalOp::Event,
            OperationInput::Approval { .. } => JournalOp::Approval,
            OperationInput::Child { .. } => JournalOp::Child,
        }
    }

    fn bytes(&self) -> usize {
        self.key.as_str().len()
            + match &self.input {
                OperationInput::Step { outcome: StepOutcome::Result(result), .. } => result.len(),
                OperationInput::Step { outcome: StepOutcome::Error(error), .. } => error.message.len(),
                OperationInput::Publish { data, .. } => data.len(),
                OperationInput::Child { jobs, .. } => jobs.iter().map(|job| job.payload.len()).sum(),
                OperationInput::Sleep { .. } | OperationInput::Event { .. } | OperationInput::Approval { .. } => 0,
            }
    }

    fn jobs(&self) -> usize {
        match &self.input {
            OperationInput::Child { jobs, .. } => jobs.len(),
            _ => 0,
        }
    }

    /// What the open entry waits for, as JSON.
    fn waits_for(&self) -> Option<String> {
        match &self.input {
            OperationInput::Event { name, matches, .. } => {
                Some(to_json(&AwaitedEvent { name: name.to_string(), matches: matches.clone() }))
            }
            OperationInput::Approval { title, detail, right, .. } => {
                Some(to_json(&AskedApproval { title: title.clone(), detail: detail.clone(), right: right.clone() }))
            }
            _ => None,
        }
    }

    /// When the open entry resolves by itself.
    fn due_at(&self, now: Time) -> Option<Time> {
        match &self.input {
            OperationInput::Sleep { until: SleepEnd::At(at) } => Some(*at),
            OperationInput::Sleep { until: SleepEnd::After { delay_ms } } => Some(now.plus_ms(*delay_ms)),
            OperationInput::Event { timeout_ms, .. } | OperationInput::Approval { timeout_ms, .. } => {
                timeout_ms.map(|timeout_ms| now.plus_ms(timeout_ms))
            }
            _ => None,
        }
    }
}

impl Store {
    /// Records operations of jobs that the worker holds and returns after the commit.
    pub async fn journal(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        writes: Vec<JournalWrite>,
    ) -> Result<Journaled, StoreError> {
        self.journal_of(tenant, tenant, worker, writes).await
    }

    /// Records operations of jobs of another tenant, `of`, for a worker of `tenant` that serves it.
    pub(crate) async fn journal_of(
        &self,
        of: TenantId,
        tenant: TenantId,
        worker: WorkerId,
        mut writes: Vec<JournalWrite>,
    ) -> Result<Journaled, StoreError> {
        for op in writes.iter_mut().flat_map(|write| &mut write.ops) {
            if let OperationInput::Child { jobs, lanes } = &mut op.input {
                self.seal_webhooks(of, jobs).await?;
                let of_jobs: Vec<Lane> = jobs.iter().map(|job| job.lane(of)).collect();
                *lanes = self.lane_ids(&of_jobs).await?;
            }
        }
        Ok(self.shared_journal(JournalRequest { tenant, of, worker, writes }).await?.journaled)
    }
}

pub(crate) struct JournalRequest {
    /// The tenant of the worker.
    tenant: TenantId,
    /// The tenant of the jobs.
    of: TenantId,
    worker: WorkerId,
    writes: Vec<JournalWrite>,
}

pub(crate) struct JournalReply {
    journaled: Journaled,
    /// The effects of the whole commit, in its first reply.
    effects: JournalEffects,
}

/// What this node does after the commit.
#[derive(Default)]
struct JournalEffects {
    /// The outbox has new rows.
    has_outbox_rows: bool,
    /// An entry resolves by itself, perhaps earlier than all others.
    has_timers: bool,
    /// The started children.
    children: Vec<Accepted>,
}

pub(crate) struct JournalBatch {
    requests: Vec<JournalRequest>,
    triggers: TriggerCache,
}

impl Batch for JournalBatch {
    type Request = JournalRequest;
    type Reply = JournalReply;

    fn batcher(store: &Store) -> &GroupCommit<Self> {
        &store.group_commits().journal
    }

    fn of(store: &Store, requests: Vec<JournalRequest>) -> Self {
        Self { requests, triggers: store.triggers_cache().clone() }
    }

    fn size(request: &JournalRequest) -> RequestSize {
        let ops = || request.writes.iter().flat_map(|write| &write.ops);
        RequestSize { jobs: ops().map(|op| 1 + op.jobs()).sum(), bytes: ops().map(NewJournalOperation::bytes).sum() }
    }

    fn tenant_of(request: &JournalRequest) -> TenantId {
        request.of
    }

    fn committed(store: &Store, replies: &[JournalReply]) {
        let Some(JournalReply { effects, .. }) = replies.first() else { return };
        if effects.has_outbox_rows {
            store.notifier().notify(Topic::Outbox);
        }
        if effects.has_timers {
            store.notifier().notify_local(&Topic::Due);
        }
        if !effects.children.is_empty() {
            EnqueueBatch::committed(store, &[EnqueueReply::Accepted(effects.children.clone())]);
        }
    }
}

// The lock orders writes to one journal, and a write with the claim and the end of its job.
const LOCK: Sql = Sql::new(
    &["select id, tenant, epoch, worker, depth, has_journal from jobs where id = $1"],
    "select id, tenant, epoch, worker, depth, has_journal from jobs where id = any($1::uuid[])
     order by id for no key update",
);
const HEADS: Sql = Sql::new(
    &["select job, entries, resolved, bytes, drift from journals where job = $1"],
    "select job, entries, resolved, bytes, drift from journals where job = any($1::uuid[])",
);
// The results of resolved entries are read later, and only for the answers.
const LOOK_UP: Sql = Sql::new(
    &["select job, position, key, op, seq, hash, attempt, case when seq is null then attempts end as attempts, bytes,
           duration_ms, created_at, resolved_at, due_at
       from journal_entries where job = $1 and key = $2"],
    "select e.job, e.position, e.key, e.op, e.seq, e.hash, e.attempt, case when e.seq is null then e.attempts end as attempts,
         e.bytes, e.duration_ms, e.created_at, e.resolved_at, e.due_at
     from unnest($1::uuid[], $2::text[]) as n(job, key) join journal_entries e on e.job = n.job and e.key = n.key",
);
const RESULTS: Sql = Sql::new(
    &["select job, key, attempts, result, error from journal_entries where job = $1 and position = $2"],
    "select e.job, e.key, e.attempts, e.result, e.error
     from unnest($1::uuid[], $2::bigint[]) as n(job, position)
     join journal_entries e on e.job = n.job and e.position = n.position",
);
const ENDED: Sql = Sql::new(
    &["select id, tenant, epoch from ended where id = $1"],
    "select id, tenant, epoch from ended where id = any($1::uuid[])",
);
const INSERT: Sql = Sql::new(
    &["insert or fail into journal_entries (job, position, tenant, key, op, seq, epoch, hash, attempt, attempts, result,
           error, bytes, duration_ms, resolved_at, input, due_at, pending, created_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"],
    "insert into journal_entries (job, position, tenant, key, op, seq, epoch, hash, attempt, attempts, result, error,
         bytes, duration_ms, resolved_at, input, due_at, pending, created_at)
     select n.*, $19 from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::bigint[],
         $7::bigint[], $8::text[], $9::bigint[], $10::json[], $11::json[], $12::json[], $13::bigint[], $14::bigint[],
         $15::timestamptz[], $16::json[], $17::timestamptz[], $18::bigint[]) n",
);
const UPDATE: Sql = Sql::new(
    &["update journal_entries set seq = $3, hash = $4, attempt = $5, attempts = $6, result = $7, error = $8, bytes = $9,
           duration_ms = $10, resolved_at = $11
       where job = $1 and position = $2"],
    "update journal_entries e set seq = n.seq, hash = n.hash, attempt = n.attempt, attempts = n.attempts,
         result = n.result, error = n.error, bytes = n.bytes, duration_ms = n.duration_ms, resolved_at = n.resolved_at
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::bigint[], $6::json[], $7::json[], $8::json[],
         $9::bigint[], $10::bigint[], $11::timestamptz[])
         as n(job, position, seq, hash, attempt, attempts, result, error, bytes, duration_ms, resolved_at)
     where e.job = n.job and e.position = n.position",
);
const PUT_HEAD: Sql = Sql::new(
    &["insert into journals (job, tenant, entries, resolved, bytes, drift) values ($1, $2, $3, $4, $5, $6)
       on conflict (job) do update set entries = excluded.entries, resolved = excluded.resolved, bytes = excluded.bytes,
           drift = excluded.drift"],
    "insert into journals (job, tenant, entries, resolved, bytes, drift)
     select n.* from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[]) n
     on conflict (job) do update set entries = excluded.entries, resolved = excluded.resolved, bytes = excluded.bytes,
         drift = excluded.drift",
);
pub(super) const MARK: Sql = Sql::new(
    &["update jobs set has_journal = 1 where id = $1"],
    "update jobs set has_journal = true where id = any($1::uuid[])",
);

const MAILBOX: Sql = Sql::new(
    &["select job, number, name, data from job_events where job = $1 and name = $2 and consumed_by is null
       order by number"],
    "select v.job, v.number, v.name, v.data from unnest($1::uuid[], $2::text[]) as n(job, name)
     join job_events v on v.job = n.job and v.name = n.name and v.consumed_by is null order by v.job, v.number",
);
const CONSUME: Sql = Sql::new(
    &["update job_events set consumed_by = $3 where job = $1 and number = $2"],
    "update job_events v set consumed_by = n.key from unnest($1::uuid[], $2::bigint[], $3::text[]) as n(job, number, key)
     where v.job = n.job and v.number = n.number",
);

/// The row of a live job.
struct LockedJob {
    tenant: TenantId,
    epoch: Epoch,
    worker: Option<WorkerId>,
    depth: i32,
    has_journal: bool,
}

/// The journal of a job, with the entries that the requests name.
#[derive(Default)]
struct OpenJournal {
    head: JournalHead,
    is_changed: bool,
    entries: HashMap<Label, OpenEntry>,
    /// Events that no operation has got, with the names that the requests wait for.
    mailbox: Vec<KeptEvent>,
}

/// An event that was sent before an operation waited for it.
struct KeptEvent {
    number: i64,
    name: String,
    data: String,
    /// The operation of this commit that gets it.
    consumed_by: Option<Label>,
}

#[derive(Clone)]
struct OpenEntry {
    entry: JournalEntry,
    epoch: Epoch,
    /// Number of children of a new entry.
    pending: Option<i64>,
    is_stored: bool,
    is_changed: bool,
}

impl OpenEntry {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let op = row.text("op")?;
        let entry = JournalEntry {
            key: Label::stored(&row.text("key")?),
            op: JournalOp::parse(&op).ok_or_else(|| StoreError::unexpected(format!("operation {op}")))?,
            position: row.int("position")?,
            seq: row.opt_int("seq")?,
            hash: row.opt_text("hash")?,
            attempt: row.int("attempt")?,
            attempts: row.opt_text("attempts")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default(),
            result: None,
            error: None,
            bytes: row.int("bytes")?,
            duration_ms: row.opt_int("duration_ms")?,
            created_at: row.time("created_at")?,
            resolved_at: row.opt_time("resolved_at")?,
            input: None,
            due_at: row.opt_time("due_at")?,
        };
        Ok(Self { entry, epoch: Epoch::default(), pending: None, is_stored: true, is_changed: false })
    }
}

/// The state of a journal and of one entry before an operation.
struct Undo {
    job: JobId,
    head: JournalHead,
    was_changed: bool,
    key: Label,
    entry: Option<OpenEntry>,
}

impl OpenJournal {
    /// Records an operation. Returns whether its key was resolved before, and the event to publish.
    fn record(
        &mut self,
        new: &NewJournalOperation,
        (epoch, strict): (Epoch, bool),
        now: Time,
        event: impl FnOnce(&Label, &str) -> Event,
    ) -> Result<(bool, Option<Event>), JournalError> {
        let open = match self.entries.entry(new.key.clone()) {
            Entry::Occupied(open) => {
                let open = open.into_mut();
                let (recorded, met) = (open.entry.op, new.op());
                if recorded != met {
                    return Err(JournalError::OtherOperation { recorded, met });
                }
                if has_drifted(open.entry.hash.as_deref(), new.hash.as_deref()) {
                    if strict {
                        let of = |hash: &Option<String>| hash.clone().unwrap_or_default();
                        return Err(JournalError::Drift { recorded: of(&open.entry.hash), met: of(&new.hash) });
                    }
                    self.is_changed |= self.head.drift.is_none();
                    self.head.drift.get_or_insert_with(|| new.key.to_string());
                }
                if open.entry.seq.is_some() {
                    return Ok((true, None));
                }
                // Only a step has several records. Any other open operation waits for what resolves it.
                if met != JournalOp::Step {
                    return Ok((false, None));
                }
                open
            }
            Entry::Vacant(vacant) => {
                let bytes = new.key.as_str().len() as i64;
                self.head.size = self.head.size.with(1, bytes)?;
                let entry = JournalEntry {
                    key: new.key.clone(),
                    op: new.op(),
                    position: self.head.size.entries,
                    seq: None,
                    hash: new.hash.clone(),
                    attempt: 0,
                    attempts: Vec::new(),
                    result: None,
                    error: None,
                    bytes,
                    duration_ms: None,
                    created_at: now,
                    resolved_at: None,
                    input: new.waits_for(),
                    due_at: new.due_at(now),
                };
                vacant.insert(OpenEntry { entry, epoch, pending: None, is_stored: false, is_changed: true })
            }
        };
        let before = open.entry.bytes;
        let mut published = None;
        match &new.input {
            OperationInput::Step { outcome, attempt, duration_ms } => {
                let attempt = attempt.unwrap_or(open.entry.attempt + 1);
                match outcome {
                    StepOutcome::Error(error) if error.retryable => {
                        // A repeated request reports an attempt that is recorded already.
                        if attempt <= open.entry.attempt {
                            return Ok((false, None));
                        }
                        open.entry.add_attempt(attempt, error, now);
                    }
                    StepOutcome::Error(error) => {
                        open.entry.error = Some(storable_error(error));
                        open.entry.bytes += error_to_json(error).len() as i64;
                    }
                    StepOutcome::Result(result) => {
                        open.entry.result = Some(result.to_string());
                        open.entry.bytes += result.len() as i64;
                    }
                }
                open.entry.attempt = open.entry.attempt.max(attempt);
                open.entry.duration_ms = *duration_ms;
            }
            OperationInput::Publish { topic, data } => {
                let event = event(topic, data);
                let result = to_json(&event.id.to_string());
                open.entry.attempt = 1;
                open.entry.bytes += result.len() as i64;
                open.entry.result = Some(result);
                published = Some(event);
            }
            OperationInput::Sleep { .. } => {
                if open.entry.due_at.is_some_and(|due_at| due_at <= now) {
                    open.entry.result = Some("null".into());
                }
            }
            OperationInput::Event { since_now, .. } => {
                let waits_for = open.entry.input.as_deref().map(from_json::<AwaitedEvent>);
                let kept = self.mailbox.iter_mut().filter(|_| !since_now).find(|kept| {
                    let is_match = |awaited: &AwaitedEvent| awaited.is_matched_by(&kept.name, &kept.data);
                    kept.consumed_by.is_none() && waits_for.as_ref().is_some_and(|w| w.as_ref().is_ok_and(is_match))
                });
                if let Some(kept) = kept {
                    kept.consumed_by = Some(new.key.clone());
                    open.entry.bytes += kept.data.len() as i64;
                    open.entry.result = Some(kept.data.clone());
                }
            }
            OperationInput::Approval { .. } => {}
            OperationInput::Child { jobs, .. } => open.pending = Some(jobs.len() as i64),
        }
        self.head.size = self.head.size.with(0, open.entry.bytes - before)?;
        if open.entry.result.is_some() || open.entry.error.is_some() {
            self.head.resolved += 1;
            open.entry.seq = Some(self.head.resolved);
            open.entry.resolved_at = Some(now);
            open.entry.due_at = None;
            open.entry.attempt = open.entry.attempt.max(1);
        }
        open.is_changed = true;
        self.is_changed = true;
        Ok((false, published))
    }
}

impl JournalEntry {
    /// Adds a failed attempt and drops the oldest of too many.
    fn add_attempt(&mut self, attempt: i64, error: &JobError, now: Time) {
        let JobError { code, mut message, .. } = storable_error(error);
        message.truncate(message.floor_char_boundary(JOURNAL_ATTEMPT_MESSAGE_BYTES));
        let before = self.attempts_json().map_or(0, |json| json.len());
        self.attempts.push(FailedStepAttempt { attempt, at: now.micros(), code, message });
        let excess = self.attempts.len().saturating_sub(JOURNAL_ATTEMPTS);
        self.attempts.drain(..excess);
        self.bytes += self.attempts_json().map_or(0, |json| json.len()) as i64 - before as i64;
    }

    fn attempts_json(&self) -> Option<String> {
        (!self.attempts.is_empty()).then(|| to_json(&self.attempts))
    }
}

impl Operation for JournalBatch {
    type Output = Vec<JournalReply>;

    fn tenants(&self) -> Vec<TenantId> {
        self.requests.iter().flat_map(|request| [request.tenant, request.of]).collect()
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        let jobs = self.jobs();
        vec![
            workers::prefetch_workers(&self.workers()),
            Prefetch { sql: LOCK, columns: vec![Column::jobs(jobs.iter().copied())], params: Vec::new() },
            Prefetch { sql: HEADS, columns: vec![Column::jobs(jobs)], params: Vec::new() },
            Prefetch { sql: LOOK_UP, columns: self.keys(), params: Vec::new() },
        ]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JournalReply>, StoreError> {
        let living = self.load_workers(tx).await?;
        let jobs = self.jobs();
        let locked = lock(tx, &jobs).await?;
        let mut journals = self.load_journals(tx, &jobs).await?;
        let missing: Vec<JobId> = jobs.into_iter().filter(|job| !locked.contains_key(job)).collect();
        let ended = load_ended(tx, missing).await?;
        let mut replies = Vec::with_capacity(self.requests.len());
        let mut started = Started::default();
        for request in &self.requests {
            replies.push(match living.get(&(request.worker, request.tenant)) {
                None => Journaled::NoSuchWorker,
                Some(is_alive) => {
                    let status = |write: &JournalWrite| match is_alive {
                        true => request.status(write, &locked, &ended),
                        false => SettleStatus::ClaimLost,
                    };
                    let statuses: Vec<SettleStatus> = request.writes.iter().map(status).collect();
                    request.record(tx.now(), &statuses, &locked, &mut journals, &mut started)
                }
            });
        }
        add_results(tx, &self.requests, &mut replies).await?;
        write(tx, &locked, &journals).await?;
        let effects = JournalEffects {
            has_outbox_rows: self.publish(tx, &started.events).await?,
            has_timers: journals.values().flat_map(|journal| journal.entries.values()).any(OpenEntry::is_new_timer),
            children: start_children(tx, &journals, &started.children).await?,
        };
        let mut replies: Vec<JournalReply> = replies
            .into_iter()
            .map(|journaled| JournalReply { journaled, effects: JournalEffects::default() })
            .collect();
        if let Some(first) = replies.first_mut() {
            first.effects = effects;
        }
        Ok(replies)
    }
}

/// What the recorded operations of a commit start.
#[derive(Default)]
struct Started<'a> {
    events: Vec<Event>,
    children: Vec<StartedChildren<'a>>,
}

/// The jobs of one entry.
struct StartedChildren<'a> {
    parent: JobId,
    tenant: TenantId,
    depth: i32,
    key: &'a Label,
    jobs: &'a [NewJob],
    lanes: &'a [i64],
}

impl OpenEntry {
    fn is_new_timer(&self) -> bool {
        !self.is_stored && self.entry.due_at.is_some()
    }
}

/// Enqueues the children of new entries.
async fn start_children(
    tx: &mut Tx<'_>,
    journals: &HashMap<JobId, OpenJournal>,
    started: &[StartedChildren<'_>],
) -> Result<Vec<Accepted>, StoreError> {
    if started.is_empty() {
        return Ok(Vec::new());
    }
    let traces = traces(tx, started.iter().map(|started| started.parent)).await?;
    let position = |started: &StartedChildren<'_>| journals[&started.parent].entries[started.key].entry.position;
    let child = |started: &StartedChildren<'_>, job: &NewJob| {
        let mut child = job.clone();
        let extras = child.extras.get_or_insert_default();
        extras.parent = Some(started.parent);
        extras.depth = extras.depth.max(started.depth);
        extras.traceparent = extras.traceparent.take().or_else(|| traces.get(&started.parent).cloned());
        extras.triggered_by = Some(format!("{}{}:{}", children::ORIGIN, started.parent, position(started)));
        child
    };
    let request = |started: &StartedChildren<'_>| {
        let jobs = started.jobs.iter().map(|job| child(started, job)).collect();
        EnqueueRequest::new(started.tenant, jobs, started.lanes.to_vec())
    };
    let enqueue = EnqueueBatch::several(started.iter().map(request).collect());
    let (mut accepted, mut rows) = (Vec::new(), Vec::new());
    for (started, reply) in started.iter().zip(enqueue.run(tx).await?) {
        let EnqueueReply::Accepted(jobs) = reply else {
            return Err(StoreError::unexpected("children have no idempotency key"));
        };
        rows.extend(jobs.iter().zip(1..).map(|(job, number)| NewChild {
            child: job.id,
            tenant: started.tenant.0,
            job: started.parent,
            position: position(started),
            number,
        }));
        accepted.extend(jobs);
    }
    children::insert(tx, &rows).await?;
    Ok(accepted)
}

impl JournalBatch {
    fn workers(&self) -> Vec<WorkerId> {
        let mut ids: Vec<WorkerId> = self.requests.iter().map(|request| request.worker).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn jobs(&self) -> Vec<JobId> {
        let mut ids: Vec<JobId> =
            self.requests.iter().flat_map(|request| &request.writes).map(|write| write.job).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The jobs and keys of all operations.
    fn keys(&self) -> Vec<Column<'_>> {
        let writes = || self.requests.iter().flat_map(|request| &request.writes);
        let mut keys: Vec<(JobId, &str)> =
            writes().flat_map(|write| write.ops.iter().map(|op| (write.job, op.key.as_str()))).collect();
        keys.sort_unstable();
        keys.dedup();
        vec![Column::jobs(keys.iter().map(|(job, _)| *job)), Column::texts(keys.iter().map(|(_, key)| *key))]
    }

    /// Loads the workers and whether they are alive, and renews the leases of those that are.
    async fn load_workers(&self, tx: &mut Tx<'_>) -> Result<HashMap<(WorkerId, TenantId), bool>, StoreError> {
        let asking: HashSet<(WorkerId, TenantId)> =
            self.requests.iter().map(|request| (request.worker, request.tenant)).collect();
        let mut living = HashMap::new();
        let mut known = workers::load(tx, &self.workers()).await?;
        known.sort_by_key(|worker| worker.id);
        for worker in known.iter().filter(|worker| asking.contains(&(worker.id, worker.tenant))) {
            let is_alive = worker.is_alive(tx.now());
            living.insert((worker.id, worker.tenant), is_alive);
            if is_alive {
                worker.touch(tx).await?;
            }
        }
        Ok(living)
    }

    /// Writes the outbox rows of the events. Returns whether there are any.
    async fn publish(&self, tx: &mut Tx<'_>, events: &[Event]) -> Result<bool, StoreError> {
        if events.is_empty() {
            return Ok(false);
        }
        let listeners = self.triggers.current(tx).await?;
        Ok(emit(tx, &listeners, events).await? > 0)
    }

    /// The jobs and names of events that new operations may get from the mailbox.
    fn awaited(&self) -> Vec<Column<'_>> {
        let mut names: Vec<(JobId, &str)> = Vec::new();
        for write in self.requests.iter().flat_map(|request| &request.writes) {
            for op in &write.ops {
                if let OperationInput::Event { name, since_now: false, .. } = &op.input {
                    names.push((write.job, name.as_str()));
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        vec![Column::jobs(names.iter().map(|(job, _)| *job)), Column::texts(names.iter().map(|(_, name)| *name))]
    }

    async fn load_journals(&self, tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<HashMap<JobId, OpenJournal>, StoreError> {
        let mut journals: HashMap<JobId, OpenJournal> = HashMap::new();
        for row in tx.query_each(&HEADS, &[Column::jobs(jobs.iter().copied())], &[]).await? {
            journals.entry(row.job("job")?).or_default().head = JournalHead::read(&row)?;
        }
        for row in tx.query_each(&LOOK_UP, &self.keys(), &[]).await? {
            let open = OpenEntry::read(&row)?;
            journals.entry(row.job("job")?).or_default().entries.insert(open.entry.key.clone(), open);
        }
        for row in tx.query_each(&MAILBOX, &self.awaited(), &[]).await? {
            let (number, name, data) = (row.int("number")?, row.text("name")?, row.text("data")?);
            let kept = KeptEvent { number, name, data, consumed_by: None };
            journals.entry(row.job("job")?).or_default().mailbox.push(kept);
        }
        journals.values_mut().for_each(|journal| journal.mailbox.sort_by_key(|kept| kept.number));
        Ok(journals)
    }
}

async fn lock(tx: &mut Tx<'_>, jobs: &[JobId]) -> Result<HashMap<JobId, LockedJob>, StoreError> {
    let rows = tx.query_each(&LOCK, &[Column::jobs(jobs.iter().copied())], &[]).await?;
    let read = |row: &Row| {
        let job = LockedJob {
            tenant: TenantId(row.int("tenant")?),
            epoch: Epoch(row.int("epoch")?),
            worker: row.opt_uuid("worker")?.map(WorkerId::new),
            depth: row.int("depth")? as i32,
            has_journal: row.bool("has_journal")?,
        };
        Ok((row.job("id")?, job))
    };
    rows.iter().map(read).collect()
}

async fn load_ended(tx: &mut Tx<'_>, jobs: Vec<JobId>) -> Result<HashMap<JobId, (TenantId, Epoch)>, StoreError> {
    let rows = tx.query_each(&ENDED, &[Column::jobs(jobs)], &[]).await?;
    rows.iter().map(|row| Ok((row.job("id")?, (TenantId(row.int("tenant")?), Epoch(row.int("epoch")?))))).collect()
}

impl JournalRequest {
    /// Whether the claim that the write names still stands.
    fn status(
        &self,
        write: &JournalWrite,
        locked: &HashMap<JobId, LockedJob>,
        ended: &HashMap<JobId, (TenantId, Epoch)>,
    ) -> SettleStatus {
        match (locked.get(&write.job), ended.get(&write.job)) {
            (Some(job), _) if job.tenant != self.of => SettleStatus::NotFound,
            (Some(job), _) if job.worker == Some(self.worker) && job.epoch == write.epoch => SettleStatus::Applied,
            (Some(_), _) => SettleStatus::ClaimLost,
            (None, Some((tenant, epoch))) if *tenant == self.of => {
                if write.epoch >= *epoch {
                    SettleStatus::AlreadyEnded
                } else {
                    SettleStatus::ClaimLost
                }
            }
            _ => SettleStatus::NotFound,
        }
    }

    /// Records the operations of the request, or none of them.
    fn record<'a>(
        &'a self,
        now: Time,
        statuses: &[SettleStatus],
        locked: &HashMap<JobId, LockedJob>,
        journals: &mut HashMap<JobId, OpenJournal>,
        started: &mut Started<'a>,
    ) -> Journaled {
        let (events_before, children_before) = (started.events.len(), started.children.len());
        let mut undo: Vec<Undo> = Vec::new();
        let mut answer_bytes = 0;
        let mut results = Vec::with_capacity(self.writes.len());
        for (number, (write, status)) in self.writes.iter().zip(statuses).enumerate() {
            let mut entries = Vec::new();
            let ops = if *status == SettleStatus::Applied { write.ops.as_slice() } else { &[] };
            for (place, new) in ops.iter().enumerate() {
                let journal = journals.entry(write.job).or_default();
                undo.push(Undo {
                    job: write.job,
                    head: journal.head.clone(),
                    was_changed: journal.is_changed,
                    key: new.key.clone(),
                    entry: journal.entries.get(&new.key).cloned(),
                });
                let depth = locked[&write.job].depth;
                let event = |topic: &Label, data: &str| {
                    Event::new(now, self.of, Source::Pubsub, "publish", depth, data.to_owned())
                        .with("topic", topic.as_str())
                };
                let recorded = journal.record(new, (write.epoch, write.strict), now, event).and_then(|recorded| {
                    let open = &journal.entries[&new.key];
                    answer_bytes += if recorded.0 { open.entry.bytes } else { 0 };
                    match answer_bytes > JOURNAL_PAGE_BYTES {
                        true => Err(JournalError::AnswerTooLarge { max: JOURNAL_PAGE_BYTES }),
                        false => Ok(recorded),
                    }
                });
                match recorded {
                    Ok((existing, event)) => {
                        started.events.extend(event);
                        let is_new = undo.last().is_some_and(|undo| undo.entry.is_none());
                        if let (true, OperationInput::Child { jobs, lanes }) = (is_new, &new.input) {
                            let (parent, tenant) = (write.job, self.of);
                            started.children.push(StartedChildren {
                                parent,
                                tenant,
                                depth,
                                key: &new.key,
                                jobs,
                                lanes,
                            });
                        }
                        let open = &journal.entries[&new.key];
                        // A key that this commit resolved is not stored yet, so its answer is not read later.
                        let entry = match existing && open.is_changed {
                            true => open.entry.clone(),
                            false => open.entry.without_contents(),
                        };
                        entries.push(RecordedEntry { entry, existing });
                    }
                    Err(error) => {
                        started.events.truncate(events_before);
                        started.children.truncate(children_before);
                        undo.into_iter().rev().for_each(|undo| undo.run(journals));
                        return Journaled::Refused { write: number, op: place, error };
                    }
                }
            }
            results.push(JournalResult { status: *status, entries });
        }
        Journaled::Results(results)
    }
}

impl JournalEntry {
    /// A copy without the parts that may be large.
    fn without_contents(&self) -> Self {
        Self {
            key: self.key.clone(),
            op: self.op,
            position: self.position,
            seq: self.seq,
            hash: self.hash.clone(),
            attempt: self.attempt,
            attempts: Vec::new(),
            result: None,
            error: None,
            bytes: self.bytes,
            duration_ms: self.duration_ms,
            created_at: self.created_at,
            resolved_at: self.resolved_at,
            input: None,
            due_at: self.due_at,
        }
    }
}

impl Undo {
    fn run(self, journals: &mut HashMap<JobId, OpenJournal>) {
        let journal = journals.entry(self.job).or_default();
        journal.head = self.head;
        journal.is_changed = self.was_changed;
        if self.entry.as_ref().is_none_or(|open| open.entry.seq.is_none()) {
            let consumed = journal.mailbox.iter_mut().filter(|kept| kept.consumed_by.as_ref() == Some(&self.key));
            consumed.for_each(|kept| kept.consumed_by = None);
        }
        match self.entry {
            Some(entry) => drop(journal.entries.insert(self.key, entry)),
            None => drop(journal.entries.remove(&self.key)),
        }
    }
}

/// Adds the recorded results to the answers of operations whose keys were resolved before this commit.
async fn add_results(
    tx: &mut Tx<'_>,
    requests: &[JournalRequest],
    replies: &mut [Journaled],
) -> Result<(), StoreError> {
    let mut answers: BTreeMap<(JobId, i64), Vec<&mut JournalEntry>> = BTreeMap::new();
    for (request, reply) in requests.iter().zip(replies) {
        let Journaled::Results(results) = reply else { continue };
        for (write, result) in request.writes.iter().zip(results) {
            for recorded in result.entries.iter_mut().filter(|recorded| recorded.existing) {
                let entry = &mut recorded.entry;
                answers.entry((write.job, entry.position)).or_default().push(entry);
            }
        }
    }
    let columns =
        [Column::jobs(answers.keys().map(|(job, _)| *job)), Column::ints(answers.keys().map(|(_, place)| *place))];
    let rows = tx.query_each(&RESULTS, &columns, &[]).await?;
    let mut stored: HashMap<(JobId, String), Row> = HashMap::new();
    for row in rows {
        stored.insert((row.job("job")?, row.text("key")?), row);
    }
    for ((job, _), entries) in answers {
        for entry in entries {
            let Some(row) = stored.get(&(job, entry.key.to_string())) else { continue };
            if entry.result.is_some() || entry.error.is_some() {
                continue;
            }
            entry.result = row.opt_text("result")?;
            entry.error = row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?;
            entry.attempts = row.opt_text("attempts")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default();
        }
    }
    Ok(())
}

/// Writes the changed journals and entries.
async fn write(
    tx: &mut Tx<'_>,
    locked: &HashMap<JobId, LockedJob>,
    journals: &HashMap<JobId, OpenJournal>,
) -> Result<(), StoreError> {
    let mut changed: Vec<(JobId, &OpenJournal)> =
        journals.iter().filter(|(_, journal)| journal.is_changed).map(|(job, journal)| (*job, journal)).collect();
    changed.sort_by_key(|(job, _)| *job);
    let mut entries: Vec<(JobId, &OpenEntry)> = changed
        .iter()
        .flat_map(|(job, journal)| journal.entries.values().map(move |open| (*job, open)))
        .filter(|(_, open)| open.is_changed)
        .collect();
    entries.sort_by_key(|(job, open)| (*job, open.entry.position));
    let (updated, inserted): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(_, open)| open.is_stored);
    insert(tx, locked, &inserted).await?;
    update(tx, &updated).await?;
    let head = || changed.iter().map(|(_, journal)| &journal.head);
    let columns = [
        Column::jobs(changed.iter().map(|(job, _)| *job)),
        Column::ints(changed.iter().map(|(job, _)| locked[job].tenant.0)),
        Column::ints(head().map(|head| head.size.entries)),
        Column::ints(head().map(|head| head.resolved)),
        Column::ints(head().map(|head| head.size.bytes)),
        Column::Text(head().map(|head| head.drift.as_deref()).collect()),
    ];
    tx.defer(&PUT_HEAD, &columns, &[]).await?;
    let of_job = |(job, journal): &(JobId, &OpenJournal)| {
        let consumed = |kept: &KeptEvent| Some((kept.number, kept.consumed_by.clone()?));
        journal.mailbox.iter().filter_map(consumed).map(|(number, key)| (*job, number, key)).collect::<Vec<_>>()
    };
    let consumed: Vec<(JobId, i64, Label)> = changed.iter().flat_map(of_job).collect();
    let columns = [
        Column::jobs(consumed.iter().map(|(job, ..)| *job)),
        Column::ints(consumed.iter().map(|(_, number, _)| *number)),
        Column::texts(consumed.iter().map(|(.., key)| key.as_str())),
    ];
    tx.defer(&CONSUME, &columns, &[]).await?;
    let first = changed.iter().map(|(job, _)| *job).filter(|job| !locked[job].has_journal);
    tx.defer(&MARK, &[Column::jobs(first)], &[]).await
}

async fn insert(
    tx: &mut Tx<'_>,
    locked: &HashMap<JobId, LockedJob>,
    entries: &[(JobId, &OpenEntry)],
) -> Result<(), StoreError> {
    let of = || entries.iter().map(|(_, open)| &open.entry);
    let (attempts, errors) = (attempts_of(entries), errors_of(entries));
    let columns = [
        Column::jobs(entries.iter().map(|(job, _)| *job)),
        Column::ints(of().map(|entry| entry.position)),
        Column::ints(entries.iter().map(|(job, _)| locked[job].tenant.0)),
        Column::texts(of().map(|entry| entry.key.as_str())),
        Column::texts(of().map(|entry| entry.op.as_str())),
        Column::Int(of().map(|entry| entry.seq).collect()),
        Column::ints(entries.iter().map(|(_, open)| open.epoch.0)),
        Column::Text(of().map(|entry| entry.hash.as_deref()).collect()),
        Column::ints(of().map(|entry| entry.attempt)),
        Column::Json(attempts.iter().map(Option::as_deref).collect()),
        Column::Json(of().map(|entry| entry.result.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
        Column::ints(of().map(|entry| entry.bytes)),
        Column::Int(of().map(|entry| entry.duration_ms).collect()),
        Column::Time(of().map(|entry| entry.resolved_at).collect()),
        Column::Json(of().map(|entry| entry.input.as_deref()).collect()),
        Column::Time(of().map(|entry| entry.due_at).collect()),
        Column::Int(entries.iter().map(|(_, open)| open.pending).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.defer(&INSERT, &columns, &[now]).await
}

async fn update(tx: &mut Tx<'_>, entries: &[(JobId, &OpenEntry)]) -> Result<(), StoreError> {
    let of = || entries.iter().map(|(_, open)| &open.entry);
    let (attempts, errors) = (attempts_of(entries), errors_of(entries));
    let columns = [
        Column::jobs(entries.iter().map(|(job, _)| *job)),
        Column::ints(of().map(|entry| entry.position)),
        Column::Int(of().map(|entry| entry.seq).collect()),
        Column::Text(of().map(|entry| entry.hash.as_deref()).collect()),
        Column::ints(of().map(|entry| entry.attempt)),
        Column::Json(attempts.iter().map(Option::as_deref).collect()),
        Column::Json(of().map(|entry| entry.result.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
        Column::ints(of().map(|entry| entry.bytes)),
        Column::Int(of().map(|entry| entry.duration_ms).collect()),
        Column::Time(of().map(|entry| entry.resolved_at).collect()),
    ];
    tx.defer(&UPDATE, &columns, &[]).await
}

fn attempts_of(entries: &[(JobId, &OpenEntry)]) -> Vec<Option<String>> {
    entries.iter().map(|(_, open)| open.entry.attempts_json()).collect()
}

fn errors_of(entries: &[(JobId, &OpenEntry)]) -> Vec<Option<String>> {
    entries.iter().map(|(_, open)| open.entry.error.as_ref().map(error_to_json)).collect()
}

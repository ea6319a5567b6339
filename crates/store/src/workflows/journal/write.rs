//! Records operations in the journals of claimed jobs, many requests in one commit. The HTTP API and embedded workers
//! call `Store::journal`.
//!
//! A write is fenced like an outcome: it applies only with the epoch of the current claim. The first record of a key
//! counts, and a repeated one gets the recorded answer. A request that a limit or the rules refuse changes nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::limits::JOURNAL_PAGE_BYTES;
use domain::triggers::trigger::Source;
use domain::workflows::journal::JournalError;
use domain::{Epoch, JobId, JournalOp, Label, TenantId, Time, WorkerId};

use super::open_journal::{KeptEvent, OpenEntry, OpenJournal};
pub use super::operation::{
    JournalResult, JournalWrite, Journaled, NewJournalOperation, OperationInput, RecordedEntry, SleepEnd, StepOutcome,
};
use super::save::save;
use super::start_children::{StartedChildren, start_children};
use super::undo::Undo;
use super::{JournalEntry, JournalHead};
use crate::db::codec::{error_from_json, from_json};
use crate::db::group_commit::{Batch, GroupCommit, RequestSize};
use crate::db::notifier::Topic;
use crate::db::tx::{Column, Operation, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply};
use crate::queue::lanes::Lane;
use crate::queue::settle::SettleStatus;
use crate::queue::transition::load_ended;
use crate::queue::workers::living::{load_living, prefetch_living};
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::{Event, emit};

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
const MAILBOX: Sql = Sql::new(
    &["select job, number, name, data from job_events where job = $1 and name = $2 and consumed_by is null
       order by number"],
    "select v.job, v.number, v.name, v.data from unnest($1::uuid[], $2::text[]) as n(job, name)
     join job_events v on v.job = n.job and v.name = n.name and v.consumed_by is null order by v.job, v.number",
);
/// The row of a live job.
pub(super) struct LockedJob {
    pub(super) tenant: TenantId,
    epoch: Epoch,
    worker: Option<WorkerId>,
    depth: i32,
    pub(super) has_journal: bool,
}

impl Operation for JournalBatch {
    type Output = Vec<JournalReply>;

    fn tenants(&self) -> Vec<TenantId> {
        self.requests.iter().flat_map(|request| [request.tenant, request.of]).collect()
    }

    fn prefetch(&self) -> Vec<Prefetch<'_>> {
        let jobs = self.jobs();
        vec![
            prefetch_living(&self.asking()),
            Prefetch { sql: LOCK, columns: vec![Column::jobs(jobs.iter().copied())], params: Vec::new() },
            Prefetch { sql: HEADS, columns: vec![Column::jobs(jobs)], params: Vec::new() },
            Prefetch { sql: LOOK_UP, columns: self.keys(), params: Vec::new() },
        ]
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<JournalReply>, StoreError> {
        let living = load_living(tx, &self.asking()).await?;
        let jobs = self.jobs();
        let locked = lock(tx, &jobs).await?;
        let mut journals = self.load_journals(tx, &jobs).await?;
        let missing: Vec<JobId> = jobs.into_iter().filter(|job| !locked.contains_key(job)).collect();
        let ended = load_ended(tx, &missing).await?;
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
        save(tx, &locked, &journals).await?;
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

impl JournalBatch {
    /// The workers of the requests, with their tenants.
    fn asking(&self) -> HashSet<(WorkerId, TenantId)> {
        self.requests.iter().map(|request| (request.worker, request.tenant)).collect()
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

impl JournalRequest {
    /// Whether the claim that the write names still stands.
    fn status(
        &self,
        write: &JournalWrite,
        locked: &HashMap<JobId, LockedJob>,
        ended: &HashMap<JobId, (TenantId, Epoch)>,
    ) -> SettleStatus {
        match locked.get(&write.job) {
            Some(job) if job.tenant != self.of => SettleStatus::NotFound,
            Some(job) if job.worker == Some(self.worker) && job.epoch == write.epoch => SettleStatus::Applied,
            Some(_) => SettleStatus::ClaimLost,
            None => SettleStatus::of_ended(ended.get(&write.job), self.of, write.epoch),
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
                undo.push(Undo::before(journal, write.job, &new.key));
                let depth = locked[&write.job].depth;
                let event = |topic: &Label, data: &str| {
                    Event::new(now, self.of, Source::Pubsub, "publish", depth, data.to_owned())
                        .with("topic", topic.as_str())
                };
                let recorded = journal.record(new, (write.epoch, write.strict), now, event).and_then(|recorded| {
                    let open = &journal.entries[&new.key];
                    let is_known = !recorded.0 && new.op() == JournalOp::Step;
                    answer_bytes += if is_known { 0 } else { open.entry.bytes };
                    match answer_bytes > JOURNAL_PAGE_BYTES {
                        true => Err(JournalError::AnswerTooLarge { max: JOURNAL_PAGE_BYTES }),
                        false => Ok(recorded),
                    }
                });
                match recorded {
                    Ok((existing, event)) => {
                        started.events.extend(event);
                        let is_new = undo.last().is_some_and(Undo::is_new);
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
                            false if new.op() == JournalOp::Step => open.entry.without_contents(),
                            // The caller does not know the event that resolved its new wait.
                            false => {
                                JournalEntry { result: open.entry.result.clone(), ..open.entry.without_contents() }
                            }
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

//! Resolves open entries of journals and wakes the jobs that waited for them.
//!
//! Every change of a journal happens under the lock of the job's row. A suspend reads the journal under that lock, so a
//! wake-up that races it is either seen by the suspend or finds the job suspended. A wake-up changes only a job in the
//! state `waiting`, so a job wakes once.

use std::collections::BTreeMap;

use domain::limits::{CHILD_RESULT_BYTES, CHILD_RESULTS_BYTES, MAINTENANCE_ROWS};
use domain::{JobError, JobId, JournalOp, Time};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{JournalHead, Wake};
use crate::db::codec::{error_to_json, from_json, to_json};
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::store::Store;

/// What a pass of [`Store::resolve_waits`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolvedEntries {
    pub entries: usize,
    /// Milliseconds until the next open entry is due. `None`: no entry is.
    pub next_in_ms: Option<i64>,
}

impl Store {
    /// Resolves one batch of entries that are due, and of entries whose children have ended.
    pub async fn resolve_waits(&self) -> Result<ResolvedEntries, StoreError> {
        let (resolved, effects) = self.write(ResolveWaits { lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(resolved)
    }
}

/// The outcome of an open entry. The caller holds the lock of the job's row.
pub(crate) struct Resolution {
    pub(crate) job: JobId,
    pub(crate) position: i64,
    /// A result as JSON, or an error.
    pub(crate) outcome: Result<String, JobError>,
}

const HEADS: Sql = Sql::new(
    &["select job, entries, resolved, bytes, drift, wake_keys, wake_count from journals where job = $1"],
    "select job, entries, resolved, bytes, drift, wake_keys, wake_count from journals where job = any($1::uuid[])",
);
const RESOLVE: Sql = Sql::new(
    &["update journal_entries set seq = $3, result = $4, error = $5, bytes = bytes + $6, attempt = max(attempt, 1),
           due_at = null, pending = null, resolved_at = $7
       where job = $1 and position = $2 and seq is null"],
    "update journal_entries e set seq = n.seq, result = n.result, error = n.error, bytes = e.bytes + n.bytes,
         attempt = greatest(e.attempt, 1), due_at = null, pending = null, resolved_at = $7
     from unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::json[], $5::json[], $6::bigint[])
         as n(job, position, seq, result, error, bytes)
     where e.job = n.job and e.position = n.position and e.seq is null",
);
const PUT_HEADS: Sql = Sql::new(
    &["update journals set resolved = $2, bytes = $3 where job = $1"],
    "update journals h set resolved = n.resolved, bytes = n.bytes
     from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n(job, resolved, bytes) where h.job = n.job",
);
const DISARM: Sql = Sql::new(
    &["update journals set wake_keys = null, wake_count = null where job = $1"],
    "update journals set wake_keys = null, wake_count = null where job = any($1::uuid[])",
);
const ARM: Sql = Sql::both(&["update journals set wake_keys = $2, wake_count = $3 where job = $1"]);
const COUNT_RESOLVED: Sql = Sql::new(
    &["select count(*) as resolved from journal_entries e, json_each($2) k
       where e.job = $1 and e.key = k.value and e.seq is not null"],
    "select count(*) as resolved from journal_entries e join json_array_elements_text($2::json) k on e.key = k
     where e.job = $1 and e.seq is not null",
);

/// Records the outcomes of open entries, and wakes the jobs whose condition is now satisfied. The caller holds the locks
/// of the jobs' rows and has seen that the entries are open.
pub(crate) async fn resolve(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    resolutions: &[Resolution],
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if resolutions.is_empty() {
        return Ok(());
    }
    let mut jobs: Vec<JobId> = resolutions.iter().map(|resolution| resolution.job).collect();
    jobs.sort_unstable();
    jobs.dedup();
    let mut heads: BTreeMap<JobId, (JournalHead, Option<Wake>)> = BTreeMap::new();
    for row in tx.query_each(&HEADS, &[Column::jobs(jobs.iter().copied())], &[]).await? {
        heads.insert(row.job("job")?, (JournalHead::read(&row)?, Wake::read(&row)?));
    }
    let errors: Vec<Option<String>> =
        resolutions.iter().map(|resolution| resolution.outcome.as_ref().err().map(error_to_json)).collect();
    let (mut seqs, mut bytes) = (Vec::new(), Vec::new());
    for (resolution, error) in resolutions.iter().zip(&errors) {
        let lacks = || StoreError::unexpected(format!("job {} has entries without a journal", resolution.job));
        let (head, _) = heads.get_mut(&resolution.job).ok_or_else(lacks)?;
        let size = resolution.outcome.as_ref().map_or_else(|_| error.as_ref().map_or(0, String::len), String::len);
        head.resolved += 1;
        head.size.bytes += size as i64;
        seqs.push(head.resolved);
        bytes.push(size as i64);
    }
    let columns = [
        Column::jobs(resolutions.iter().map(|resolution| resolution.job)),
        Column::ints(resolutions.iter().map(|resolution| resolution.position)),
        Column::ints(seqs),
        Column::Json(resolutions.iter().map(|resolution| resolution.outcome.as_deref().ok()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
        Column::ints(bytes),
    ];
    if tx.execute_each(&RESOLVE, &columns, &[Param::Time(tx.now())]).await? != resolutions.len() as u64 {
        return Err(StoreError::unexpected("an entry was resolved under the lock of its job"));
    }
    let columns = [
        Column::jobs(heads.keys().copied()),
        Column::ints(heads.values().map(|(head, _)| head.resolved)),
        Column::ints(heads.values().map(|(head, _)| head.size.bytes)),
    ];
    tx.execute_each(&PUT_HEADS, &columns, &[]).await?;
    let mut satisfied = Vec::new();
    for (job, (_, wake)) in &heads {
        if let Some(wake) = wake
            && is_satisfied(tx, *job, wake).await?
        {
            satisfied.push(*job);
        }
    }
    tx.execute_each(&DISARM, &[Column::jobs(satisfied.iter().copied())], &[]).await?;
    transition::wake(tx, lanes, &satisfied, counters, effects).await.map(drop)
}

/// Returns true if enough entries are resolved.
pub(crate) async fn is_satisfied(tx: &mut Tx<'_>, job: JobId, wake: &Wake) -> Result<bool, StoreError> {
    let keys = wake.keys_json();
    let row = tx.query_opt(&COUNT_RESOLVED, &[Param::from(job), Param::Json(&keys)]).await?;
    let resolved = row.map(|row| row.int("resolved")).transpose()?.unwrap_or(0);
    Ok(resolved >= wake.count)
}

/// Stores what wakes a job that is suspended.
pub(crate) async fn arm(tx: &mut Tx<'_>, job: JobId, wake: &Wake) -> Result<(), StoreError> {
    let keys = wake.keys_json();
    tx.execute(&ARM, &[Param::from(job), Param::Json(&keys), Param::Int(wake.count)]).await.map(drop)
}

struct ResolveWaits {
    lanes: LaneCache,
}

const DUE: Sql = Sql::both(&["select job, position from journal_entries where due_at <= $1 order by due_at limit $2"]);
const READY: Sql = Sql::both(&["select job, position from journal_entries where pending = 0 limit $1"]);
const OPEN: Sql = Sql::new(
    &["select job, position, op, due_at, pending from journal_entries
       where job = $1 and position = $2 and seq is null"],
    "select e.job, e.position, e.op, e.due_at, e.pending
     from unnest($1::uuid[], $2::bigint[]) as n(job, position)
     join journal_entries e on e.job = n.job and e.position = n.position where e.seq is null",
);
// The job has ended: its open entries wait for nothing.
const FORGET: Sql = Sql::new(
    &["update journal_entries set due_at = null, pending = null where job = $1 and position = $2"],
    "update journal_entries e set due_at = null, pending = null
     from unnest($1::uuid[], $2::bigint[]) as n(job, position) where e.job = n.job and e.position = n.position",
);
const NEXT: Sql = Sql::both(&["select due_at from journal_entries where due_at is not null order by due_at limit 1"]);

impl Operation for ResolveWaits {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (ResolvedEntries, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(ResolvedEntries, Effects), StoreError> {
        let now = tx.now();
        let (mut counters, mut effects) = (CounterDeltas::default(), Effects::default());
        let rows = Param::Int(MAINTENANCE_ROWS as i64);
        let mut found = tx.query(&DUE, &[Param::Time(now), rows]).await?;
        found.extend(tx.query(&READY, &[rows]).await?);
        let mut found: Vec<(JobId, i64)> =
            found.iter().map(|row| Ok((row.job("job")?, row.int("position")?))).collect::<Result<_, StoreError>>()?;
        found.sort_unstable();
        found.dedup();
        let mut jobs: Vec<JobId> = found.iter().map(|(job, _)| *job).collect();
        jobs.dedup();
        let live = transition::load(tx, &jobs).await?;
        let (found, orphaned): (Vec<_>, Vec<_>) = found.into_iter().partition(|(job, _)| live.contains_key(job));
        tx.execute_each(&FORGET, &columns(&orphaned), &[]).await?;
        // Read again under the locks.
        let mut resolutions = Vec::new();
        for row in tx.query_each(&OPEN, &columns(&found), &[]).await? {
            if let Some(outcome) = outcome(tx, &row, now).await? {
                resolutions.push(Resolution { job: row.job("job")?, position: row.int("position")?, outcome });
            }
        }
        resolutions.sort_by_key(|resolution| (resolution.job, resolution.position));
        resolve(tx, &self.lanes, &resolutions, &mut counters, &mut effects).await?;
        transition::close(tx, &self.lanes, counters, &mut effects).await?;
        let next = tx.query_opt(&NEXT, &[]).await?.map(|row| row.time("due_at")).transpose()?;
        let next_in_ms = next.map(|next| next.ms_since(now).max(0) + 1);
        Ok((ResolvedEntries { entries: resolutions.len(), next_in_ms }, effects))
    }
}

fn columns(entries: &[(JobId, i64)]) -> [Column<'static>; 2] {
    [Column::jobs(entries.iter().map(|(job, _)| *job)), Column::ints(entries.iter().map(|(_, position)| *position))]
}

/// The outcome of an open entry that is due or has no pending child, if it is.
async fn outcome(tx: &mut Tx<'_>, row: &Row, now: Time) -> Result<Option<Result<String, JobError>>, StoreError> {
    let is_due = row.opt_time("due_at")?.is_some_and(|due_at| due_at <= now);
    let op = row.text("op")?;
    Ok(match JournalOp::parse(&op) {
        Some(JournalOp::Sleep) if is_due => Some(Ok("null".into())),
        Some(JournalOp::Event | JournalOp::Approval) if is_due => Some(Err(timeout(&op))),
        Some(JournalOp::Child) if row.opt_int("pending")? == Some(0) => {
            Some(Ok(child_outcomes(tx, row.job("job")?, row.int("position")?).await?))
        }
        _ => None,
    })
}

fn timeout(op: &str) -> JobError {
    JobError { code: "timeout".into(), message: format!("no {op} arrived in time"), retryable: false }
}

const CHILDREN: Sql = Sql::both(&["select c.child, c.state, e.result, e.error
     from journal_children c left join ended e on e.id = c.child
     where c.job = $1 and c.position = $2 order by c.number"]);

/// The outcome of one child, as the entry has it.
#[derive(Serialize)]
struct ChildOutcome {
    job_id: uuid::Uuid,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Box<RawValue>>,
    /// The result is too large for the entry: read it from the child.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// The outcomes of all children of an entry, in order.
async fn child_outcomes(tx: &mut Tx<'_>, job: JobId, position: i64) -> Result<String, StoreError> {
    let mut capacity = CHILD_RESULTS_BYTES;
    let mut outcomes = Vec::new();
    for row in tx.query(&CHILDREN, &[Param::from(job), Param::Int(position)]).await? {
        let result = row.opt_text("result")?;
        let size = result.as_ref().map_or(0, String::len);
        let truncated = size > CHILD_RESULT_BYTES || size > capacity;
        capacity -= if truncated { 0 } else { size };
        let raw = |text: Option<String>| text.map(|text| from_json::<Box<RawValue>>(&text)).transpose();
        outcomes.push(ChildOutcome {
            job_id: row.uuid("child")?,
            state: row.opt_text("state")?.unwrap_or_else(|| "canceled".into()),
            result: raw(result.filter(|_| !truncated))?,
            error: raw(row.opt_text("error")?)?,
            truncated,
        });
    }
    Ok(to_json(&outcomes))
}

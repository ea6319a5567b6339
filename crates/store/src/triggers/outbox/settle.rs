//! Settles outbox rows: deletes each row in the transaction that starts its run. The run is a job, a delivery, an operation
//! or the effects of a script, or a dead letter if all attempts failed. The engine's dispatcher calls it.
//!
//! The lease guards every row. A row whose lease expired and that another node claimed is skipped, so an event starts at
//! most one job per trigger.

use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::ops::AddAssign;

use domain::limits::{CALL_GRACE_MS, CALL_TIMEOUT_DEFAULT_S};
use domain::queue::job_origin::Cause;
use domain::triggers::trigger::Source;
use domain::{JobError, Origin, RetryPolicy, TenantId, TriggerId};
use serde::Deserialize;
use uuid::Uuid;

use crate::db::clock::random_unit;
use crate::db::codec::storable_error;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::calls::make::insert_call;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::runtimes::request::{OperationRequest, Requested, operation_requested, runtime_moved};
use crate::store::Store;
use crate::triggers::Mode;
use crate::triggers::cache::TriggerCache;
use crate::triggers::dead_letters::handlers::{self, handler_ended};
use crate::triggers::dead_letters::insert::{NewDeadLetter, insert};
use crate::triggers::dead_letters::{FailedAttempt, attempts_to_json};
use crate::triggers::deliveries;
use crate::triggers::deliveries::NewDelivery;
use crate::triggers::kv::observed_keys::ObservedKey;
use crate::triggers::outbox::OutboxRow;
use crate::triggers::outbox::operate::Operate;
use crate::triggers::outbox::script_effect::{ScriptEffect, carry_out, reads_are_current};
use crate::triggers::runs::{self, RunOutcome, ScriptRun};

/// How the dispatcher decided on a row.
#[derive(Clone, Debug)]
pub enum RunVerdict {
    /// Enqueue a job.
    Job(Box<NewJob>),
    /// Create a delivery: an HTTP request.
    Delivery(Box<NewDelivery>),
    /// Apply the effects of a script that completed.
    Script(Box<CompletedScript>),
    /// Request an operation on a runtime.
    Operation(Box<Operate>),
    /// Close the row without starting anything.
    Done,
    /// The attempt failed. Schedule a retry, or write a dead letter after the last attempt.
    Failed(RunFailure),
    /// The trigger depth exceeds its limit, which indicates a loop. Close the row and record it.
    Loop,
    /// Release the row and retry later: the trigger is disabled, or a quota or the script capacity is exhausted.
    Deferred { delay_ms: i64 },
    /// Close the row: its trigger was deleted or no longer applies.
    Discarded,
}

/// A completed script with its effects.
#[derive(Clone, Debug)]
pub struct CompletedScript {
    pub ran: ScriptRun,
    pub script_effects: Vec<ScriptEffect>,
    /// The keys that the script read, validated when its effects are applied.
    pub reads: Vec<ObservedKey>,
}

/// A failed attempt of a run, with the retry policy of its trigger.
#[derive(Clone, Debug)]
pub struct RunFailure {
    pub error: JobError,
    pub retry: RetryPolicy,
    pub max_attempts: i32,
    /// The execution of the script, if the target is a script.
    pub ran: Option<ScriptRun>,
}

/// Number of rows by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    pub jobs: usize,
    pub deliveries: usize,
    pub operations: usize,
    pub done: usize,
    pub failed: usize,
    pub dead: usize,
    pub loops: usize,
    pub deferred: usize,
    pub discarded: usize,
    /// Scripts whose reads were stale. Their effects were not applied, and their rows stay claimed for another execution.
    pub conflicts: usize,
}

impl AddAssign for Dispatched {
    fn add_assign(&mut self, more: Self) {
        let Self { jobs, deliveries, operations, done, failed, dead, loops, deferred, discarded, conflicts } = more;
        self.jobs += jobs;
        self.deliveries += deliveries;
        self.operations += operations;
        self.done += done;
        self.failed += failed;
        self.dead += dead;
        self.loops += loops;
        self.deferred += deferred;
        self.discarded += discarded;
        self.conflicts += conflicts;
    }
}

impl Store {
    /// Settles claimed rows according to their verdicts. Returns the number of rows by outcome.
    pub async fn settle_outbox(
        &self,
        lease: Uuid,
        outcomes: Vec<(OutboxRow, RunVerdict)>,
    ) -> Result<Dispatched, StoreError> {
        // Settle operations one at a time: each can bind a runtime to a node, which affects the placement of the next one.
        let is_operation = |(_, verdict): &(OutboxRow, RunVerdict)| matches!(verdict, RunVerdict::Operation(_));
        let (operations, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_operation);
        let mut dispatched = Dispatched::default();
        for batch in iter::once(others).chain(operations.into_iter().map(|operation| vec![operation])) {
            if !batch.is_empty() {
                dispatched += self.settle_together(lease, batch).await?;
            }
        }
        Ok(dispatched)
    }

    async fn settle_together(
        &self,
        lease: Uuid,
        outcomes: Vec<(OutboxRow, RunVerdict)>,
    ) -> Result<Dispatched, StoreError> {
        let mut prepared = Vec::with_capacity(outcomes.len());
        for (row, verdict) in outcomes {
            let (verdict, operation) = self.choose_node(&row, verdict).await?;
            prepared.push((row, verdict, operation));
        }
        let lanes: Vec<_> =
            prepared.iter().flat_map(|(row, verdict, _)| verdict.jobs().map(|job| job.lane(row.tenant))).collect();
        let mut ids = self.lane_ids(&lanes).await?.into_iter();
        let settling = prepared.into_iter().map(|(row, verdict, operation)| {
            let lanes = ids.by_ref().take(verdict.jobs().count()).collect();
            Settling { row, verdict, lanes, operation }
        });
        let rows = settling.collect();
        let settle = SettleOutbox { lease, rows, triggers: self.triggers_cache().clone() };
        let (dispatched, effects) = self.write(settle).await?;
        self.announce(&effects);
        Ok(dispatched)
    }
}

impl RunVerdict {
    /// Returns the jobs that the verdict enqueues.
    fn jobs(&self) -> impl Iterator<Item = &NewJob> {
        let (own, script_effects) = match self {
            Self::Job(job) => (Some(&**job), &[] as &[ScriptEffect]),
            Self::Script(script) => (None, script.script_effects.as_slice()),
            _ => (None, &[] as &[ScriptEffect]),
        };
        let enqueued = script_effects.iter().filter_map(|script_effect| match script_effect {
            ScriptEffect::Enqueue { job, .. } => Some(&**job),
            _ => None,
        });
        own.into_iter().chain(enqueued)
    }
}

struct Settling {
    row: OutboxRow,
    verdict: RunVerdict,
    /// One lane per job that the verdict enqueues.
    lanes: Vec<i64>,
    /// The prepared request of an operation.
    operation: Option<OperationRequest>,
}

impl Settling {
    /// Returns true if no retry follows. A handler of a dead letter is never retried.
    fn is_last(&self, failure: &RunFailure) -> bool {
        let tries = self.row.attempts.len() as i32 + 1;
        self.row.source == "dead_letter" || !failure.error.retryable || tries >= failure.max_attempts
    }

    fn closes(&self) -> bool {
        match &self.verdict {
            RunVerdict::Failed(failure) => self.is_last(failure),
            RunVerdict::Deferred { .. } => false,
            RunVerdict::Job(_)
            | RunVerdict::Delivery(_)
            | RunVerdict::Script(_)
            | RunVerdict::Operation(_)
            | RunVerdict::Done
            | RunVerdict::Loop
            | RunVerdict::Discarded => true,
        }
    }

    /// Returns true if the caller that caused the event waits for the run.
    fn has_waiter(&self) -> bool {
        self.row.mode == Mode::Sync
    }

    fn origin(&self) -> Origin {
        let OutboxRow { trigger, event, source, op, .. } = &self.row;
        let cause = Cause { event: *event, source: source.clone(), op: op.clone() };
        Origin::Trigger { trigger: *trigger, cause }
    }
}

struct SettleOutbox {
    lease: Uuid,
    rows: Vec<Settling>,
    triggers: TriggerCache,
}

const CLOSE: Sql = Sql::new(
    &["delete from outbox where id = $1 and lease = $2 returning id"],
    "delete from outbox where id = any($1::uuid[]) and lease = $2 returning id",
);
const AGAIN: Sql = Sql::both(&["update outbox set due_at = $3, lease = null, wait_s = $4, attempts = $5
     where id = $1 and lease = $2"]);
const LATER: Sql = Sql::both(&["update outbox set due_at = $3, lease = null where id = $1 and lease = $2"]);
const COUNT: Sql = Sql::both(&["update triggers set fired = fired + $2, failed = failed + $3,
         loops_stopped = loops_stopped + $4, last_fired_at = case when $2 > 0 then $5 else last_fired_at end,
         last_error = coalesce($6, last_error)
     where id = $1"]);

/// Changes of a trigger's counters by one batch.
#[derive(Default)]
struct TriggerCounters {
    fired: i64,
    failed: i64,
    loops: i64,
    error: Option<String>,
}

impl Operation for SettleOutbox {
    type Output = (Dispatched, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Dispatched, Effects), StoreError> {
        let stale = self.stale(tx).await?;
        let closes = |settling: &&Settling| settling.closes() && !stale.contains(&settling.row.id);
        let closing = self.rows.iter().filter(closes).map(|settling| settling.row.id);
        let rows = tx.query_each(&CLOSE, &[Column::uuids(closing)], &[Param::Uuid(self.lease)]).await?;
        let closed: HashSet<Uuid> = rows.iter().map(|row| row.uuid("id")).collect::<Result<_, _>>()?;
        let mut dispatched = Dispatched { conflicts: stale.len(), ..Dispatched::default() };
        let mut effects = Effects::default();
        let mut counters: BTreeMap<TriggerId, TriggerCounters> = BTreeMap::new();
        let mut jobs: BTreeMap<TenantId, (Vec<NewJob>, Vec<i64>)> = BTreeMap::new();
        for settling in &self.rows {
            if settling.closes() && !closed.contains(&settling.row.id) {
                continue;
            }
            let counter_changes = counters.entry(settling.row.trigger).or_default();
            match &settling.verdict {
                RunVerdict::Job(job) if settling.has_waiter() => {
                    self.enqueue_for_waiter(tx, settling, job, &mut effects).await?;
                    counter_changes.fired += 1;
                    dispatched.jobs += 1;
                }
                RunVerdict::Job(job) => {
                    let (new_jobs, lanes) = jobs.entry(settling.row.tenant).or_default();
                    new_jobs.push((**job).clone());
                    lanes.extend(&settling.lanes);
                    counter_changes.fired += 1;
                    dispatched.jobs += 1;
                }
                RunVerdict::Delivery(delivery) => {
                    let ids = deliveries::insert(tx, vec![(**delivery).clone()]).await?;
                    if let (true, Some(id)) = (settling.has_waiter(), ids.first()) {
                        runs::insert_run(tx, &settling.row, RunOutcome::Delivery(id.uuid()), None, None).await?;
                    }
                    effects.deliveries = true;
                    counter_changes.fired += 1;
                    dispatched.deliveries += 1;
                }
                RunVerdict::Script(script) => {
                    let CompletedScript { ran, script_effects, .. } = &**script;
                    carry_out(tx, &settling.row, script_effects, &settling.lanes, &self.triggers, &mut effects).await?;
                    runs::insert_run(tx, &settling.row, RunOutcome::Done, Some(ran), None).await?;
                    handler_ended(tx, settling.row.tenant, &settling.origin(), None).await?;
                    counter_changes.fired += 1;
                    dispatched.done += 1;
                }
                RunVerdict::Operation(operate) => match self.operate(tx, settling, &mut effects).await? {
                    Requested::Accepted { .. } => {
                        counter_changes.fired += 1;
                        dispatched.operations += 1;
                    }
                    refused => {
                        let failure = operate.failed(&refused);
                        self.fail(tx, settling, &failure, counter_changes, &mut dispatched).await?;
                    }
                },
                RunVerdict::Done => {
                    handler_ended(tx, settling.row.tenant, &settling.origin(), None).await?;
                    counter_changes.fired += 1;
                    dispatched.done += 1;
                }
                RunVerdict::Failed(failure) => {
                    self.fail(tx, settling, failure, counter_changes, &mut dispatched).await?
                }
                RunVerdict::Loop => {
                    counter_changes.loops += 1;
                    dispatched.loops += 1;
                    record_loop(tx, &settling.row).await?;
                    self.record_skipped(tx, settling).await?;
                }
                RunVerdict::Deferred { delay_ms } => {
                    dispatched.deferred += 1;
                    let due = Param::Time(tx.now().plus_ms(*delay_ms));
                    tx.execute(&LATER, &[Param::Uuid(settling.row.id), Param::Uuid(self.lease), due]).await?;
                }
                RunVerdict::Discarded => {
                    dispatched.discarded += 1;
                    self.record_skipped(tx, settling).await?;
                }
            }
        }
        for (tenant, (new_jobs, lanes)) in jobs {
            let batch = EnqueueBatch::one(EnqueueRequest::new(tenant, new_jobs, lanes));
            for reply in batch.run(tx).await? {
                let EnqueueReply::Accepted(jobs) = reply else { continue };
                effects.ready.extend(jobs.into_iter().map(|job| (tenant, job.queue)));
            }
        }
        update_counters(tx, &counters).await?;
        Ok((dispatched, effects))
    }
}

impl SettleOutbox {
    /// Returns the rows whose scripts read keys that have changed since.
    async fn stale(&self, tx: &mut Tx<'_>) -> Result<HashSet<Uuid>, StoreError> {
        let mut stale = HashSet::new();
        for settling in &self.rows {
            let RunVerdict::Script(script) = &settling.verdict else { continue };
            if !reads_are_current(tx, settling.row.tenant, &script.script_effects, &script.reads).await? {
                stale.insert(settling.row.id);
            }
        }
        Ok(stale)
    }

    /// Enqueues a job on its own and records its id for the caller that waits for it.
    async fn enqueue_for_waiter(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        job: &NewJob,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        let tenant = settling.row.tenant;
        let request = EnqueueRequest::new(tenant, vec![job.clone()], settling.lanes.clone());
        let reply = EnqueueBatch::one(request).run(tx).await?.pop();
        let Some(EnqueueReply::Accepted(jobs)) = reply else { return Ok(()) };
        for job in jobs {
            runs::insert_run(tx, &settling.row, RunOutcome::Job(job.id), None, None).await?;
            if settling.row.source == Source::Http.as_str() {
                // If the caller disconnects, its registration expires, and the result is kept as an abandoned execution.
                insert_call(tx, tenant, job.id, CALL_TIMEOUT_DEFAULT_S * 1_000 + CALL_GRACE_MS).await?;
            }
            effects.ready.insert((tenant, job.queue));
        }
        Ok(())
    }

    /// Records a failed attempt. Schedules a retry, or after the last attempt writes a dead letter.
    async fn fail(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        failure: &RunFailure,
        counter_changes: &mut TriggerCounters,
        dispatched: &mut Dispatched,
    ) -> Result<(), StoreError> {
        let failure = &RunFailure { error: storable_error(&failure.error), ..failure.clone() };
        counter_changes.error = Some(format!("{}: {}", failure.error.code, failure.error.message));
        dispatched.failed += 1;
        if failure.ran.is_some() || settling.has_waiter() {
            let (ran, error) = (failure.ran.as_ref(), Some(&failure.error));
            runs::insert_run(tx, &settling.row, RunOutcome::Failed, ran, error).await?;
        }
        if !settling.is_last(failure) {
            return self.schedule_retry(tx, settling, failure).await;
        }
        counter_changes.failed += 1;
        dispatched.dead += 1;
        self.insert_dead_letter(tx, settling, failure).await
    }

    /// Requests the operation like a user would: writes the operation's log entry and its job.
    async fn operate(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        effects: &mut Effects,
    ) -> Result<Requested, StoreError> {
        let request = settling
            .operation
            .as_ref()
            .ok_or_else(|| StoreError::unexpected("an operation without a prepared request"))?;
        // On this error the transaction rolls back. The row becomes due again and finds the runtime's new node.
        let requested = request.run(tx).await?.ok_or_else(runtime_moved)?;
        if let Requested::Accepted { job, operation } = &requested {
            handlers::operation_requested(tx, settling.row.tenant, &settling.origin(), *operation).await?;
            effects.ready.extend(operation_requested(settling.row.tenant).ready);
            effects.runtimes = true;
            if settling.has_waiter() {
                runs::insert_run(tx, &settling.row, RunOutcome::Job(*job), None, None).await?;
            }
        }
        Ok(requested)
    }

    async fn record_skipped(&self, tx: &mut Tx<'_>, settling: &Settling) -> Result<(), StoreError> {
        match settling.has_waiter() {
            true => runs::insert_run(tx, &settling.row, RunOutcome::Skipped, None, None).await,
            false => Ok(()),
        }
    }

    async fn schedule_retry(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        failure: &RunFailure,
    ) -> Result<(), StoreError> {
        let wait_s = failure.retry.next_wait_s(settling.row.wait_s);
        let wait_ms = (wait_s as i64).saturating_mul(1_000) + failure.retry.jitter_ms(wait_s, random_unit());
        let attempts = attempts_to_json(&attempts(tx, settling, failure));
        let params = [
            Param::Uuid(settling.row.id),
            Param::Uuid(self.lease),
            Param::Time(tx.now().plus_ms(wait_ms)),
            Param::Int(wait_s as i64),
            Param::Json(&attempts),
        ];
        tx.execute(&AGAIN, &params).await.map(|_| ())
    }

    /// Writes a dead letter after the last attempt. If the run was a handler of a dead letter, records its failure instead. A
    /// run of a `sync` hook leaves none: its caller gets the error.
    async fn insert_dead_letter(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        failure: &RunFailure,
    ) -> Result<(), StoreError> {
        let row = &settling.row;
        let origin = settling.origin();
        if origin.handles().is_some() {
            return handler_ended(tx, row.tenant, &origin, Some(&failure.error)).await;
        }
        let answers_caller = settling.has_waiter() && row.source == Source::Http.as_str();
        if !origin.creates_dead_letter() || answers_caller {
            return Ok(());
        }
        let letter = NewDeadLetter {
            tenant: row.tenant,
            event: row.event,
            source: row.source.clone(),
            op: row.op.clone(),
            trigger: Some(row.trigger),
            script: failure.ran.as_ref().map(|ran| ran.script),
            job: None,
            queue: None,
            kind: None,
            payload: row.envelope(),
            work: None,
            depth: row.depth,
            attempts: attempts(tx, settling, failure),
        };
        insert(tx, letter).await.map(|_| ())
    }
}

/// Returns all failed attempts, including the current one.
fn attempts(tx: &Tx<'_>, settling: &Settling, failure: &RunFailure) -> Vec<FailedAttempt> {
    let mut attempts = settling.row.attempts.clone();
    attempts.push(FailedAttempt { at: tx.now(), error: failure.error.clone() });
    attempts
}

async fn update_counters(tx: &mut Tx<'_>, counters: &BTreeMap<TriggerId, TriggerCounters>) -> Result<(), StoreError> {
    let now = Param::Time(tx.now());
    // Update in trigger order, so that two dispatchers cannot deadlock.
    for (trigger, TriggerCounters { fired, failed, loops, error }) in counters {
        if *fired + *failed + *loops == 0 && error.is_none() {
            continue;
        }
        let params = [
            Param::Uuid(trigger.uuid()),
            Param::Int(*fired),
            Param::Int(*failed),
            Param::Int(*loops),
            now,
            Param::text(error.as_deref()),
        ];
        tx.execute(&COUNT, &params).await?;
    }
    Ok(())
}

/// The members of an event's head that a history entry needs.
#[derive(Deserialize)]
struct EventHead {
    #[serde(default)]
    job_id: Option<Uuid>,
}

// A stopped loop is recorded in the history of the job that caused the event, or else under the event's id.
const LOOP: Sql =
    Sql::both(&["insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt, actor, cause)
     values ($1, 0, 'loop_stopped', $2, 0, $3, $3, 0, $4, $5) on conflict do nothing"]);

async fn record_loop(tx: &mut Tx<'_>, row: &OutboxRow) -> Result<(), StoreError> {
    let head: EventHead = serde_json::from_str(&row.head).unwrap_or(EventHead { job_id: None });
    let about = head.job_id.unwrap_or(row.event.uuid());
    let (actor, cause) = (format!("trigger:{}", row.trigger), format!("depth {}", row.depth));
    let params =
        [Param::Uuid(about), Param::Int(row.tenant.0), Param::Time(tx.now()), Param::Text(&actor), Param::Text(&cause)];
    tx.execute(&LOOP, &params).await.map(|_| ())
}

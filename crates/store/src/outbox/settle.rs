//! Closes rows in the transaction that starts what they ask for: a job, a request, an operation, what a script did, or a
//! dead letter when all tries failed (T3–T6).
//!
//! The lease guards every row: one that came back to somebody else meanwhile is left alone, so that an event makes at
//! most one job per trigger.

use std::collections::{BTreeMap, HashSet};
use std::iter;
use std::ops::AddAssign;

use domain::origin::Cause;
use domain::{JobError, Origin, Resolution, RetryPolicy, TenantId, TriggerId};
use serde::Deserialize;
use uuid::Uuid;

use crate::clock::dice;
use crate::codec::fit;
use crate::dead_letters::insert::{NewDeadLetter, insert};
use crate::dead_letters::jobs::handler_ended;
use crate::dead_letters::{Attempt, attempts_to_json};
use crate::deliveries::{self, NewDelivery};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::kv::seen::Seen;
use crate::outbox::Taken;
use crate::outbox::deed::{Deed, carry_out, read_what_is_there};
use crate::outbox::operate::Operate;
use crate::runtimes::request::{Request, Requested, asked_for, moved};
use crate::store::Store;
use crate::triggers::Mode;
use crate::triggers::cache::TriggerCache;
use crate::triggers::runs::{self, Ran, RunOutcome};
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// What becomes of a row.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// A job is made.
    Job(Box<NewJob>),
    /// A request is owed.
    Delivery(Box<NewDelivery>),
    /// A script ran: what it did is carried out.
    Script(Box<Script>),
    /// Something is done to a runtime.
    Operation(Box<Operate>),
    /// Nothing is left to do.
    Done,
    /// A try failed; another follows, or a dead letter.
    Failed(Failure),
    /// It is too deep: something leads to itself.
    Loop,
    /// Not now: the trigger is off, or there is no room.
    Later { delay_ms: i64 },
    /// Its trigger is gone, or does not want it any more.
    Dropped,
}

#[derive(Clone, Debug)]
pub struct Script {
    pub ran: Ran,
    pub deeds: Vec<Deed>,
    /// The keys that it read.
    pub reads: Vec<Seen>,
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub error: JobError,
    pub retry: RetryPolicy,
    pub max_attempts: i32,
    /// The script that failed, if one did.
    pub ran: Option<Ran>,
}

/// How many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dispatched {
    pub jobs: usize,
    pub deliveries: usize,
    pub operations: usize,
    pub done: usize,
    pub failed: usize,
    pub dead: usize,
    pub loops: usize,
    pub later: usize,
    pub dropped: usize,
    /// Scripts that read what has changed since: nothing of them holds, and their rows are still taken.
    pub conflicts: usize,
}

impl AddAssign for Dispatched {
    fn add_assign(&mut self, more: Self) {
        let Self { jobs, deliveries, operations, done, failed, dead, loops, later, dropped, conflicts } = more;
        self.jobs += jobs;
        self.deliveries += deliveries;
        self.operations += operations;
        self.done += done;
        self.failed += failed;
        self.dead += dead;
        self.loops += loops;
        self.later += later;
        self.dropped += dropped;
        self.conflicts += conflicts;
    }
}

impl Store {
    pub async fn settle_outbox(&self, lease: Uuid, outcomes: Vec<(Taken, Verdict)>) -> Result<Dispatched, StoreError> {
        // One operation at a time, each placed when the one before is written: it may have bound the same runtime.
        let is_operation = |(_, verdict): &(Taken, Verdict)| matches!(verdict, Verdict::Operation(_));
        let (operations, others): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_operation);
        let mut dispatched = Dispatched::default();
        for batch in iter::once(others).chain(operations.into_iter().map(|operation| vec![operation])) {
            if !batch.is_empty() {
                dispatched += self.settle_together(lease, batch).await?;
            }
        }
        Ok(dispatched)
    }

    async fn settle_together(&self, lease: Uuid, outcomes: Vec<(Taken, Verdict)>) -> Result<Dispatched, StoreError> {
        let mut prepared = Vec::with_capacity(outcomes.len());
        for (row, verdict) in outcomes {
            let (verdict, operation) = self.place_operation(&row, verdict).await?;
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
        let settle = Settle { lease, rows, triggers: self.triggers_cache().clone() };
        let (dispatched, effects) = self.write(settle).await?;
        self.announce(&effects);
        Ok(dispatched)
    }
}

impl Verdict {
    /// The jobs it makes.
    fn jobs(&self) -> impl Iterator<Item = &NewJob> {
        let (own, deeds) = match self {
            Self::Job(job) => (Some(&**job), &[] as &[Deed]),
            Self::Script(script) => (None, script.deeds.as_slice()),
            _ => (None, &[] as &[Deed]),
        };
        let made = deeds.iter().filter_map(|deed| match deed {
            Deed::Enqueue { job, .. } => Some(&**job),
            _ => None,
        });
        own.into_iter().chain(made)
    }
}

struct Settling {
    row: Taken,
    verdict: Verdict,
    /// One per job that it makes.
    lanes: Vec<i64>,
    /// The operation, for the node that it found.
    operation: Option<Request>,
}

impl Settling {
    /// A handler of a dead letter is not tried again (T8).
    fn is_last(&self, failure: &Failure) -> bool {
        let tries = self.row.attempts.len() as i32 + 1;
        self.row.source == "dead_letter" || !failure.error.retryable || tries >= failure.max_attempts
    }

    fn closes(&self) -> bool {
        match &self.verdict {
            Verdict::Failed(failure) => self.is_last(failure),
            Verdict::Later { .. } => false,
            Verdict::Job(_)
            | Verdict::Delivery(_)
            | Verdict::Script(_)
            | Verdict::Operation(_)
            | Verdict::Done
            | Verdict::Loop
            | Verdict::Dropped => true,
        }
    }

    /// Whoever caused the event waits to hear what became of it.
    fn is_waited_for(&self) -> bool {
        self.row.mode == Mode::Sync
    }

    fn origin(&self) -> Origin {
        let Taken { trigger, event, source, op, .. } = &self.row;
        let cause = Cause { event: *event, source: source.clone(), op: op.clone() };
        Origin::Trigger { trigger: *trigger, cause }
    }
}

struct Settle {
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

/// What one batch changed of a trigger's figures.
#[derive(Default)]
struct Figures {
    fired: i64,
    failed: i64,
    loops: i64,
    error: Option<String>,
}

impl Operation for Settle {
    type Output = (Dispatched, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Dispatched, Effects), StoreError> {
        let stale = self.stale(tx).await?;
        let closes = |settling: &&Settling| settling.closes() && !stale.contains(&settling.row.id);
        let closing = self.rows.iter().filter(closes).map(|settling| settling.row.id);
        let rows = tx.query_each(&CLOSE, &[Column::uuids(closing)], &[Param::Uuid(self.lease)]).await?;
        let closed: HashSet<Uuid> = rows.iter().map(|row| row.uuid(0)).collect::<Result<_, _>>()?;
        let mut dispatched = Dispatched { conflicts: stale.len(), ..Dispatched::default() };
        let mut effects = Effects::default();
        let mut figures: BTreeMap<TriggerId, Figures> = BTreeMap::new();
        let mut jobs: BTreeMap<TenantId, (Vec<NewJob>, Vec<i64>)> = BTreeMap::new();
        for settling in &self.rows {
            if settling.closes() && !closed.contains(&settling.row.id) {
                continue;
            }
            let figure = figures.entry(settling.row.trigger).or_default();
            match &settling.verdict {
                Verdict::Job(job) if settling.is_waited_for() => {
                    self.make_noted(tx, settling, job, &mut effects).await?;
                    figure.fired += 1;
                    dispatched.jobs += 1;
                }
                Verdict::Job(job) => {
                    let (made, lanes) = jobs.entry(settling.row.tenant).or_default();
                    made.push((**job).clone());
                    lanes.extend(&settling.lanes);
                    figure.fired += 1;
                    dispatched.jobs += 1;
                }
                Verdict::Delivery(delivery) => {
                    let ids = deliveries::insert(tx, vec![(**delivery).clone()]).await?;
                    if let (true, Some(id)) = (settling.is_waited_for(), ids.first()) {
                        runs::note(tx, &settling.row, RunOutcome::Delivery(id.uuid()), None, None).await?;
                    }
                    effects.deliveries = true;
                    figure.fired += 1;
                    dispatched.deliveries += 1;
                }
                Verdict::Script(script) => {
                    let Script { ran, deeds, .. } = &**script;
                    carry_out(tx, &settling.row, deeds, &settling.lanes, &self.triggers, &mut effects).await?;
                    runs::note(tx, &settling.row, RunOutcome::Done, Some(ran), None).await?;
                    handler_ended(tx, settling.row.tenant, &settling.origin(), Resolution::HandledByScript).await?;
                    figure.fired += 1;
                    dispatched.done += 1;
                }
                Verdict::Operation(operate) => match self.operate(tx, settling, &mut effects).await? {
                    Requested::Accepted { .. } => {
                        figure.fired += 1;
                        dispatched.operations += 1;
                    }
                    refused => {
                        let failure = operate.failed(&refused);
                        self.fail(tx, settling, &failure, figure, &mut dispatched).await?;
                    }
                },
                Verdict::Done => {
                    handler_ended(tx, settling.row.tenant, &settling.origin(), Resolution::HandledByScript).await?;
                    figure.fired += 1;
                    dispatched.done += 1;
                }
                Verdict::Failed(failure) => self.fail(tx, settling, failure, figure, &mut dispatched).await?,
                Verdict::Loop => {
                    figure.loops += 1;
                    dispatched.loops += 1;
                    tell_of_the_loop(tx, &settling.row).await?;
                    self.note_skipped(tx, settling).await?;
                }
                Verdict::Later { delay_ms } => {
                    dispatched.later += 1;
                    let due = Param::Time(tx.now().plus_ms(*delay_ms));
                    tx.execute(&LATER, &[Param::Uuid(settling.row.id), Param::Uuid(self.lease), due]).await?;
                }
                Verdict::Dropped => {
                    dispatched.dropped += 1;
                    self.note_skipped(tx, settling).await?;
                }
            }
        }
        for (tenant, (made, lanes)) in jobs {
            let batch = EnqueueBatch::one(EnqueueRequest::new(tenant, made, lanes));
            for reply in batch.run(tx).await? {
                let EnqueueReply::Accepted(jobs) = reply else { continue };
                effects.ready.extend(jobs.into_iter().map(|job| (tenant, job.queue)));
            }
        }
        count(tx, &figures).await?;
        Ok((dispatched, effects))
    }
}

impl Settle {
    /// Rows whose script read what has changed since.
    async fn stale(&self, tx: &mut Tx<'_>) -> Result<HashSet<Uuid>, StoreError> {
        let mut stale = HashSet::new();
        for settling in &self.rows {
            let Verdict::Script(script) = &settling.verdict else { continue };
            if !read_what_is_there(tx, settling.row.tenant, &script.deeds, &script.reads).await? {
                stale.insert(settling.row.id);
            }
        }
        Ok(stale)
    }

    /// A job whose end somebody waits for: which one it is must be known.
    async fn make_noted(
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
            runs::note(tx, &settling.row, RunOutcome::Job(job.id), None, None).await?;
            effects.ready.insert((tenant, job.queue));
        }
        Ok(())
    }

    /// A try failed: another follows, unless it was the last.
    async fn fail(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        failure: &Failure,
        figure: &mut Figures,
        dispatched: &mut Dispatched,
    ) -> Result<(), StoreError> {
        let failure = &Failure { error: fit(&failure.error), ..failure.clone() };
        figure.error = Some(format!("{}: {}", failure.error.code, failure.error.message));
        dispatched.failed += 1;
        if failure.ran.is_some() || settling.is_waited_for() {
            let (ran, error) = (failure.ran.as_ref(), Some(&failure.error));
            runs::note(tx, &settling.row, RunOutcome::Failed, ran, error).await?;
        }
        if !settling.is_last(failure) {
            return self.again(tx, settling, failure).await;
        }
        figure.failed += 1;
        dispatched.dead += 1;
        self.bury(tx, settling, failure).await
    }

    /// Asks for the operation, as a person would: its line in the log and its job are written here.
    async fn operate(
        &self,
        tx: &mut Tx<'_>,
        settling: &Settling,
        effects: &mut Effects,
    ) -> Result<Requested, StoreError> {
        let request = settling.operation.as_ref().ok_or_else(|| StoreError::unexpected("an operation for no node"))?;
        // Nothing is closed: the row comes back, and finds where it is.
        let requested = request.run(tx).await?.ok_or_else(moved)?;
        if let Requested::Accepted { job, .. } = &requested {
            effects.ready.extend(asked_for(settling.row.tenant).ready);
            effects.runtimes = true;
            if settling.is_waited_for() {
                runs::note(tx, &settling.row, RunOutcome::Job(*job), None, None).await?;
            }
        }
        Ok(requested)
    }

    async fn note_skipped(&self, tx: &mut Tx<'_>, settling: &Settling) -> Result<(), StoreError> {
        match settling.is_waited_for() {
            true => runs::note(tx, &settling.row, RunOutcome::Skipped, None, None).await,
            false => Ok(()),
        }
    }

    async fn again(&self, tx: &mut Tx<'_>, settling: &Settling, failure: &Failure) -> Result<(), StoreError> {
        let wait_s = failure.retry.next_wait_s(settling.row.wait_s);
        let wait_ms = (wait_s as i64).saturating_mul(1_000) + failure.retry.jitter_ms(wait_s, dice());
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

    /// Out of tries: one dead letter, or, for the handler of one, the word that it failed (T6, T8).
    async fn bury(&self, tx: &mut Tx<'_>, settling: &Settling, failure: &Failure) -> Result<(), StoreError> {
        let row = &settling.row;
        let origin = settling.origin();
        if origin.handles().is_some() {
            return handler_ended(tx, row.tenant, &origin, Resolution::HandlerFailed).await;
        }
        if !origin.leaves_a_dead_letter() {
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

/// Every try so far, with the one that has just failed.
fn attempts(tx: &Tx<'_>, settling: &Settling, failure: &Failure) -> Vec<Attempt> {
    let mut attempts = settling.row.attempts.clone();
    attempts.push(Attempt { at: tx.now(), error: failure.error.clone() });
    attempts
}

async fn count(tx: &mut Tx<'_>, figures: &BTreeMap<TriggerId, Figures>) -> Result<(), StoreError> {
    let now = Param::Time(tx.now());
    // In order, so that two dispatchers never wait for each other in a circle.
    for (trigger, Figures { fired, failed, loops, error }) in figures {
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

/// The members of an event's head that history wants.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    job_id: Option<Uuid>,
}

// A loop is told in the history of the job that led to it, or of the event itself.
const LOOP: Sql =
    Sql::both(&["insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt, actor, cause)
     values ($1, 0, 'loop_stopped', $2, 0, $3, $3, 0, $4, $5) on conflict do nothing"]);

async fn tell_of_the_loop(tx: &mut Tx<'_>, row: &Taken) -> Result<(), StoreError> {
    let head: Head = serde_json::from_str(&row.head).unwrap_or(Head { job_id: None });
    let about = head.job_id.unwrap_or(row.event.uuid());
    let (actor, cause) = (format!("trigger:{}", row.trigger), format!("depth {}", row.depth));
    let params =
        [Param::Uuid(about), Param::Int(row.tenant.0), Param::Time(tx.now()), Param::Text(&actor), Param::Text(&cause)];
    tx.execute(&LOOP, &params).await.map(|_| ())
}

//! Dispatches the outbox: claims due rows in batches, and deletes each in the transaction that starts its run. Any
//! number of nodes dispatch concurrently.

mod scripts;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::limits::DISPATCH_TENANT_MS;
use domain::triggers::trigger::{Source, next_depth, queue};
use domain::{EventId, JobId, PrincipalRights, TenantId, TriggerId};
use serde_json::Value;
use store::access::tenants::quota::{Admission, AdmissionRequest};
use store::access::tokens::principal_rights::PrincipalName;
use store::db::notifier::Topic;
use store::triggers::expression::{ExpressionError, Scope};
use store::triggers::outbox::OutboxRow;
use store::triggers::outbox::operate::Operate;
use store::triggers::outbox::settle::{Dispatched, RunFailure, RunVerdict};
use store::triggers::{Mode, Trigger};
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};
use crate::triggers::plan::{NotStarted, PlannedRun, run_in};
use crate::triggers::scripting::Actor;
use scripts::QueuedScript;
pub(crate) use scripts::Scripts;

/// Delay before rows of a disabled trigger are considered again.
const OFF_MS: i64 = 30_000;
/// Longest delay before rows that wait for their tenant's quota are considered again.
const OVER_QUOTA_MAX_S: u64 = 300;

pub(crate) struct DispatchOutbox {
    pub(crate) max_depth: i32,
    pub(crate) scripts: Scripts,
}

impl Task for DispatchOutbox {
    const NAME: &'static str = "dispatch_outbox";
    const EVERY: Duration = Duration::from_millis(250);
    const WAKE: Option<Topic> = Some(Topic::Outbox);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let taken_at = Instant::now();
        let batch = store.claim_outbox().await?;
        let next_in = batch.may_have_more.then_some(Duration::ZERO);
        if batch.rows.is_empty() {
            return Ok(TaskOutcome { next_in, ..TaskOutcome::nothing() });
        }
        let mut ids: Vec<TriggerId> = batch.rows.iter().map(|row| row.trigger).collect();
        ids.sort_unstable();
        ids.dedup();
        let triggers: HashMap<TriggerId, Arc<Trigger>> =
            store.triggers(ids).await?.into_iter().map(|trigger| (trigger.id, Arc::new(trigger))).collect();
        let principals: BTreeSet<PrincipalName> = triggers.values().map(|trigger| named(trigger)).collect();
        let rights_by_principal = store.principal_rights(principals).await?;
        let mut outcomes = Vec::with_capacity(batch.rows.len());
        let mut rows = Vec::with_capacity(batch.rows.len());
        for mut row in batch.rows {
            let trigger = triggers.get(&row.trigger).filter(|trigger| trigger.tenant == row.tenant);
            let Some(trigger) = trigger else {
                outcomes.push((row, RunVerdict::Discarded));
                continue;
            };
            row.mode = trigger.mode;
            if is_over(store, &row).await? {
                outcomes.push((row, RunVerdict::Discarded));
                continue;
            }
            let rights = rights_by_principal.get(&named(trigger)).cloned().unwrap_or_default();
            rows.push((trigger.clone(), row, rights));
        }
        let max_depth = self.max_depth;
        let planned = tokio::task::spawn_blocking(move || plan_rows(rows, max_depth)).await;
        let planned = planned.map_err(|error| StoreError::unexpected(format!("planning of runs failed: {error}")))?;
        for (trigger, row, rights, plan) in planned {
            match plan {
                RowPlan::Decided(verdict) => {
                    let verdict = within_quota(store, &row, verdict).await?;
                    outcomes.push((row, verdict));
                }
                RowPlan::Script { source, depth } => {
                    let actor = Actor::new(&trigger, &row, rights, depth);
                    let script = QueuedScript {
                        lease: batch.lease,
                        row,
                        actor,
                        source,
                        retry: trigger.retry,
                        max_attempts: max_attempts(&trigger),
                    };
                    outcomes.extend(self.scripts.submit(script, taken_at));
                }
            }
        }
        let dispatched = store.settle_outbox(batch.lease, outcomes).await?;
        count(&dispatched);
        let Dispatched { jobs, deliveries, operations, failed, dead, loops, .. } = dispatched;
        let work = format!(
            "{jobs} jobs, {deliveries} deliveries and {operations} operations created, {failed} attempts failed, {dead} \
             dead letters, {loops} loops stopped"
        );
        Ok(TaskOutcome { work: Some(work), next_in })
    }
}

/// A row with its trigger and the current rights of the trigger's principal.
type RowToPlan = (Arc<Trigger>, OutboxRow, PrincipalRights);

/// Plans rows one after the other, on a thread that may block. A tenant whose expressions have taken `DISPATCH_TENANT_MS`
/// waits with its other rows for the next batch.
fn plan_rows(rows: Vec<RowToPlan>, max_depth: i32) -> Vec<(Arc<Trigger>, OutboxRow, PrincipalRights, RowPlan)> {
    let mut spent: HashMap<TenantId, Duration> = HashMap::new();
    let mut scope = None;
    let plan = |(trigger, row, rights): RowToPlan| {
        let spent = spent.entry(row.tenant).or_default();
        let plan = if spent.as_millis() as u64 > DISPATCH_TENANT_MS {
            RowPlan::Decided(RunVerdict::Deferred { delay_ms: 0 })
        } else {
            let started = Instant::now();
            let plan = plan(&trigger, &row, &rights, max_depth, &mut scope);
            *spent += started.elapsed();
            plan
        };
        (trigger, row, rights, plan)
    };
    rows.into_iter().map(plan).collect()
}

/// The variables of the event that was planned last: rows of one event follow each other.
type LastScope = Option<(EventId, Result<Scope, ExpressionError>)>;

fn plan(
    trigger: &Trigger,
    row: &OutboxRow,
    rights: &PrincipalRights,
    max_depth: i32,
    scope: &mut LastScope,
) -> RowPlan {
    if !trigger.enabled && row.op != crate::triggers::plan::MANUAL_FIRE {
        return RowPlan::Decided(RunVerdict::Deferred { delay_ms: OFF_MS });
    }
    let Some(depth) = next_depth(row.depth, max_depth) else {
        tracing::warn!(trigger = %trigger.id, event = %row.event, depth = row.depth, "stopped a trigger loop");
        return RowPlan::Decided(RunVerdict::Loop);
    };
    if scope.as_ref().is_none_or(|(event, _)| *event != row.event) {
        *scope = Some((row.event, Scope::new(&row.head, &row.data)));
    }
    let (_, scope) = scope.as_ref().expect("it was set above");
    let planned = match scope {
        Ok(scope) => run_in(trigger, row, scope, depth, rights),
        Err(error) => Err(error.clone().into()),
    };
    RowPlan::Decided(match planned {
        Ok(PlannedRun::Job(job)) => RunVerdict::Job(job),
        Ok(PlannedRun::Delivery(delivery)) => RunVerdict::Delivery(delivery),
        Ok(PlannedRun::Operation(operation)) => {
            let (runtime, new) = *operation;
            let (retry, max_attempts) = (trigger.retry, max_attempts(trigger));
            RunVerdict::Operation(Box::new(Operate { runtime, new, retry, max_attempts }))
        }
        Ok(PlannedRun::Script(source)) => return RowPlan::Script { source, depth },
        Err(NotStarted::FilteredOut) => RunVerdict::Discarded,
        Err(NotStarted::Failed(error)) => RunVerdict::Failed(RunFailure {
            error,
            retry: trigger.retry,
            max_attempts: max_attempts(trigger),
            ran: None,
        }),
    })
}

/// Defers the job of a tenant that is over its quota.
async fn within_quota(store: &Store, row: &OutboxRow, verdict: RunVerdict) -> Result<RunVerdict, StoreError> {
    let RunVerdict::Job(job) = &verdict else { return Ok(verdict) };
    let wanted = AdmissionRequest { jobs: 1, payload_bytes: job.payload.len() };
    Ok(match store.admit(row.tenant, wanted).await? {
        Admission::Admitted => verdict,
        Admission::Over { retry_s, .. } => RunVerdict::Deferred { delay_ms: over_quota_ms(store, row, retry_s) },
    })
}

/// Rows that have waited longer are considered less often, so that many rows of one tenant do not delay the others.
fn over_quota_ms(store: &Store, row: &OutboxRow, retry_s: u64) -> i64 {
    // The first 48 bits of a UUIDv7 are its creation time in milliseconds.
    let waited_ms = store.clock().now().millis() - (row.id.as_u128() >> 80) as i64;
    (retry_s.min(OVER_QUOTA_MAX_S) as i64 * 1_000).max(waited_ms / 2).min(OVER_QUOTA_MAX_S as i64 * 1_000)
}

/// True if the job of a queue trigger's row has ended or is at a later attempt, so that the run is no longer needed. A
/// released job is at an earlier attempt, and its next claim waits for this run.
async fn is_over(store: &Store, row: &OutboxRow) -> Result<bool, StoreError> {
    if (row.source.as_str(), row.op.as_str()) != (Source::Queue.as_str(), queue::JOB) {
        return Ok(false);
    }
    let head: Value = serde_json::from_str(&row.head).unwrap_or_default();
    let Some(id) = head["job_id"].as_str().and_then(|id| id.parse().ok()) else { return Ok(false) };
    let claimed: Option<i32> = head["attempt"].as_str().and_then(|attempt| attempt.parse().ok());
    let job = store.job(row.tenant, JobId::new(id)).await?;
    Ok(job.is_none_or(|job| job.state.is_terminal() || claimed.is_some_and(|claimed| job.attempt > claimed)))
}

/// What happens to a row.
enum RowPlan {
    Decided(RunVerdict),
    /// The result of the trigger's script decides.
    Script {
        source: String,
        depth: i32,
    },
}

/// A run that a client waits for is attempted once, because the client gets the error.
fn max_attempts(trigger: &Trigger) -> i32 {
    if trigger.mode == Mode::Sync { 1 } else { trigger.max_attempts }
}

fn named(trigger: &Trigger) -> PrincipalName {
    (trigger.tenant, trigger.principal.clone())
}

fn count(dispatched: &Dispatched) {
    let Dispatched { jobs, deliveries, operations, done, failed, dead, loops, deferred, .. } = dispatched;
    for (outcome, count) in [
        ("fired", jobs + deliveries + operations + done),
        ("failed", *failed),
        ("dead", *dead),
        ("loop_stopped", *loops),
    ] {
        metrics::counter!("windlass_trigger_runs_total", "outcome" => outcome).increment(count as u64);
    }
    metrics::counter!("windlass_trigger_runs_total", "outcome" => "later").increment(*deferred as u64);
}

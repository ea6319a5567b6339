//! Starts what triggers ask for: takes due rows of the outbox in batches and closes each in the transaction that starts
//! its run (T3, T4). Any number of nodes do so at once.

mod scripts;

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use domain::limits::DISPATCH_ROWS;
use domain::trigger::{Source, next_depth, queue};
use domain::{JobId, Standing, TriggerId};
use serde_json::Value;
use store::hints::Topic;
use store::outbox::Taken;
use store::outbox::operate::Operate;
use store::outbox::settle::{Dispatched, Failure, Verdict};
use store::tenants::quota::{Admission, Wanted};
use store::tokens::standing::Named;
use store::triggers::{Mode, Trigger};
use store::{Store, StoreError};

use crate::scripting::Actor;
use crate::task::{Done, Task};
use crate::trigger::{NoRun, Run, run};
pub(crate) use scripts::Scripts;
use scripts::Waiting;

/// Rows of a trigger that is off look again after this.
const OFF_MS: i64 = 30_000;
/// What waits for its tenant's quota is looked at again after this at the latest.
const OVER_QUOTA_MAX_S: u64 = 300;

pub(crate) struct DispatchOutbox {
    pub(crate) max_depth: i32,
    pub(crate) scripts: Scripts,
}

impl Task for DispatchOutbox {
    const NAME: &'static str = "dispatch_outbox";
    const EVERY: Duration = Duration::from_millis(250);
    const WAKE: Option<Topic> = Some(Topic::Outbox);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let taken_at = Instant::now();
        let batch = store.take_outbox().await?;
        if batch.rows.is_empty() {
            return Ok(Done::nothing());
        }
        let full = batch.rows.len() == DISPATCH_ROWS;
        let mut ids: Vec<TriggerId> = batch.rows.iter().map(|row| row.trigger).collect();
        ids.sort_unstable();
        ids.dedup();
        let triggers: HashMap<TriggerId, Trigger> =
            store.triggers(ids).await?.into_iter().map(|trigger| (trigger.id, trigger)).collect();
        let principals: BTreeSet<Named> = triggers.values().map(named).collect();
        let standings = store.standings(principals).await?;
        let mut outcomes = Vec::with_capacity(batch.rows.len());
        for mut row in batch.rows {
            let trigger = triggers.get(&row.trigger).filter(|trigger| trigger.tenant == row.tenant);
            let Some(trigger) = trigger else {
                outcomes.push((row, Verdict::Dropped));
                continue;
            };
            row.mode = trigger.mode;
            if is_over(store, &row).await? {
                outcomes.push((row, Verdict::Dropped));
                continue;
            }
            let standing = standings.get(&named(trigger)).cloned().unwrap_or_default();
            match self.judge(trigger, &row, &standing) {
                Judged::Verdict(verdict) => {
                    let verdict = within_quota(store, &row, verdict).await?;
                    outcomes.push((row, verdict));
                }
                Judged::Script { source, depth } => {
                    let actor = Actor::new(trigger, &row, standing, depth);
                    let waiting = Waiting {
                        lease: batch.lease,
                        row,
                        actor,
                        source,
                        retry: trigger.retry,
                        max_attempts: tries(trigger),
                    };
                    outcomes.extend(self.scripts.take(waiting, taken_at));
                }
            }
        }
        let dispatched = store.settle_outbox(batch.lease, outcomes).await?;
        count(&dispatched);
        let Dispatched { jobs, deliveries, operations, failed, dead, loops, .. } = dispatched;
        let work = format!(
            "{jobs} jobs, {deliveries} calls and {operations} operations made, {failed} tries failed, {dead} dead \
             letters, {loops} loops stopped"
        );
        Ok(Done { work: Some(work), again_in: full.then_some(Duration::ZERO) })
    }
}

impl DispatchOutbox {
    fn judge(&self, trigger: &Trigger, row: &Taken, standing: &Standing) -> Judged {
        if !trigger.enabled && row.op != crate::trigger::FIRED_BY_HAND {
            return Judged::Verdict(Verdict::Later { delay_ms: OFF_MS });
        }
        let Some(depth) = next_depth(row.depth, self.max_depth) else {
            tracing::warn!(trigger = %trigger.id, event = %row.event, depth = row.depth, "a loop was stopped");
            return Judged::Verdict(Verdict::Loop);
        };
        Judged::Verdict(match run(trigger, row, depth, standing) {
            Ok(Run::Job(job)) => Verdict::Job(job),
            Ok(Run::Delivery(delivery)) => Verdict::Delivery(delivery),
            Ok(Run::Operation(operation)) => {
                let (runtime, new) = *operation;
                let (retry, max_attempts) = (trigger.retry, tries(trigger));
                Verdict::Operation(Box::new(Operate { runtime, new, retry, max_attempts }))
            }
            Ok(Run::Script(source)) => return Judged::Script { source, depth },
            Err(NoRun::Unwanted) => Verdict::Dropped,
            Err(NoRun::Failed(error)) => {
                Verdict::Failed(Failure { error, retry: trigger.retry, max_attempts: tries(trigger), ran: None })
            }
        })
    }
}

/// A tenant that has used up its quota gets its jobs later.
async fn within_quota(store: &Store, row: &Taken, verdict: Verdict) -> Result<Verdict, StoreError> {
    let Verdict::Job(job) = &verdict else { return Ok(verdict) };
    let wanted = Wanted { jobs: 1, payload_bytes: job.payload.len() };
    Ok(match store.admit(row.tenant, wanted).await? {
        Admission::Admitted => verdict,
        Admission::Over { retry_s, .. } => Verdict::Later { delay_ms: over_quota_ms(store, row, retry_s) },
    })
}

/// What has waited for long is looked at less often: a tenant's rows without number keep nobody else's waiting.
fn over_quota_ms(store: &Store, row: &Taken, retry_s: u64) -> i64 {
    // The first 48 bits of its id are the milliseconds at which it came.
    let waited_ms = store.clock().now().millis() - (row.id.as_u128() >> 80) as i64;
    (retry_s.min(OVER_QUOTA_MAX_S) as i64 * 1_000).max(waited_ms / 2).min(OVER_QUOTA_MAX_S as i64 * 1_000)
}

/// Whether the job that the row was handed over for has ended or is at a later attempt: nobody waits for the run. A job
/// that was given back is at an earlier attempt, and whoever takes it next waits for this run.
async fn is_over(store: &Store, row: &Taken) -> Result<bool, StoreError> {
    if (row.source.as_str(), row.op.as_str()) != (Source::Queue.as_str(), queue::JOB) {
        return Ok(false);
    }
    let head: Value = serde_json::from_str(&row.head).unwrap_or_default();
    let Some(id) = head["job_id"].as_str().and_then(|id| id.parse().ok()) else { return Ok(false) };
    let handed: Option<i32> = head["attempt"].as_str().and_then(|attempt| attempt.parse().ok());
    let job = store.job(row.tenant, JobId::new(id)).await?;
    Ok(job.is_none_or(|job| job.state.is_terminal() || handed.is_some_and(|handed| job.attempt > handed)))
}

/// What is to become of a row.
enum Judged {
    Verdict(Verdict),
    /// Its script says.
    Script {
        source: String,
        depth: i32,
    },
}

/// What somebody waits for is tried once: that one hears of it at once.
fn tries(trigger: &Trigger) -> i32 {
    if trigger.mode == Mode::Sync { 1 } else { trigger.max_attempts }
}

fn named(trigger: &Trigger) -> Named {
    (trigger.tenant, trigger.principal.clone())
}

fn count(dispatched: &Dispatched) {
    let Dispatched { jobs, deliveries, operations, done, failed, dead, loops, later, .. } = dispatched;
    for (outcome, count) in [
        ("fired", jobs + deliveries + operations + done),
        ("failed", *failed),
        ("dead", *dead),
        ("loop_stopped", *loops),
    ] {
        metrics::counter!("windlass_trigger_runs_total", "outcome" => outcome).increment(count as u64);
    }
    metrics::counter!("windlass_trigger_runs_total", "outcome" => "later").increment(*later as u64);
}

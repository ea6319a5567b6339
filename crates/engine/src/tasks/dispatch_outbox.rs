//! Starts what triggers ask for: takes due rows of the outbox in batches and closes each in the transaction that starts
//! its run (T3, T4). Any number of nodes do so at once.

use std::collections::HashMap;
use std::time::Duration;

use domain::TriggerId;
use domain::limits::DISPATCH_ROWS;
use domain::trigger::next_depth;
use store::hints::Topic;
use store::outbox::Taken;
use store::outbox::settle::{Dispatched, Failure, Verdict};
use store::triggers::Trigger;
use store::{Store, StoreError};

use crate::task::{Done, Task};
use crate::trigger::{NoRun, Run, run};

/// Rows of a trigger that is off look again after this.
const OFF_MS: i64 = 30_000;

pub(crate) struct DispatchOutbox {
    pub(crate) max_depth: i32,
}

impl Task for DispatchOutbox {
    const NAME: &'static str = "dispatch_outbox";
    const EVERY: Duration = Duration::from_millis(250);
    const WAKE: Option<Topic> = Some(Topic::Outbox);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
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
        let outcomes = batch.rows.into_iter().map(|row| {
            let verdict = self.judge(triggers.get(&row.trigger), &row);
            (row, verdict)
        });
        let dispatched = store.settle_outbox(batch.lease, outcomes.collect()).await?;
        count(&dispatched);
        let Dispatched { jobs, deliveries, failed, dead, loops, .. } = dispatched;
        let work = format!(
            "{jobs} jobs and {deliveries} calls made, {failed} tries failed, {dead} dead letters, {loops} loops stopped"
        );
        Ok(Done { work: Some(work), again_in: full.then_some(Duration::ZERO) })
    }
}

impl DispatchOutbox {
    fn judge(&self, trigger: Option<&Trigger>, row: &Taken) -> Verdict {
        let Some(trigger) = trigger.filter(|trigger| trigger.tenant == row.tenant) else { return Verdict::Dropped };
        if !trigger.enabled && row.op != crate::trigger::FIRED_BY_HAND {
            return Verdict::Later { delay_ms: OFF_MS };
        }
        let Some(depth) = next_depth(row.depth, self.max_depth) else {
            tracing::warn!(trigger = %trigger.id, event = %row.event, depth = row.depth, "a loop was stopped");
            return Verdict::Loop;
        };
        match run(trigger, row, depth) {
            Ok(Run::Job(job)) => Verdict::Job(job),
            Ok(Run::Delivery(delivery)) => Verdict::Delivery(delivery),
            Err(NoRun::Unwanted) => Verdict::Dropped,
            Err(NoRun::Failed(error)) => {
                Verdict::Failed(Failure { error, retry: trigger.retry, max_attempts: trigger.max_attempts })
            }
        }
    }
}

fn count(dispatched: &Dispatched) {
    let Dispatched { jobs, deliveries, done, failed, dead, loops, later, dropped: _ } = dispatched;
    for (outcome, count) in
        [("fired", jobs + deliveries + done), ("failed", *failed), ("dead", *dead), ("loop_stopped", *loops)]
    {
        metrics::counter!("windlass_trigger_runs_total", "outcome" => outcome).increment(count as u64);
    }
    metrics::counter!("windlass_trigger_runs_total", "outcome" => "later").increment(*later as u64);
}

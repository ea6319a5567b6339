//! From the steps of jobs to what they mean for the subjects they were on.

use std::collections::HashMap;
use std::sync::Arc;

use domain::{JobState, State};

use crate::effects::Effects;
use crate::error::StoreError;
use crate::jobs::transition::{LiveJob, Step};
use crate::lanes::{Lane, LaneCache};
use crate::subjects::work::{self, Left, LeftWith, Work};
use crate::tx::Tx;

/// Costs nothing where no step is on a subject.
pub(crate) async fn steps_on_subjects(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    steps: &[Step],
    of_lane: &HashMap<i64, Arc<Lane>>,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let left = steps.iter().filter_map(|step| {
        let LiveJob { subject, process, triggered_by, .. } = &step.before;
        let work = Work {
            tenant: step.before.tenant,
            subject: subject.as_ref()?.as_str(),
            process: process.as_deref(),
            queue: &of_lane[&step.before.lane].queue,
            kind: &of_lane[&step.before.lane].kind,
            job: step.before.id,
            attempt: step.before.attempt,
            worker: step.before.worker,
        };
        let again = match step.after.state {
            State::Scheduled { run_at } => Some((run_at, step.after.wait_s)),
            _ => None,
        };
        let over = step.after.job_state().is_terminal();
        let outcome = match &step.error {
            Some(error) => {
                LeftWith::Failure { error, retry: step.before.retry, triggered_by: triggered_by.as_deref(), again }
            }
            None if step.after.job_state() == JobState::Succeeded => LeftWith::Success { facts: step.facts.as_ref() },
            None => LeftWith::Neither,
        };
        Some(Left { work, event: step.event, actor: step.actor.as_deref(), outcome, over })
    });
    work::left(tx, lanes, &left.collect::<Vec<_>>(), effects).await
}

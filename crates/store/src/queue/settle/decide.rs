//! Settles outcomes row by row by the transition rules: all but successes, and successes that `finish` refused.

use std::collections::HashSet;

use domain::queue::job::{ClaimRef, Event};
use domain::{Epoch, JobId, JobState, Refusal, WorkerId};

use super::{End, OpenOutcome, SettleBatch, SettleStatus};
use crate::access::caller::Caller;
use crate::db::clock::random_unit;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest};
use crate::queue::get;
use crate::queue::holds::Holder;
use crate::queue::queues;
use crate::queue::retry;
use crate::queue::transition;
use crate::queue::transition::{LiveJob, Transition};
use crate::workflows::journal::resolve;

const TAKE_REVOCATION: Sql = Sql::new(
    &["delete from revocations where worker = $1 and job = $2 and epoch = $3 returning worker, job, epoch"],
    "delete from revocations r using unnest($1::uuid[], $2::uuid[], $3::bigint[]) as n(worker, job, epoch)
     where r.worker = n.worker and r.job = n.job and r.epoch = n.epoch returning r.worker, r.job, r.epoch",
);

impl SettleBatch {
    /// Applies outcomes one by one by the transition rules.
    pub(super) async fn decide(
        &self,
        tx: &mut Tx<'_>,
        open: Vec<OpenOutcome<'_>>,
        statuses: &mut [Vec<SettleStatus>],
        counters: &mut CounterDeltas,
        effects: &mut Effects,
    ) -> Result<(), StoreError> {
        if open.is_empty() {
            return Ok(());
        }
        let mut revoked = self.answered_revocations(tx, &open, effects).await?;
        let mut ids: Vec<JobId> = open.iter().map(|open| open.outcome.job).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut live = transition::load(tx, &ids).await?;
        let ended_ids: Vec<JobId> = ids.into_iter().filter(|id| !live.contains_key(id)).collect();
        let mut ended = transition::load_ended(tx, &ended_ids).await?;
        let mut transitions = Vec::new();
        for open in open {
            let id = open.outcome.job;
            // The first outcome for a revoked claim answers the revocation. A second one finds no claim.
            let answers = revoked.remove(&(open.worker, (id, open.outcome.epoch)));
            let status = if answers && matches!(open.outcome.end, End::Cancel) {
                SettleStatus::Applied
            } else if let Some(before) = live.remove(&id) {
                if before.tenant != open.tenant {
                    SettleStatus::NotFound
                } else {
                    match self.transition(tx, &open, before, effects).await? {
                        Ok(transition) => {
                            // A second outcome for the job in this batch finds it ended, or its claim lost to the next
                            // attempt.
                            let over = transition.after.job_state().is_terminal();
                            let epoch = if over { transition.before.epoch } else { transition.before.epoch.next() };
                            ended.insert(id, (open.tenant, epoch));
                            transitions.push(transition);
                            SettleStatus::Applied
                        }
                        Err((refusal, before)) => {
                            live.insert(id, before);
                            refused(refusal)
                        }
                    }
                }
            } else {
                SettleStatus::of_ended(ended.get(&id), open.tenant, open.outcome.epoch)
            };
            statuses[open.place.0][open.place.1] = status;
        }
        transition::write(tx, &self.lanes, transitions, counters, effects).await
    }

    /// Deletes the revocations that these outcomes answer, and releases the holds of their claims.
    async fn answered_revocations(
        &self,
        tx: &mut Tx<'_>,
        open: &[OpenOutcome<'_>],
        effects: &mut Effects,
    ) -> Result<HashSet<(WorkerId, Holder)>, StoreError> {
        let columns = [
            Column::uuids(open.iter().map(|open| open.worker.uuid())),
            Column::jobs(open.iter().map(|open| open.outcome.job)),
            Column::ints(open.iter().map(|open| open.outcome.epoch.0)),
        ];
        let mut answered = HashSet::new();
        for row in tx.query_each(&TAKE_REVOCATION, &columns, &[]).await? {
            answered.insert((WorkerId::new(row.uuid("worker")?), (row.job("job")?, Epoch(row.int("epoch")?))));
        }
        let holders: Vec<Holder> = answered.iter().map(|(_, holder)| *holder).collect();
        transition::release_holds(tx, &self.lanes, &holders, effects).await?;
        Ok(answered)
    }

    async fn transition(
        &self,
        tx: &mut Tx<'_>,
        open: &OpenOutcome<'_>,
        before: LiveJob,
        effects: &mut Effects,
    ) -> Result<Result<Transition, (Refusal, LiveJob)>, StoreError> {
        let lane = self.lanes.one(tx, before.lane).await?;
        let settings = queues::settings(tx, before.tenant, &lane.queue).await?;
        let job = before.job(&lane.kind, &settings)?;
        let by = ClaimRef { worker: open.worker, epoch: open.outcome.epoch };
        let chosen_backoff = open.outcome.end.chosen_backoff(tx.now());
        let (event, name, error) = match &open.outcome.end {
            End::Finish(_) | End::FinishWith { .. } => (Event::Finish { by }, "finished", None),
            End::Fail(error) | End::FailUntil { error, .. } => {
                let (retry_at, error) = (chosen_backoff, error.clone());
                (Event::Fail { by, error: error.clone(), random_unit: random_unit(), retry_at }, "failed", Some(error))
            }
            End::Cancel => (Event::CancelClaimed { by }, "canceled", None),
            End::Snooze { delay_ms } => (Event::Snooze { by, delay_ms: *delay_ms }, "snoozed", None),
            End::Release => (Event::Release { by }, "released", None),
            End::Suspend(wake) => {
                let is_satisfied = resolve::is_satisfied(tx, open.outcome.job, wake).await?;
                (Event::Suspend { by, is_satisfied }, "suspended", None)
            }
            End::ContinueAs { .. } => (Event::Finish { by }, "finished", None),
        };
        let mut result = open.outcome.end.result().map(str::to_owned);
        let facts = open.outcome.end.facts().cloned();
        let applied = job.apply(event, tx.now());
        match (&applied, &open.outcome.end) {
            (Ok(after), End::Suspend(wake)) if after.job_state() == JobState::Waiting => {
                resolve::arm(tx, before.id, wake).await?;
            }
            (Ok(_), End::ContinueAs { payload }) => {
                result = Some(continue_as(tx, &before, payload, effects).await?);
            }
            _ => {}
        }
        Ok(match applied {
            Ok(after) => {
                Ok(Transition { facts, chosen_backoff, ..Transition::new(before, after, name, error, result) })
            }
            Err(refusal) => Err((refusal, before)),
        })
    }
}

/// Enqueues the successor of a job: a job with the same settings and another payload. Returns the result of the job.
async fn continue_as(
    tx: &mut Tx<'_>,
    before: &LiveJob,
    payload: &str,
    effects: &mut Effects,
) -> Result<String, StoreError> {
    let old = get::find(tx, before.tenant, before.id).await?;
    let old = old.ok_or_else(|| StoreError::unexpected("a locked job moved"))?;
    let by = Caller::new(old.principal.clone()).at_depth(old.depth);
    let request =
        EnqueueRequest::new(before.tenant, vec![retry::copy(&old, Some(payload.into()), &by)], vec![before.lane]);
    let created = match EnqueueBatch::one(request).run(tx).await?.pop() {
        Some(EnqueueReply::Accepted(mut jobs)) => jobs.pop(),
        _ => None,
    };
    let created = created.ok_or_else(|| StoreError::unexpected("a successor was not created"))?;
    effects.ready.insert((created.tenant, created.queue));
    Ok(format!(r#"{{"continued_as":"{}"}}"#, created.id))
}

fn refused(refusal: Refusal) -> SettleStatus {
    match refusal {
        Refusal::AlreadyEnded => SettleStatus::AlreadyEnded,
        Refusal::ClaimLost | Refusal::Illegal { .. } => SettleStatus::ClaimLost,
    }
}

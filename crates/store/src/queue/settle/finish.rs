//! Finishes successful jobs, with set-based statements that are guarded by worker and epoch.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::{Epoch, JobId, TenantId, WorkerId};

use super::{End, OpenOutcome, SettleBatch, SettleStatus};
use crate::db::effects::Effects;
use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::transition;
use crate::queue::transition::{EndedRow, Ending, StateChange};

/// Minimum number of successes of one worker and epoch for a statement of their own.
const ALIKE: usize = 4;

impl SettleBatch {
    /// Finishes the jobs that are still claimed, and returns the other outcomes.
    pub(super) async fn finish<'a>(
        &self,
        tx: &mut Tx<'_>,
        finishes: Vec<OpenOutcome<'a>>,
        statuses: &mut [Vec<SettleStatus>],
        counters: &mut CounterDeltas,
        effects: &mut Effects,
    ) -> Result<Vec<OpenOutcome<'a>>, StoreError> {
        let ended = self.finish_all(tx, &finishes).await?;
        let by_job: HashMap<JobId, &OpenOutcome<'a>> = match ended.iter().any(|row| row.subject.is_some()) {
            true => finishes.iter().map(|open| (open.outcome.job, open)).collect(),
            false => HashMap::new(),
        };
        let mut changes: Vec<StateChange<'_>> = Vec::with_capacity(ended.len());
        for row in &ended {
            let open = by_job.get(&row.id);
            changes.push(row.succeeded(open.map(|open| open.worker), open.and_then(|open| open.outcome.end.facts())));
        }
        transition::apply_consequences(tx, &self.lanes, &changes, counters, effects).await?;
        let done: HashSet<JobId> = ended.iter().map(|row| row.id).collect();
        let (applied, refused): (Vec<_>, Vec<_>) =
            finishes.into_iter().partition(|open| done.contains(&open.outcome.job));
        for open in applied {
            statuses[open.place.0][open.place.1] = SettleStatus::Applied;
        }
        Ok(refused)
    }

    /// Moves the successful jobs that are still claimed to `ended`: those without a result in batches, the others row
    /// by row.
    async fn finish_all(&self, tx: &mut Tx<'_>, finishes: &[OpenOutcome<'_>]) -> Result<Vec<EndedRow>, StoreError> {
        let mut alike: BTreeMap<(TenantId, WorkerId, Epoch), Vec<JobId>> = BTreeMap::new();
        let mut singly: Vec<Ending> = Vec::new();
        for open in finishes {
            let of = (open.tenant, open.worker, open.outcome.epoch);
            match &open.outcome.end {
                End::Finish(None) => alike.entry(of).or_default().push(open.outcome.job),
                end => singly.push(Ending::succeeded(of, open.outcome.job, end.result())),
            }
        }
        let mut gone = Vec::with_capacity(finishes.len());
        for (of, jobs) in alike {
            let (taken, mut jobs) = self.claimed_rows.remove(of, jobs);
            for taken in taken {
                match transition::complete_claimed_rows(tx, &taken).await? {
                    Some(finished) => gone.extend(finished),
                    None => jobs.extend(taken.iter().map(|(job, _)| *job)),
                }
            }
            if jobs.len() < ALIKE {
                singly.extend(jobs.into_iter().map(|job| Ending::succeeded(of, job, None)));
            } else {
                gone.extend(transition::complete_batch(tx, of.0, of.1, of.2, &jobs).await?);
            }
        }
        gone.extend(transition::end(tx, &singly).await?);
        Ok(gone)
    }
}

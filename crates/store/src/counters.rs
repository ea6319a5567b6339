//! Kept counters: every commit appends what it changed per queue; a task folds the rows together.

use std::collections::BTreeMap;

use domain::{JobState, Name, TenantId};

use crate::error::StoreError;
use crate::tx::{Column, Row, Sql, Tx};

/// A queue's figures, or a change to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub scheduled: i64,
    pub queued: i64,
    pub running: i64,
    pub succeeded: i64,
    pub failed: i64,
    pub canceled: i64,
    pub swaps_made: i64,
    pub swaps_avoided: i64,
}

impl Counts {
    fn of(&mut self, state: JobState) -> &mut i64 {
        match state {
            JobState::Scheduled => &mut self.scheduled,
            JobState::Queued => &mut self.queued,
            JobState::Loading | JobState::Working => &mut self.running,
            JobState::Succeeded => &mut self.succeeded,
            JobState::Failed => &mut self.failed,
            JobState::Canceled => &mut self.canceled,
        }
    }

    /// Jobs that have not ended.
    pub(crate) fn live(&self) -> i64 {
        self.scheduled + self.queued + self.running
    }

    fn fields(&self) -> [i64; 8] {
        [
            self.scheduled,
            self.queued,
            self.running,
            self.succeeded,
            self.failed,
            self.canceled,
            self.swaps_made,
            self.swaps_avoided,
        ]
    }

    pub(crate) fn at(row: &Row, first: usize) -> Result<Self, StoreError> {
        Ok(Self {
            scheduled: row.int(first)?,
            queued: row.int(first + 1)?,
            running: row.int(first + 2)?,
            succeeded: row.int(first + 3)?,
            failed: row.int(first + 4)?,
            canceled: row.int(first + 5)?,
            swaps_made: row.int(first + 6)?,
            swaps_avoided: row.int(first + 7)?,
        })
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            scheduled: self.scheduled + other.scheduled,
            queued: self.queued + other.queued,
            running: self.running + other.running,
            succeeded: self.succeeded + other.succeeded,
            failed: self.failed + other.failed,
            canceled: self.canceled + other.canceled,
            swaps_made: self.swaps_made + other.swaps_made,
            swaps_avoided: self.swaps_avoided + other.swaps_avoided,
        }
    }
}

/// What one transaction changes, gathered while it runs.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    by_queue: BTreeMap<(TenantId, Name), Counts>,
}

const INSERT: Sql = Sql::new(
    &["insert into counter_deltas
           (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"],
    "insert into counter_deltas
         (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided)
     select * from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[])",
);

impl Changes {
    pub(crate) fn queue(&mut self, tenant: TenantId, queue: &Name) -> &mut Counts {
        self.by_queue.entry((tenant, queue.clone())).or_default()
    }

    pub(crate) fn add(&mut self, tenant: TenantId, queue: &Name, state: JobState, by: i64) {
        *self.queue(tenant, queue).of(state) += by;
    }

    /// So many jobs went from one state to another.
    pub(crate) fn moved(&mut self, tenant: TenantId, queue: &Name, (from, to): (JobState, JobState), jobs: i64) {
        let counts = self.queue(tenant, queue);
        *counts.of(from) -= jobs;
        *counts.of(to) += jobs;
    }

    /// Queues in which jobs ended, with what changed there.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (TenantId, &Name, Counts)> {
        let ended = |counts: &Counts| counts.succeeded + counts.failed + counts.canceled > 0;
        let by_queue = self.by_queue.iter().filter(move |(_, counts)| ended(counts));
        by_queue.map(|((tenant, queue), counts)| (*tenant, queue, *counts))
    }

    pub(crate) async fn write(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let changed: Vec<_> = self.by_queue.iter().filter(|(_, counts)| **counts != Counts::default()).collect();
        let mut columns = vec![
            Column::ints(changed.iter().map(|((tenant, _), _)| tenant.0)),
            Column::texts(changed.iter().map(|((_, queue), _)| queue.as_str())),
        ];
        for field in 0..8 {
            columns.push(Column::ints(changed.iter().map(|(_, counts)| counts.fields()[field])));
        }
        tx.execute_later(&INSERT, &columns, &[]).await
    }
}

//! Stored counters per queue. Each transaction appends its changes as rows of `counter_deltas`; `fold_counters` adds
//! them to the totals.

use std::collections::BTreeMap;

use domain::{JobState, Name, TenantId};

use crate::db::tx::{Column, Row, Sql, Tx};
use crate::error::StoreError;

/// The counters of a queue, or a change to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub waiting: i64,
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
            JobState::Waiting => &mut self.waiting,
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
        self.waiting + self.scheduled + self.queued + self.running
    }

    fn fields(&self) -> [i64; 9] {
        [
            self.scheduled,
            self.queued,
            self.running,
            self.succeeded,
            self.failed,
            self.canceled,
            self.swaps_made,
            self.swaps_avoided,
            self.waiting,
        ]
    }

    /// Reads the nine counters from the columns with their names.
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            waiting: row.int("waiting")?,
            scheduled: row.int("scheduled")?,
            queued: row.int("queued")?,
            running: row.int("running")?,
            succeeded: row.int("succeeded")?,
            failed: row.int("failed")?,
            canceled: row.int("canceled")?,
            swaps_made: row.int("swaps_made")?,
            swaps_avoided: row.int("swaps_avoided")?,
        })
    }
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
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

/// Collects the counter changes of one transaction.
#[derive(Debug, Default)]
pub(crate) struct CounterDeltas {
    by_queue: BTreeMap<(TenantId, Name), Counts>,
}

const INSERT: Sql = Sql::new(
    &["insert into counter_deltas
           (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"],
    "insert into counter_deltas
         (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made, swaps_avoided, waiting)
     select * from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[],
                          $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[])",
);

impl CounterDeltas {
    pub(crate) fn queue(&mut self, tenant: TenantId, queue: &Name) -> &mut Counts {
        self.by_queue.entry((tenant, queue.clone())).or_default()
    }

    pub(crate) fn add(&mut self, tenant: TenantId, queue: &Name, state: JobState, by: i64) {
        *self.queue(tenant, queue).of(state) += by;
    }

    /// Counts `jobs` jobs that changed from one state to another.
    pub(crate) fn moved(&mut self, tenant: TenantId, queue: &Name, (from, to): (JobState, JobState), jobs: i64) {
        let counts = self.queue(tenant, queue);
        *counts.of(from) -= jobs;
        *counts.of(to) += jobs;
    }

    /// Returns the queues in which jobs ended, with all their changes.
    pub(crate) fn ended(&self) -> impl Iterator<Item = (TenantId, &Name, Counts)> {
        let ended = |counts: &Counts| counts.succeeded + counts.failed + counts.canceled > 0;
        let by_queue = self.by_queue.iter().filter(move |(_, counts)| ended(counts));
        by_queue.map(|((tenant, queue), counts)| (*tenant, queue, *counts))
    }

    /// Appends the changes to `counter_deltas`. The insert is deferred: on PostgreSQL it is sent with the commit.
    pub(crate) async fn write(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.defer(&INSERT, &self.columns(), &[]).await
    }

    /// The columns of `counter_deltas`: one row per queue that changed.
    pub(crate) fn columns(&self) -> Vec<Column<'_>> {
        let changed: Vec<_> = self.by_queue.iter().filter(|(_, counts)| **counts != Counts::default()).collect();
        let mut columns = vec![
            Column::ints(changed.iter().map(|((tenant, _), _)| tenant.0)),
            Column::texts(changed.iter().map(|((_, queue), _)| queue.as_str())),
        ];
        for field in 0..9 {
            columns.push(Column::ints(changed.iter().map(|(_, counts)| counts.fields()[field])));
        }
        columns
    }
}

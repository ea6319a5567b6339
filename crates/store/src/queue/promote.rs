//! Promotes scheduled jobs to queued once they are due by the database clock, never earlier. The engine's scheduler
//! task calls it.

use domain::limits::MAINTENANCE_ROWS;
use domain::{JobState, Time};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition::{self, StateChange, WebhookInterest};
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    pub jobs: usize,
    /// Milliseconds until the next scheduled job is due by the database clock. `None` when no job is scheduled.
    pub next_in_ms: Option<i64>,
}

impl Store {
    /// Promotes one batch of due jobs.
    pub async fn promote_due(&self) -> Result<Promoted, StoreError> {
        let (promoted, effects) = self.write(Promote { lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(promoted)
    }
}

struct Promote {
    lanes: LaneCache,
}

const PROMOTE: Sql = Sql::new(
    &["update jobs set state = 'queued', due_at = null, version = version + 1, updated_at = $1
       where id in (select id from jobs where due_at <= $1 order by due_at, id limit $2)
       returning lane, id, attempt, webhook"],
    "with due as materialized (
         select id from jobs where due_at <= $1 order by due_at, id limit $2 for update skip locked)
     update jobs j set state = 'queued', due_at = null, version = version + 1, updated_at = $1
     from due where j.id = due.id returning j.lane, j.id, j.attempt, j.webhook",
);
const NEXT: Sql = Sql::both(&["select due_at from jobs where due_at is not null order by due_at limit 1"]);

impl Operation for Promote {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (Promoted, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Promoted, Effects), StoreError> {
        let now = tx.now();
        let mut effects = Effects::default();
        let mut counters = CounterDeltas::default();
        let rows = tx.query(&PROMOTE, &[Param::Time(now), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        let ids = rows.iter().map(|row| row.int("lane")).collect::<Result<Vec<_>, _>>()?;
        let lanes = self.lanes.of(tx, &ids).await?;
        let mut changes = Vec::with_capacity(rows.len());
        for row in &rows {
            let lane = row.int("lane")?;
            let webhook = if row.is_null("webhook")? { WebhookInterest::AskQueue } else { WebhookInterest::Stored };
            changes.push(StateChange::plain(
                (lanes[&lane].tenant, row.job("id")?, lane),
                (JobState::Scheduled, JobState::Queued),
                row.int("attempt")? as i32,
                webhook,
            ));
        }
        transition::apply_consequences(tx, &self.lanes, &changes, &mut counters, &mut effects).await?;
        counters.write(tx).await?;
        let next = tx.query_opt(&NEXT, &[]).await?.map(|row| row.time("due_at")).transpose()?;
        // A waiting job has a due time that never comes.
        let next = next.filter(|next| *next < Time::NEVER);
        let in_ms = |next: Time| next.ms_since(now).max(0) + 1;
        Ok((Promoted { jobs: ids.len(), next_in_ms: next.map(in_ms) }, effects))
    }
}

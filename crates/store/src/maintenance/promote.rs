//! Scheduled jobs whose time has come get in line. Never early by the database's clock (Q8).

use std::collections::HashMap;
use std::sync::Arc;

use domain::limits::MAINTENANCE_ROWS;
use domain::{JobState, Time};

use crate::counters::Changes;
use crate::deliveries::notices::{self, Notice, queue_webhooks};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{self, jobs::JobChange};
use crate::lanes::{Lane, LaneCache};
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promoted {
    pub jobs: usize,
    /// How long until the next is due, by the database's clock; nothing when none is scheduled.
    pub next_in_ms: Option<i64>,
}

impl Store {
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
    const WATCHES_TRIGGERS: bool = true;
    type Output = (Promoted, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Promoted, Effects), StoreError> {
        let now = tx.now();
        let mut effects = Effects::default();
        let mut changes = Changes::default();
        let rows = tx.query(&PROMOTE, &[Param::Time(now), Param::Int(MAINTENANCE_ROWS as i64)]).await?;
        let ids = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>, _>>()?;
        let lanes = self.lanes.of(tx, &ids).await?;
        for id in &ids {
            let lane = &lanes[id];
            changes.moved(lane.tenant, &lane.queue, (JobState::Scheduled, JobState::Queued), 1);
            effects.ready.insert((lane.tenant, lane.queue.clone()));
        }
        changes.write(tx).await?;
        effects.deliveries = notify(tx, &rows, &lanes).await?;
        effects.outbox = tell(tx, &self.lanes, &rows, &lanes).await?;
        let next = tx.query_opt(&NEXT, &[]).await?.map(|row| row.time(0)).transpose()?;
        let in_ms = |next: Time| next.ms_since(now).max(0) + 1;
        Ok((Promoted { jobs: ids.len(), next_in_ms: next.map(in_ms) }, effects))
    }
}

/// Tells the triggers that listen to jobs.
async fn tell(
    tx: &mut Tx<'_>,
    cache: &LaneCache,
    rows: &[Row],
    lanes: &HashMap<i64, Arc<Lane>>,
) -> Result<bool, StoreError> {
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        let lane = &lanes[&row.int(0)?];
        changes.push(JobChange {
            tenant: lane.tenant,
            job: row.job(1)?,
            queue: lane.queue.clone(),
            kind: lane.kind.clone(),
            from: JobState::Scheduled,
            to: JobState::Queued,
            attempt: row.int(2)? as i32,
        });
    }
    events::jobs::changed(tx, &cache.triggers, changes.into_iter()).await
}

/// Tells whoever asked that these jobs are in line.
async fn notify(tx: &mut Tx<'_>, rows: &[Row], lanes: &HashMap<i64, Arc<Lane>>) -> Result<bool, StoreError> {
    let queues = lanes.values().map(|lane| (lane.tenant, lane.queue.clone())).collect();
    let asked = queue_webhooks(tx, &queues).await?;
    let mut notices = Vec::new();
    for row in rows {
        let lane = &lanes[&row.int(0)?];
        if row.opt_text(3)?.is_some() || asked.contains_key(&(lane.tenant, lane.queue.clone())) {
            let (from, to) = (JobState::Scheduled, JobState::Queued);
            notices.push(Notice { tenant: lane.tenant, job: row.job(1)?, from, to, attempt: row.int(2)? as i32 });
        }
    }
    Ok(notices::write(tx, &notices).await? > 0)
}

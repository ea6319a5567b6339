//! Wakes waiting jobs. Whatever a job waits for calls this module when it has happened, in the same transaction.

use domain::{JobId, JobState, TenantId};

use super::{StateChange, WebhookInterest, apply_consequences};
use crate::db::effects::Effects;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;

// Equivalent to `domain::Job::apply` with `Event::Wake`.
const WAKE: Sql = Sql::new(
    &["update jobs set state = case when run_at > $2 then 'scheduled' else 'queued' end,
           due_at = case when run_at > $2 then run_at end, run_at = max(run_at, $2), version = version + 1,
           updated_at = $2
       where id = $1 and state = 'waiting'
       returning id, tenant, lane, state, attempt, webhook"],
    "with woken as materialized (
         select id from jobs where id = any($1::uuid[]) and state = 'waiting' order by id for update)
     update jobs j set state = case when j.run_at > $2 then 'scheduled' else 'queued' end,
         due_at = case when j.run_at > $2 then j.run_at end, run_at = greatest(j.run_at, $2), version = j.version + 1,
         updated_at = $2
     from woken w where j.id = w.id
     returning j.id, j.tenant, j.lane, j.state, j.attempt, j.webhook",
);

/// Wakes the jobs that are still waiting: they become queued, or scheduled if their `run_at` is in the future. Returns
/// them. Other jobs are unchanged, so a second wake-up has no effect.
pub(crate) async fn wake(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    jobs: &[JobId],
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<Vec<JobId>, StoreError> {
    let now = Param::Time(tx.now());
    let rows = tx.query_each(&WAKE, &[Column::jobs(jobs.iter().copied())], &[now]).await?;
    let mut changes = Vec::with_capacity(rows.len());
    for row in &rows {
        let webhook = if row.is_null("webhook")? { WebhookInterest::AskQueue } else { WebhookInterest::Stored };
        let state = row.text("state")?;
        let to = JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?;
        let job = (TenantId(row.int("tenant")?), row.job("id")?, row.int("lane")?);
        changes.push(StateChange::plain(job, (JobState::Waiting, to), row.int("attempt")? as i32, webhook));
    }
    apply_consequences(tx, lanes, &changes, counters, effects).await?;
    Ok(changes.iter().map(|change| change.job).collect())
}

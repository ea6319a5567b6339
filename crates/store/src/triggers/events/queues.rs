//! Emits events of queues (paused, resumed, drained, …) for queue triggers. Without such a trigger it reads and writes
//! nothing.

use domain::triggers::trigger::{Source, queue};
use domain::{JobId, Name, TenantId};
use serde_json::json;

use crate::db::effects::Effects;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::queues::get::counts;
use crate::triggers::cache::{Listeners, TriggerCache};
use crate::triggers::events::{Event, emit};

/// A change of a queue.
pub(crate) struct QueueChange<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) queue: &'a Name,
    pub(crate) op: &'static str,
    /// Trigger depth of the change.
    pub(crate) depth: i32,
    /// JSON.
    pub(crate) data: String,
}

/// Writes outbox rows for the triggers that match the change. Returns true if there are any.
pub(crate) async fn happened(
    tx: &mut Tx<'_>,
    triggers: &TriggerCache,
    change: QueueChange<'_>,
) -> Result<bool, StoreError> {
    let QueueChange { tenant, queue, op, depth, data } = change;
    let listeners = triggers.current(tx).await?;
    let event = Event::new(tx.now(), tenant, Source::Queue, op, depth, data).with("queue", queue.as_str());
    Ok(emit(tx, &listeners, &[event]).await? > 0)
}

/// Emits `drained` for queues whose last job has just ended: no job is scheduled, queued or running. The caller has not
/// written `changes` yet and passes the ended jobs in `effects`.
///
/// Transactions that end jobs of a watched queue serialize on a lock. If two last jobs end concurrently, only the later
/// transaction sees that both have ended and emits the event.
pub(crate) async fn drained(
    tx: &mut Tx<'_>,
    triggers: &TriggerCache,
    changes: &CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if effects.ended.is_empty() {
        return Ok(());
    }
    let listeners = triggers.current(tx).await?;
    if !listeners.listen_to(Source::Queue) {
        return Ok(());
    }
    let watched: Vec<_> = changes.ended().filter(|(tenant, queue, _)| is_watched(&listeners, *tenant, queue)).collect();
    let locks: Vec<String> =
        watched.iter().map(|(tenant, queue, _)| format!("windlass drained {} {queue}", tenant.0)).collect();
    tx.lock(&locks.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    for (tenant, queue, own) in watched {
        let now = counts(tx, tenant, queue).await? + own;
        if now.live() > 0 {
            continue;
        }
        let data = json!({
            "queue": queue.as_str(), "succeeded": now.succeeded, "failed": now.failed, "canceled": now.canceled,
        });
        let depth = deepest(tx, tenant, queue, &effects.ended).await?;
        let event = Event::new(tx.now(), tenant, Source::Queue, queue::DRAINED, depth, data.to_string());
        effects.outbox |= emit(tx, &listeners, &[event.with("queue", queue.as_str())]).await? > 0;
    }
    Ok(())
}

fn is_watched(listeners: &Listeners, tenant: TenantId, queue: &Name) -> bool {
    let attribute = |name: &str| (name == "queue").then_some(queue.as_str());
    let listeners = listeners.of(tenant, Source::Queue);
    listeners.iter().any(|listener| listener.filter.pattern.matches(queue::DRAINED, attribute))
}

const DEPTHS: Sql = Sql::new(
    &["select depth from ended_jobs where id = $1 and tenant = $2 and queue = $3"],
    "select depth from ended_jobs where id = any($1::uuid[]) and tenant = $2 and queue = $3",
);

/// Returns the maximum trigger depth of the ended jobs. It limits a trigger that refills the queue whenever it is drained.
async fn deepest(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name, ended: &[JobId]) -> Result<i32, StoreError> {
    let params = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let mut deepest = 0;
    for row in tx.query_each(&DEPTHS, &[Column::jobs(ended.iter().copied())], &params).await? {
        deepest = deepest.max(row.int("depth")? as i32);
    }
    Ok(deepest)
}

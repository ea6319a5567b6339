//! What happens to queues as events, for triggers that listen to queues (T1). Without one of them nothing is read and
//! nothing written.

use domain::trigger::{Source, queue};
use domain::{JobId, Name, TenantId};
use serde_json::json;

use crate::counters::Changes;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::queues::get::counts;
use crate::triggers::cache::{Listeners, TriggerCache};
use crate::tx::{Column, Param, Sql, Tx};

/// What someone did to a queue.
pub(crate) struct QueueChange<'a> {
    pub(crate) tenant: TenantId,
    pub(crate) queue: &'a Name,
    pub(crate) op: &'static str,
    /// How many triggers led here.
    pub(crate) depth: i32,
    /// JSON.
    pub(crate) data: String,
}

/// Writes outbox rows for the triggers that hear of it. Gives whether there are any.
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

/// Tells of queues whose last job has just ended: none is scheduled, waiting or running. Called before `changes` are
/// written, with what ended in `effects`.
///
/// Whoever ends jobs of a queue that is listened to waits here for others who do: of two last jobs that end at once, the
/// later transaction sees that both are gone, and it alone tells.
pub(crate) async fn drained(
    tx: &mut Tx<'_>,
    triggers: &TriggerCache,
    changes: &Changes,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if effects.ended.is_empty() {
        return Ok(());
    }
    let listeners = triggers.current(tx).await?;
    if !listeners.listen_to(Source::Queue) {
        return Ok(());
    }
    let heard: Vec<_> = changes.ended().filter(|(tenant, queue, _)| is_heard(&listeners, *tenant, queue)).collect();
    let locks: Vec<String> =
        heard.iter().map(|(tenant, queue, _)| format!("windlass drained {} {queue}", tenant.0)).collect();
    tx.lock(&locks.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    for (tenant, queue, own) in heard {
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

fn is_heard(listeners: &Listeners, tenant: TenantId, queue: &Name) -> bool {
    let attribute = |name: &str| (name == "queue").then_some(queue.as_str());
    let listeners = listeners.of(tenant, Source::Queue);
    listeners.iter().any(|listener| listener.filter.pattern.matches(queue::DRAINED, attribute))
}

const DEPTHS: Sql = Sql::new(
    &["select depth from ended_jobs where id = $1 and tenant = $2 and queue = $3"],
    "select depth from ended_jobs where id = any($1::uuid[]) and tenant = $2 and queue = $3",
);

/// A trigger that fills the queue again whenever it is empty must not run for ever: what ended says how deep it is.
async fn deepest(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name, ended: &[JobId]) -> Result<i32, StoreError> {
    let params = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let mut deepest = 0;
    for row in tx.query_each(&DEPTHS, &[Column::jobs(ended.iter().copied())], &params).await? {
        deepest = deepest.max(row.int(0)? as i32);
    }
    Ok(deepest)
}

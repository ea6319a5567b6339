//! Pauses and resumes queues. Writes one row; no job is touched.

use domain::triggers::trigger::queue::{PAUSED, RESUMED};
use domain::{Name, TenantId};
use serde_json::json;

use crate::access::caller::Caller;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::queues::{QueueChange, happened};

impl Store {
    pub async fn pause_queue(
        &self,
        tenant: TenantId,
        name: Name,
        by: Caller,
        reason: Option<String>,
    ) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        let outbox = self.write(PauseQueue { tenant, name: name.clone(), by, reason, triggers }).await?;
        self.queue_snapshot_cache().invalidate(&(tenant, name));
        self.announce(&Effects { outbox, ..Effects::default() });
        Ok(())
    }

    /// Resumes a queue. Does nothing if it is not paused.
    pub async fn resume_queue(&self, tenant: TenantId, name: Name, by: Caller) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        let outbox = self.write(ResumeQueue { tenant, name: name.clone(), by, triggers }).await?;
        self.queue_snapshot_cache().invalidate(&(tenant, name.clone()));
        self.announce(&Effects { ready: [(tenant, name)].into(), outbox, ..Effects::default() });
        Ok(())
    }
}

struct PauseQueue {
    tenant: TenantId,
    name: Name,
    by: Caller,
    reason: Option<String>,
    triggers: TriggerCache,
}

const IS_PAUSED: Sql = Sql::both(&["select 1 from queues where tenant = $1 and name = $2 and paused_at is not null"]);
const PAUSE: Sql = Sql::both(&["insert into queues (tenant, name, paused_at, paused_by, paused_reason, updated_at)
     values ($1, $2, $3, $4, $5, $3)
     on conflict (tenant, name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at),
         paused_by = excluded.paused_by, paused_reason = excluded.paused_reason, updated_at = excluded.updated_at"]);
const RESUME: Sql = Sql::both(&["update queues set paused_at = null, paused_by = null, paused_reason = null,
         updated_at = $3
     where tenant = $1 and name = $2 and paused_at is not null"]);

impl Operation for PauseQueue {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether a trigger matched the event.
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let (queue, by) = (self.name.as_str(), self.by.name.as_str());
        // Concurrent pauses: the first pauses the queue, the second replaces the reason.
        tx.lock(&[&format!("windlass queue {} {queue}", self.tenant.0)]).await?;
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(queue),
            Param::Time(tx.now()),
            Param::Text(by),
            Param::text(self.reason.as_deref()),
        ];
        let before = tx.query_opt(&IS_PAUSED, &params[..2]).await?.is_some();
        tx.execute(&PAUSE, &params).await?;
        let entry = Entry::by(self.tenant, by, "queue_paused", json!({"queue": queue}).to_string());
        timeline::write(tx, &[Entry { cause: self.reason.as_deref(), ..entry }]).await?;
        if before {
            return Ok(false);
        }
        let data = json!({"queue": queue, "by": by, "reason": self.reason}).to_string();
        let Self { tenant, name, by, .. } = self;
        let change = QueueChange { tenant: *tenant, queue: name, op: PAUSED, depth: by.depth, data };
        happened(tx, &self.triggers, change).await
    }
}

struct ResumeQueue {
    tenant: TenantId,
    name: Name,
    by: Caller,
    triggers: TriggerCache,
}

impl Operation for ResumeQueue {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether a trigger matched the event.
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let (queue, by) = (self.name.as_str(), self.by.name.as_str());
        let params = [Param::Int(self.tenant.0), Param::Text(queue), Param::Time(tx.now())];
        if tx.execute(&RESUME, &params).await? == 0 {
            return Ok(false);
        }
        let entry = Entry::by(self.tenant, by, "queue_resumed", json!({"queue": queue}).to_string());
        timeline::write(tx, &[entry]).await?;
        let data = json!({"queue": queue, "by": by}).to_string();
        let Self { tenant, name, by, .. } = self;
        let change = QueueChange { tenant: *tenant, queue: name, op: RESUMED, depth: by.depth, data };
        happened(tx, &self.triggers, change).await
    }
}

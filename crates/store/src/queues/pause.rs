//! Stops a queue from handing out jobs, with a reason, and lets it go on. One row: no job is touched.

use domain::trigger::queue::{PAUSED, RESUMED};
use domain::{Name, TenantId};
use serde_json::json;

use crate::caller::Caller;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::queues::{QueueChange, happened};
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn pause_queue(
        &self,
        tenant: TenantId,
        name: Name,
        by: Caller,
        reason: Option<String>,
    ) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        let outbox = self.write(Pause { tenant, name: name.clone(), by, reason, triggers }).await?;
        self.kept_surroundings().forget(&(tenant, name));
        self.announce(&Effects { outbox, ..Effects::default() });
        Ok(())
    }

    /// A queue that is not paused is left as it is.
    pub async fn resume_queue(&self, tenant: TenantId, name: Name, by: Caller) -> Result<(), StoreError> {
        let triggers = self.triggers_cache().clone();
        let outbox = self.write(Resume { tenant, name: name.clone(), by, triggers }).await?;
        self.kept_surroundings().forget(&(tenant, name.clone()));
        self.announce(&Effects { ready: [(tenant, name)].into(), outbox, ..Effects::default() });
        Ok(())
    }
}

struct Pause {
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

impl Operation for Pause {
    const WATCHES_TRIGGERS: bool = true;
    /// Whether a trigger heard of it.
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let (queue, by) = (self.name.as_str(), self.by.name.as_str());
        // Of two who pause at once, one does it and the other gives another reason.
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

struct Resume {
    tenant: TenantId,
    name: Name,
    by: Caller,
    triggers: TriggerCache,
}

impl Operation for Resume {
    const WATCHES_TRIGGERS: bool = true;
    /// Whether a trigger heard of it.
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

//! Creates, replaces, enables and disables triggers.

use domain::limits::TRIGGERS_PER_TENANT;
use domain::{TenantId, Time, TriggerId};
use serde_json::json;

use crate::access::tenants::quota;
use crate::db::clock::new_uuid;
use crate::db::codec::retry_to_json;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;
use crate::triggers::NewTrigger;
use crate::triggers::cache::tick;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerPut {
    Done(TriggerId),
    /// Another trigger of the tenant has this name.
    NameTaken,
    /// The tenant has `TRIGGERS_PER_TENANT` triggers.
    TooMany,
    /// The tenant has reached its quota, which is this many triggers.
    OverQuota(i64),
    NotFound,
    /// The trigger was changed or deleted since the caller read it.
    Changed,
}

impl Store {
    /// Generates a trigger id before the trigger exists: secrets in its filter are bound to the id.
    pub fn new_trigger_id(&self) -> TriggerId {
        TriggerId::new(new_uuid(self.clock().now()))
    }

    pub async fn create_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        mut trigger: NewTrigger,
        principal: &str,
    ) -> Result<TriggerPut, StoreError> {
        self.seal_trigger(tenant, id, &mut trigger).await?;
        self.write(CreateTrigger { tenant, id, trigger, principal: principal.to_owned() }).await
    }

    /// Replaces a trigger. From now on its runs have the rights of `principal`.
    pub async fn replace_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        mut trigger: NewTrigger,
        principal: &str,
    ) -> Result<TriggerPut, StoreError> {
        self.seal_trigger(tenant, id, &mut trigger).await?;
        self.write(ReplaceTrigger { tenant, id, trigger, principal: principal.to_owned() }).await
    }

    /// Enables or disables a trigger as `trigger.enabled` says, and leaves everything else unchanged, including its
    /// principal. Returns `Changed` without a write if the trigger was updated since `as_of`.
    pub async fn set_trigger_enabled(
        &self,
        tenant: TenantId,
        id: TriggerId,
        as_of: Time,
        trigger: NewTrigger,
        by: &str,
    ) -> Result<TriggerPut, StoreError> {
        self.write(SetTriggerEnabled { tenant, id, as_of, trigger, by: by.to_owned() }).await
    }
}

struct CreateTrigger {
    tenant: TenantId,
    id: TriggerId,
    trigger: NewTrigger,
    principal: String,
}

const COUNT: Sql = Sql::both(&["select count(*) as triggers from triggers where tenant = $1"]);
const NAMED: Sql = Sql::both(&["select id from triggers where tenant = $1 and name = $2"]);
const INSERT: Sql = Sql::both(&["insert into triggers (id, tenant, name, source, filter, target, mode, retry,
         max_attempts, enabled, principal, created_at, updated_at, next_at, handles)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13, $14)"]);

impl Operation for CreateTrigger {
    type Output = TriggerPut;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TriggerPut, StoreError> {
        // The lock serializes creations per tenant, so the checks of the name and the count hold until the commit.
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let tenant = Param::Int(self.tenant.0);
        let count = tx.query_opt(&COUNT, &[tenant]).await?.map(|row| row.int("triggers")).transpose()?.unwrap_or(0);
        if count as usize >= TRIGGERS_PER_TENANT {
            return Ok(TriggerPut::TooMany);
        }
        if let Some(limit) = quota::trigger_limit(tx, self.tenant).await?.filter(|limit| count >= *limit) {
            return Ok(TriggerPut::OverQuota(limit));
        }
        if tx.query_opt(&NAMED, &[tenant, Param::Text(&self.trigger.name)]).await?.is_some() {
            return Ok(TriggerPut::NameTaken);
        }
        let retry = retry_to_json(self.trigger.retry);
        let params = params(self.tenant, self.id, &self.trigger, &retry, &self.principal, tx);
        tx.execute(&INSERT, &params).await?;
        tick(tx).await?;
        timeline::write(tx, &[timeline_entry(self.tenant, self.id, &self.trigger, &self.principal, "trigger_created")])
            .await?;
        Ok(TriggerPut::Done(self.id))
    }
}

fn timeline_entry<'e>(tenant: TenantId, id: TriggerId, trigger: &NewTrigger, by: &'e str, event: &'e str) -> Entry<'e> {
    Entry::by(tenant, by, event, json!({"trigger": trigger.name, "id": id.uuid()}).to_string())
}

fn params<'p>(
    tenant: TenantId,
    id: TriggerId,
    trigger: &'p NewTrigger,
    retry: &'p str,
    principal: &'p str,
    tx: &Tx<'_>,
) -> [Param<'p>; 14] {
    [
        Param::Uuid(id.uuid()),
        Param::Int(tenant.0),
        Param::Text(&trigger.name),
        Param::Text(trigger.source.as_str()),
        Param::Json(&trigger.filter),
        Param::Json(&trigger.target),
        Param::Text(trigger.mode.as_str()),
        Param::Json(retry),
        Param::Int(i64::from(trigger.max_attempts)),
        Param::Bool(trigger.enabled),
        Param::Text(principal),
        Param::Time(tx.now()),
        Param::time(trigger.next_at),
        Param::Bool(trigger.handles),
    ]
}

struct ReplaceTrigger {
    tenant: TenantId,
    id: TriggerId,
    trigger: NewTrigger,
    principal: String,
}

const REPLACE: Sql = Sql::both(&["update triggers set name = $3, source = $4, filter = $5, target = $6, mode = $7,
         retry = $8, max_attempts = $9, enabled = $10, principal = $11, updated_at = $12, next_at = $13, handles = $14
     where id = $1 and tenant = $2"]);
// Runs that were deferred while the trigger was disabled become due at once.
const WAKE: Sql = Sql::both(&["update outbox set due_at = $2 where trigger_id = $1 and lease is null and due_at > $2"]);

impl Operation for ReplaceTrigger {
    type Output = TriggerPut;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TriggerPut, StoreError> {
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let tenant = Param::Int(self.tenant.0);
        let named = tx.query_opt(&NAMED, &[tenant, Param::Text(&self.trigger.name)]).await?;
        if named.map(|row| row.uuid("id")).transpose()?.is_some_and(|id| id != self.id.uuid()) {
            return Ok(TriggerPut::NameTaken);
        }
        let retry = retry_to_json(self.trigger.retry);
        let params = params(self.tenant, self.id, &self.trigger, &retry, &self.principal, tx);
        if tx.execute(&REPLACE, &params).await? == 0 {
            return Ok(TriggerPut::NotFound);
        }
        if self.trigger.enabled {
            tx.execute(&WAKE, &[params[0], params[11]]).await?;
        }
        tick(tx).await?;
        timeline::write(tx, &[timeline_entry(self.tenant, self.id, &self.trigger, &self.principal, "trigger_changed")])
            .await?;
        Ok(TriggerPut::Done(self.id))
    }
}

struct SetTriggerEnabled {
    tenant: TenantId,
    id: TriggerId,
    as_of: Time,
    trigger: NewTrigger,
    by: String,
}

const TURN: Sql = Sql::both(&["update triggers set enabled = $3, updated_at = $4, next_at = $5
     where id = $1 and tenant = $2 and updated_at = $6"]);

impl Operation for SetTriggerEnabled {
    type Output = TriggerPut;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TriggerPut, StoreError> {
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let (id, now) = (Param::Uuid(self.id.uuid()), Param::Time(tx.now()));
        let enabled = Param::Bool(self.trigger.enabled);
        let next_at = Param::time(self.trigger.next_at);
        let params = [id, Param::Int(self.tenant.0), enabled, now, next_at, Param::Time(self.as_of)];
        if tx.execute(&TURN, &params).await? == 0 {
            return Ok(TriggerPut::Changed);
        }
        if self.trigger.enabled {
            tx.execute(&WAKE, &[id, now]).await?;
        }
        tick(tx).await?;
        timeline::write(tx, &[timeline_entry(self.tenant, self.id, &self.trigger, &self.by, "trigger_changed")])
            .await?;
        Ok(TriggerPut::Done(self.id))
    }
}

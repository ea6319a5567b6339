//! Makes a trigger, replaces one, and turns one on or off.

use domain::limits::TRIGGERS_PER_TENANT;
use domain::{TenantId, Time, TriggerId};
use serde_json::json;

use crate::clock::new_uuid;
use crate::codec::retry_to_json;
use crate::error::StoreError;
use crate::store::Store;
use crate::tenants::quota;
use crate::timeline::{self, Entry};
use crate::triggers::NewTrigger;
use crate::triggers::cache::tick;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done(TriggerId),
    /// Another trigger of the tenant has the name.
    NameTaken,
    TooMany,
    /// The tenant's quota allows this many.
    OverQuota(i64),
    NotFound,
    /// It is gone, or not as it was read.
    Changed,
}

impl Store {
    /// A fresh id, for a trigger whose filter names it.
    pub fn new_trigger_id(&self) -> TriggerId {
        TriggerId::new(new_uuid(self.clock().now()))
    }

    pub async fn create_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        mut trigger: NewTrigger,
        principal: &str,
    ) -> Result<Put, StoreError> {
        self.seal_trigger(tenant, id, &mut trigger).await?;
        self.write(Create { tenant, id, trigger, principal: principal.to_owned() }).await
    }

    /// Replaces what the trigger says; whoever does so answers for it from now on.
    pub async fn replace_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        mut trigger: NewTrigger,
        principal: &str,
    ) -> Result<Put, StoreError> {
        self.seal_trigger(tenant, id, &mut trigger).await?;
        self.write(Replace { tenant, id, trigger, principal: principal.to_owned() }).await
    }

    /// Turns the trigger on or off, as the new one says, and leaves all else: who answers for it, too. One that was changed
    /// since `as_of` is left alone: it may say something else by now.
    pub async fn turn_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        as_of: Time,
        trigger: NewTrigger,
        by: &str,
    ) -> Result<Put, StoreError> {
        self.write(Turn { tenant, id, as_of, trigger, by: by.to_owned() }).await
    }
}

struct Create {
    tenant: TenantId,
    id: TriggerId,
    trigger: NewTrigger,
    principal: String,
}

const COUNT: Sql = Sql::both(&["select count(*) from triggers where tenant = $1"]);
const NAMED: Sql = Sql::both(&["select id from triggers where tenant = $1 and name = $2"]);
const INSERT: Sql = Sql::both(&["insert into triggers (id, tenant, name, source, filter, target, mode, retry,
         max_attempts, enabled, principal, created_at, updated_at, next_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13)"]);

impl Operation for Create {
    type Output = Put;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Put, StoreError> {
        // Two that take the same name wait for each other here, and the second is told.
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let tenant = Param::Int(self.tenant.0);
        let count = tx.query_opt(&COUNT, &[tenant]).await?.map(|row| row.int(0)).transpose()?.unwrap_or(0);
        if count as usize >= TRIGGERS_PER_TENANT {
            return Ok(Put::TooMany);
        }
        if let Some(limit) = quota::triggers(tx, self.tenant).await?.filter(|limit| count >= *limit) {
            return Ok(Put::OverQuota(limit));
        }
        if tx.query_opt(&NAMED, &[tenant, Param::Text(&self.trigger.name)]).await?.is_some() {
            return Ok(Put::NameTaken);
        }
        let retry = retry_to_json(self.trigger.retry);
        let params = params(self.tenant, self.id, &self.trigger, &retry, &self.principal, tx);
        tx.execute(&INSERT, &params).await?;
        tick(tx).await?;
        timeline::write(tx, &[told(self.tenant, self.id, &self.trigger, &self.principal, "trigger_created")]).await?;
        Ok(Put::Done(self.id))
    }
}

fn told<'e>(tenant: TenantId, id: TriggerId, trigger: &NewTrigger, by: &'e str, event: &'e str) -> Entry<'e> {
    Entry::by(tenant, by, event, json!({"trigger": trigger.name, "id": id.uuid()}).to_string())
}

fn params<'p>(
    tenant: TenantId,
    id: TriggerId,
    trigger: &'p NewTrigger,
    retry: &'p str,
    principal: &'p str,
    tx: &Tx<'_>,
) -> [Param<'p>; 13] {
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
    ]
}

struct Replace {
    tenant: TenantId,
    id: TriggerId,
    trigger: NewTrigger,
    principal: String,
}

const REPLACE: Sql = Sql::both(&["update triggers set name = $3, source = $4, filter = $5, target = $6, mode = $7,
         retry = $8, max_attempts = $9, enabled = $10, principal = $11, updated_at = $12, next_at = $13
     where id = $1 and tenant = $2"]);
// What was matched while the trigger was off waits no longer than it must.
const WAKE: Sql = Sql::both(&["update outbox set due_at = $2 where trigger_id = $1 and lease is null and due_at > $2"]);

impl Operation for Replace {
    type Output = Put;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Put, StoreError> {
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let tenant = Param::Int(self.tenant.0);
        let named = tx.query_opt(&NAMED, &[tenant, Param::Text(&self.trigger.name)]).await?;
        if named.map(|row| row.uuid(0)).transpose()?.is_some_and(|id| id != self.id.uuid()) {
            return Ok(Put::NameTaken);
        }
        let retry = retry_to_json(self.trigger.retry);
        let params = params(self.tenant, self.id, &self.trigger, &retry, &self.principal, tx);
        if tx.execute(&REPLACE, &params).await? == 0 {
            return Ok(Put::NotFound);
        }
        if self.trigger.enabled {
            tx.execute(&WAKE, &[params[0], params[11]]).await?;
        }
        tick(tx).await?;
        timeline::write(tx, &[told(self.tenant, self.id, &self.trigger, &self.principal, "trigger_changed")]).await?;
        Ok(Put::Done(self.id))
    }
}

struct Turn {
    tenant: TenantId,
    id: TriggerId,
    as_of: Time,
    trigger: NewTrigger,
    by: String,
}

const TURN: Sql = Sql::both(&["update triggers set enabled = $3, updated_at = $4, next_at = $5
     where id = $1 and tenant = $2 and updated_at = $6"]);

impl Operation for Turn {
    type Output = Put;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Put, StoreError> {
        tx.lock(&[&format!("windlass triggers {}", self.tenant.0)]).await?;
        let (id, now) = (Param::Uuid(self.id.uuid()), Param::Time(tx.now()));
        let enabled = Param::Bool(self.trigger.enabled);
        let next_at = Param::time(self.trigger.next_at);
        let params = [id, Param::Int(self.tenant.0), enabled, now, next_at, Param::Time(self.as_of)];
        if tx.execute(&TURN, &params).await? == 0 {
            return Ok(Put::Changed);
        }
        if self.trigger.enabled {
            tx.execute(&WAKE, &[id, now]).await?;
        }
        tick(tx).await?;
        timeline::write(tx, &[told(self.tenant, self.id, &self.trigger, &self.by, "trigger_changed")]).await?;
        Ok(Put::Done(self.id))
    }
}

//! Reads and lists triggers.

use domain::{TenantId, TriggerId};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::{Trigger, read};

impl Store {
    pub async fn trigger(&self, tenant: TenantId, id: TriggerId) -> Result<Option<Trigger>, StoreError> {
        self.read(GetTrigger { tenant, id }).await
    }

    /// Returns a trigger of any tenant. The caller of a hook is unauthenticated and knows only the trigger's id.
    pub async fn trigger_of_any_tenant(&self, id: TriggerId) -> Result<Option<Trigger>, StoreError> {
        Ok(self.read(GetTriggers { ids: vec![id] }).await?.pop())
    }

    pub async fn triggers(&self, ids: Vec<TriggerId>) -> Result<Vec<Trigger>, StoreError> {
        self.read(GetTriggers { ids }).await
    }

    /// Lists triggers by id, newest first, older than `before`.
    pub async fn list_triggers(
        &self,
        tenant: TenantId,
        before: Option<TriggerId>,
        limit: usize,
    ) -> Result<Vec<Trigger>, StoreError> {
        self.read(ListTriggers { tenant, before, limit }).await
    }
}

struct GetTrigger {
    tenant: TenantId,
    id: TriggerId,
}

const GET: Sql = Sql::both(&["select id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled,
         principal, created_at, updated_at, fired, failed, loops_stopped, last_fired_at, last_error, next_at,
         missed, last_missed_at, handles
     from triggers where id = $1 and tenant = $2"]);
const GET_SOME: Sql = Sql::new(
    &["select id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled, principal, created_at,
           updated_at, fired, failed, loops_stopped, last_fired_at, last_error, next_at,
         missed, last_missed_at, handles
       from triggers where id = $1"],
    "select id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled, principal, created_at,
         updated_at, fired, failed, loops_stopped, last_fired_at, last_error, next_at,
         missed, last_missed_at, handles
     from triggers where id = any($1::uuid[])",
);
const LIST: Sql = Sql::both(&["select id, tenant, name, source, filter, target, mode, retry, max_attempts, enabled,
         principal, created_at, updated_at, fired, failed, loops_stopped, last_fired_at, last_error, next_at,
         missed, last_missed_at, handles
     from triggers where tenant = $1 and id < $2 order by id desc limit $3"]);

impl Operation for GetTrigger {
    type Output = Option<Trigger>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Trigger>, StoreError> {
        let row = tx.query_opt(&GET, &[Param::Uuid(self.id.uuid()), Param::Int(self.tenant.0)]).await?;
        row.as_ref().map(read).transpose()
    }
}

struct GetTriggers {
    ids: Vec<TriggerId>,
}

impl Operation for GetTriggers {
    type Output = Vec<Trigger>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Trigger>, StoreError> {
        let ids = [Column::uuids(self.ids.iter().map(|id| id.uuid()))];
        tx.query_each(&GET_SOME, &ids, &[]).await?.iter().map(read).collect()
    }
}

struct ListTriggers {
    tenant: TenantId,
    before: Option<TriggerId>,
    limit: usize,
}

impl Operation for ListTriggers {
    type Output = Vec<Trigger>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Trigger>, StoreError> {
        let before = self.before.map_or(uuid::Uuid::max(), TriggerId::uuid);
        let params = [Param::Int(self.tenant.0), Param::Uuid(before), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}

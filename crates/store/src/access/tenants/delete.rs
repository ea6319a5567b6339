//! Deletes a tenant with everything that it owns, in bounded parts. `windlass tenant delete` calls it, also while servers run.
//!
//! First its tokens and database roles are deleted, so that nothing acts for it any more, then its triggers, processes and
//! pools, then all other tables, and its own row last. An interrupted deletion continues when it is called again. The tables
//! are read from the schema: every table with a column `tenant` belongs to tenants.

use domain::limits::{TENANT_DELETE_KEYS, TENANT_DELETE_ROWS};
use domain::{Name, TenantId};
use serde_json::json;

use crate::access::tenants::find;
use crate::access::tokens::move_version;
use crate::db::codec::to_json;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;
use crate::triggers::cache::tick;

/// Tables with rows that act for a tenant. These rows are deleted first.
const FIRST: [&str; 5] = ["tokens", "database_roles", "triggers", "processes", "pools"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantDeleted {
    Deleted {
        rows: u64,
    },
    NotFound,
    /// `default` and `system` are part of every installation.
    BuiltIn,
    /// These runtimes have containers, which only their nodes can remove.
    HasContainers(Vec<String>),
}

impl Store {
    /// Deletes the tenant and calls `progress` with each table and the number of rows deleted from it.
    pub async fn delete_tenant(
        &self,
        name: Name,
        actor: &str,
        mut progress: impl FnMut(&str, u64),
    ) -> Result<TenantDeleted, StoreError> {
        let tenant = match self.read(CheckDeletion { name: name.clone() }).await? {
            Ok(tenant) => tenant,
            Err(refused) => return Ok(refused),
        };
        let mut rows = 0;
        for children in [SESSIONS, DELIVERY_ATTEMPTS, HOOK_RECEIPTS, SCHEDULE_SLOTS, FAILURE_HOURS] {
            while self.write(ChangePart { sql: children, tenant }).await? > 0 {}
        }
        for garbage in [ARTIFACT_GARBAGE, FILE_GARBAGE] {
            while self.write(ChangePart { sql: garbage, tenant }).await? > 0 {}
        }
        let mut tables = self.read(ListTables).await?;
        tables.sort_by_key(|table| FIRST.iter().position(|first| *first == table.name).unwrap_or(FIRST.len()));
        loop {
            let before = rows;
            for table in &tables {
                let deleted = self.delete_rows(tenant, table).await?;
                if deleted > 0 {
                    progress(&table.name, deleted);
                }
                rows += deleted;
                if FIRST.contains(&table.name.as_str()) {
                    self.write(DropCaches).await?;
                    self.tokens().invalidate();
                }
            }
            // A request or a task that was under way may have written rows meanwhile.
            if rows == before {
                break;
            }
        }
        self.write(DeleteTenantRow { deleted: tenant, name, actor: actor.to_owned(), rows }).await?;
        Ok(TenantDeleted::Deleted { rows })
    }

    /// Finds the keys of many rows with one query, because not every table has an index on the tenant, and deletes them in
    /// small transactions.
    async fn delete_rows(&self, tenant: TenantId, table: &TenantTable) -> Result<u64, StoreError> {
        let mut deleted = 0;
        loop {
            let keys = self.read(FindKeys { tenant, table: table.clone() }).await?;
            for part in keys.chunks(TENANT_DELETE_ROWS) {
                deleted += self.write(DeleteKeys { tenant, table: table.clone(), keys: part.to_vec() }).await?;
            }
            if keys.len() < TENANT_DELETE_KEYS {
                return Ok(deleted);
            }
        }
    }
}

struct CheckDeletion {
    name: Name,
}

const CONTAINERS: Sql =
    Sql::both(&["select name from runtimes where tenant = $1 and container_id is not null order by name limit $2"]);
/// Runtimes that a refusal names.
const NAMED_RUNTIMES: i64 = 10;

impl Operation for CheckDeletion {
    type Output = Result<TenantId, TenantDeleted>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Some(tenant) = find(tx, &self.name).await? else { return Ok(Err(TenantDeleted::NotFound)) };
        if [TenantId::DEFAULT, TenantId::SYSTEM].contains(&tenant) {
            return Ok(Err(TenantDeleted::BuiltIn));
        }
        let rows = tx.query(&CONTAINERS, &[Param::Int(tenant.0), Param::Int(NAMED_RUNTIMES)]).await?;
        let names = rows.iter().map(|row| row.text("name")).collect::<Result<Vec<_>, _>>()?;
        Ok(if names.is_empty() { Ok(tenant) } else { Err(TenantDeleted::HasContainers(names)) })
    }
}

// Tables without a tenant of their own.
const SESSIONS: Sql = Sql::both(&["delete from sessions where hash in (
     select s.hash from sessions s join tokens t on t.id = s.token where t.tenant = $1 limit $2)"]);
const DELIVERY_ATTEMPTS: Sql = Sql::both(&["delete from delivery_attempts where (delivery, attempt) in (
     select a.delivery, a.attempt from deliveries d join delivery_attempts a on a.delivery = d.id
     where d.tenant = $1 limit $2)"]);
const HOOK_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where (trigger_id, message) in (
     select r.trigger_id, r.message from triggers t join hook_receipts r on r.trigger_id = t.id
     where t.tenant = $1 limit $2)"]);
const SCHEDULE_SLOTS: Sql = Sql::both(&["delete from cron_slots where (trigger_id, slot_at) in (
     select s.trigger_id, s.slot_at from triggers t join cron_slots s on s.trigger_id = t.id
     where t.tenant = $1 limit $2)"]);
const FAILURE_HOURS: Sql = Sql::both(&["delete from failure_hours where (group_id, hour_at) in (
     select h.group_id, h.hour_at from failure_groups g join failure_hours h on h.group_id = g.id
     where g.tenant = $1 limit $2)"]);
// Blobs without a row are collected as garbage.
const ARTIFACT_GARBAGE: Sql = Sql::both(&["insert into blob_garbage (location, since)
     select a.location, $3 from artifacts a where a.tenant = $1 and a.location is not null
         and not exists (select 1 from blob_garbage g where g.location = a.location) limit $2"]);
const FILE_GARBAGE: Sql = Sql::both(&["insert into blob_garbage (location, since)
     select f.location, $3 from openai_files f where f.tenant = $1 and f.location is not null
         and not exists (select 1 from blob_garbage g where g.location = f.location) limit $2"]);

/// Runs a statement on a bounded number of rows and returns how many it changed.
struct ChangePart {
    sql: Sql,
    tenant: TenantId,
}

impl Operation for ChangePart {
    type Output = u64;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = Param::Time(tx.now());
        let params = [Param::Int(self.tenant.0), Param::Int(TENANT_DELETE_ROWS as i64), now];
        let has_time = self.sql.postgres.contains("$3");
        tx.execute(&self.sql, &params[..if has_time { 3 } else { 2 }]).await
    }
}

/// A table with a column `tenant`, and the columns of its primary key on SQLite.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TenantTable {
    name: String,
    key: Vec<String>,
}

struct ListTables;

const TABLES: Sql = Sql::new(
    &["select m.name as name, (select group_concat(k.name) from (
           select name from pragma_table_info(m.name) where pk > 0 order by pk) k) as key
       from sqlite_master m
       where m.type = 'table' and exists (select 1 from pragma_table_info(m.name) where name = 'tenant') order by m.name"],
    "select c.relname::text as name, 'ctid' as key from pg_class c
     join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
     where c.relnamespace = 'windlass'::regnamespace and c.relkind = 'r' order by c.relname",
);

impl Operation for ListTables {
    type Output = Vec<TenantTable>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TenantTable>, StoreError> {
        let rows = tx.query(&TABLES, &[]).await?;
        let table = |row: &Row| {
            let key = row.text("key")?.split(',').map(str::to_owned).collect();
            Ok(TenantTable { name: row.text("name")?, key })
        };
        rows.iter().map(table).collect()
    }
}

/// The keys of rows of a tenant as SQL: physical addresses on PostgreSQL, literals of the primary key on SQLite.
struct FindKeys {
    tenant: TenantId,
    table: TenantTable,
}

impl Operation for FindKeys {
    type Output = Vec<String>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let TenantTable { name, key } = &self.table;
        let key = match tx.is_postgres() {
            true => "ctid::text".to_owned(),
            false => key.iter().map(|column| format!("quote({column})")).collect::<Vec<_>>().join(" || ',' || "),
        };
        let text = format!("select {key} from {name} where tenant = $1 limit $2");
        let params = [Param::Int(self.tenant.0), Param::Int(TENANT_DELETE_KEYS as i64)];
        tx.query_built(&text, &params).await?.iter().map(|row| row.text(0)).collect()
    }
}

struct DeleteKeys {
    tenant: TenantId,
    table: TenantTable,
    keys: Vec<String>,
}

impl Operation for DeleteKeys {
    type Output = u64;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    // An address may have another row by now, so the tenant is compared again.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let TenantTable { name, key } = &self.table;
        let (tenant, keys) = (Param::Int(self.tenant.0), to_json(&self.keys));
        let rows = if tx.is_postgres() {
            let text = format!(
                "delete from {name} where tenant = $1
                     and ctid = any(array(select value::tid from json_array_elements_text($2::json))) returning 1 as deleted"
            );
            tx.query_built(&text, &[tenant, Param::Json(&keys)]).await?
        } else {
            let (columns, keys) = (key.join(", "), self.keys.join("), ("));
            let text = format!(
                "delete from {name} where tenant = $1 and ({columns}) in (values ({keys})) returning 1 as deleted"
            );
            tx.query_built(&text, &[tenant]).await?
        };
        Ok(rows.len() as u64)
    }
}

/// Makes every node drop its cached tokens and triggers.
struct DropCaches;

impl Operation for DropCaches {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        move_version(tx).await?;
        tick(tx).await
    }
}

struct DeleteTenantRow {
    deleted: TenantId,
    name: Name,
    actor: String,
    rows: u64,
}

const DELETE: Sql = Sql::both(&["delete from tenants where id = $1"]);
// The number of a deleted tenant is not used again.
const KEEP_NUMBER: Sql = Sql::both(&["update installation set last_tenant = $1 where id = 1 and last_tenant < $1"]);

impl Operation for DeleteTenantRow {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.lock(&["windlass tenants"]).await?;
        tx.execute(&KEEP_NUMBER, &[Param::Int(self.deleted.0)]).await?;
        if tx.execute(&DELETE, &[Param::Int(self.deleted.0)]).await? > 0 {
            let detail = json!({"tenant": self.name.as_str(), "rows": self.rows}).to_string();
            timeline::write(tx, &[Entry::by(TenantId::DEFAULT, &self.actor, "tenant_deleted", detail)]).await?;
        }
        Ok(())
    }
}

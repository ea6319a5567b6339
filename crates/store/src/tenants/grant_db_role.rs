//! Lets a role of the PostgreSQL database speak for a tenant in SQL: it may call our functions and nothing else.

use domain::{Name, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleGranted {
    Granted,
    NoSuchTenant,
    NoSuchRole,
    /// SQLite has no roles.
    NotPostgres,
}

impl Store {
    /// The role's tenant from now on, in place of one it may have had.
    pub async fn grant_db_role(&self, tenant: Name, role: String) -> Result<RoleGranted, StoreError> {
        self.write(Grant { tenant, role }).await
    }
}

/// What SQL callers may call. Each asks whose role calls it.
const FUNCTIONS: [&str; 4] = ["enqueue", "upsert_signal", "match_failure_signature", "record_ttfs_event"];

struct Grant {
    tenant: Name,
    role: String,
}

const UPSERT: Sql = Sql::both(&["insert into database_roles (role, tenant, granted_at) values ($1, $2, $3)
     on conflict (role) do update set tenant = excluded.tenant, granted_at = excluded.granted_at"]);

impl Operation for Grant {
    type Output = RoleGranted;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RoleGranted, StoreError> {
        if !tx.is_postgres() {
            return Ok(RoleGranted::NotPostgres);
        }
        let Some(TenantId(tenant)) = super::find(tx, &self.tenant).await? else {
            return Ok(RoleGranted::NoSuchTenant);
        };
        let known = tx.query_built("select 1 from pg_roles where rolname = $1", &[Param::Text(&self.role)]).await?;
        if known.is_empty() {
            return Ok(RoleGranted::NoSuchRole);
        }
        tx.execute(&UPSERT, &[Param::Text(&self.role), Param::Int(tenant), Param::Time(tx.now())]).await?;
        // A name in a statement cannot be a parameter; a doubled quote keeps it one name whatever it holds.
        let role = format!("\"{}\"", self.role.replace('"', "\"\""));
        let functions = FUNCTIONS.map(|function| format!("windlass.{function}")).join(", ");
        tx.batch(&format!("grant usage on schema windlass to {role}; grant execute on function {functions} to {role}"))
            .await?;
        Ok(RoleGranted::Granted)
    }
}

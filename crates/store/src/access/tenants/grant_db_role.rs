//! Maps a PostgreSQL role to a tenant. The role may call Windlass's SQL functions and nothing else.

use domain::{Name, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleGranted {
    Granted,
    NoSuchTenant,
    NoSuchRole,
    /// SQLite has no roles.
    NotPostgres,
}

impl Store {
    /// Assigns the role to the tenant. It replaces an earlier assignment of the role.
    pub async fn grant_db_role(&self, tenant: Name, role: String) -> Result<RoleGranted, StoreError> {
        self.write(GrantDbRole { tenant, role }).await
    }
}

/// Functions that SQL callers may execute. Each function resolves the tenant from the calling role.
const FUNCTIONS: [&str; 5] = ["enqueue", "step", "upsert_signal", "match_failure_signature", "record_ttfs_event"];

/// Views that SQL callers may read. Each shows only the rows of the tenant of the calling role.
const VIEWS: [&str; 4] = ["first_signal_snapshots", "ttfs_hourly_summary", "ttfs_daily_summary", "ttfs_slo_breaches"];

struct GrantDbRole {
    tenant: Name,
    role: String,
}

const UPSERT: Sql = Sql::both(&["insert into database_roles (role, tenant, granted_at) values ($1, $2, $3)
     on conflict (role) do update set tenant = excluded.tenant, granted_at = excluded.granted_at"]);

impl Operation for GrantDbRole {
    type Output = RoleGranted;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RoleGranted, StoreError> {
        if !tx.is_postgres() {
            return Ok(RoleGranted::NotPostgres);
        }
        let Some(TenantId(tenant)) = super::find(tx, &self.tenant).await? else {
            return Ok(RoleGranted::NoSuchTenant);
        };
        let role_rows = tx.query_built("select 1 from pg_roles where rolname = $1", &[Param::Text(&self.role)]).await?;
        if role_rows.is_empty() {
            return Ok(RoleGranted::NoSuchRole);
        }
        tx.execute(&UPSERT, &[Param::Text(&self.role), Param::Int(tenant), Param::Time(tx.now())]).await?;
        // An identifier cannot be a parameter. Doubling the quotes keeps any name a single identifier.
        let role = format!("\"{}\"", self.role.replace('"', "\"\""));
        let functions = FUNCTIONS.map(|function| format!("windlass.{function}")).join(", ");
        let views = VIEWS.map(|view| format!("windlass.{view}")).join(", ");
        tx.batch(&format!(
            "grant usage on schema windlass to {role};
             grant execute on function {functions}, windlass.reporting_tenant, windlass.ttfs_percentile to {role};
             grant select on {views} to {role}"
        ))
        .await?;
        Ok(RoleGranted::Granted)
    }
}

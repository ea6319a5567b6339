//! Row-level security on PostgreSQL, forced on the table owner, too. It is the second layer of tenant isolation: the
//! first is that every statement names its tenant.
//!
//! An operation sets `windlass.tenant` when it opens its transaction, in the same round trip: to its tenant, or to the
//! tenants that share a group commit. The database then neither returns nor accepts rows of other tenants. Without the
//! setting (maintenance, a user with psql) all rows are visible: only a role that owns the tables can connect, and it
//! is trusted. Row-level security does not apply to a superuser.

use domain::TenantId;

use crate::db::tx::Tx;
use crate::error::StoreError;

/// Creates the policy on every table with a column `tenant`, including tables of later migrations. `tokens` and
/// `database_roles` are exempt, because they are queried before the tenant is known.
const BUILD: &str = "do $$
    declare
        secured record;
    begin
        for secured in
            select c.relname from pg_class c
            join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
            where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
                and c.relname not in ('tokens', 'database_roles')
                and not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'own_tenants')
        loop
            execute format('alter table windlass.%I enable row level security, force row level security', secured.relname);
            execute format('drop policy if exists one_tenant on windlass.%I', secured.relname);
            -- In a sub-select it is looked up once for a statement, not once for a row.
            execute format('create policy own_tenants on windlass.%I using (
                (select nullif(current_setting(''windlass.tenant'', true), '''')) is null
                or tenant = any ((select string_to_array(nullif(current_setting(''windlass.tenant'', true), ''''), '','')
                                  )::bigint[]))', secured.relname);
        end loop;
    end $$";

/// Returns the value of the setting for these tenants. With an empty value the rows of all tenants are visible.
pub(crate) fn tenant_setting(mut tenants: Vec<TenantId>) -> String {
    tenants.sort_unstable();
    tenants.dedup();
    let ids: Vec<String> = tenants.iter().map(|tenant| tenant.0.to_string()).collect();
    ids.join(",")
}

/// The setting that names the tenants of a transaction.
pub(crate) const SETTING: &str = "windlass.tenant";
/// Makes the rows of all tenants visible for the rest of the transaction.
pub(crate) const RESET: &str = "select set_config('windlass.tenant', '', true)";
/// Restricts the rest of the transaction to the given tenants.
pub(crate) const SET_TENANT: &str = "select set_config('windlass.tenant', $1, true)";

/// Creates missing policies. Does nothing on SQLite.
pub(crate) async fn build(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    if tx.is_postgres() { tx.batch(BUILD).await } else { Ok(()) }
}

//! The second wall between tenants (X6), on PostgreSQL: row-level security, forced on the owner too.
//!
//! The first wall is in every statement, which names its tenant. An operation also says whose rows it is about when it opens
//! its transaction (`set local windlass.tenant`, in the same round trip): one tenant's, or those of the tenants that share
//! the commit. From then on the database shows it no row of another and takes none. Where nothing was said (maintenance, a
//! person with psql) all rows are there: only a role that owns the tables gets this far, and it is trusted. A superuser is
//! never walled in.

use domain::TenantId;

use crate::error::StoreError;
use crate::tx::Tx;

/// Every table with a tenant gets the policy, also those of later migrations. Tokens, database roles and tenants are asked
/// before it is known whose they are.
const BUILD: &str = "do $$
    declare
        walled record;
    begin
        for walled in
            select c.relname from pg_class c
            join pg_attribute a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
            where c.relnamespace = 'windlass'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
                and c.relname not in ('tokens', 'database_roles')
                and not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'own_tenants')
        loop
            execute format('alter table windlass.%I enable row level security, force row level security', walled.relname);
            execute format('drop policy if exists one_tenant on windlass.%I', walled.relname);
            -- In a sub-select it is looked up once for a statement, not once for a row.
            execute format('create policy own_tenants on windlass.%I using (
                (select nullif(current_setting(''windlass.tenant'', true), '''')) is null
                or tenant = any ((select string_to_array(nullif(current_setting(''windlass.tenant'', true), ''''), '','')
                                  )::bigint[]))', walled.relname);
        end loop;
    end $$";

/// Whose rows a transaction of these tenants may touch, as the setting says it; everyone's, when it names none.
pub(crate) fn around(mut tenants: Vec<TenantId>) -> Option<String> {
    tenants.sort_unstable();
    tenants.dedup();
    let ids: Vec<String> = tenants.iter().map(|tenant| tenant.0.to_string()).collect();
    (!ids.is_empty()).then(|| ids.join(","))
}

/// What names the tenants in a transaction.
pub(crate) const SETTING: &str = "windlass.tenant";
/// Opens the wall within a transaction, and closes it again.
pub(crate) const OPEN: &str = "select set_config('windlass.tenant', '', true)";
pub(crate) const AROUND: &str = "select set_config('windlass.tenant', $1, true)";

/// Puts the wall up where it is missing.
pub(crate) async fn build(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    if tx.is_postgres() { tx.batch(BUILD).await } else { Ok(()) }
}

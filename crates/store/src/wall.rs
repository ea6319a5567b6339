//! The second wall between tenants (X6), on PostgreSQL: row-level security, forced on the owner too.
//!
//! The first wall is in every statement, which names its tenant. An operation of one tenant also says so when it opens its
//! transaction (`set local windlass.tenant`, in the same round trip), and from then on the database shows it no row of
//! another and takes none. Where nothing was said (maintenance, commits that many tenants share, a person with psql) all
//! rows are there: only a role that owns the tables gets this far, and it is trusted. A superuser is never walled in.

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
                and not exists (select 1 from pg_policy p where p.polrelid = c.oid and p.polname = 'one_tenant')
        loop
            execute format('alter table windlass.%I enable row level security, force row level security', walled.relname);
            -- In a sub-select it is looked up once for a statement, not once for a row.
            execute format('create policy one_tenant on windlass.%I using (
                (select nullif(current_setting(''windlass.tenant'', true), '''')) is null
                or tenant = (select nullif(current_setting(''windlass.tenant'', true), '''')::bigint))', walled.relname);
        end loop;
    end $$";

/// What names the tenant in a transaction.
pub(crate) const SETTING: &str = "windlass.tenant";
/// Opens the wall within a transaction, and closes it around a tenant again.
pub(crate) const OPEN: &str = "select set_config('windlass.tenant', '', true)";
pub(crate) const AROUND: &str = "select set_config('windlass.tenant', $1, true)";

/// Puts the wall up where it is missing.
pub(crate) async fn build(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    if tx.is_postgres() { tx.batch(BUILD).await } else { Ok(()) }
}

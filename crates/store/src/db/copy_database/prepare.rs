//! Begins a copy, or continues an interrupted one: checks the target and lists the tables to copy.

use super::PROGRESS;
use super::table::{ColumnKind, Table, TableColumn};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;

/// Tables that the migrations fill. They are replaced; every other table of the target must be empty.
const SEEDED: [&str; 5] = ["access", "installation", "service", "tenants", "trigger_clock"];

/// Creates the table of the progress on the target, or reads it, and lists the tables to copy.
pub(super) struct PrepareCopy {
    pub(super) source: String,
}

const HAS_PROGRESS: Sql =
    Sql::postgres("select 1 as one from pg_tables where schemaname = 'windlass' and tablename = 'copy_progress'");
const TABLES: Sql = Sql::postgres(
    "select c.relname::text as name, a.attname::text as column_name, format_type(a.atttypid, null) as type,
         a.attidentity <> '' as has_sequence,
         coalesce(array_position(i.indkey::int2[], a.attnum)::bigint, -1) as key_place
     from pg_class c join pg_namespace n on n.oid = c.relnamespace
     join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
     join pg_index i on i.indrelid = c.oid and i.indisprimary
     where n.nspname = 'windlass' and c.relkind = 'r' and c.relname not in ('schema_migrations', 'copy_progress')
     order by c.relname, a.attnum",
);

impl Operation for PrepareCopy {
    type Output = Vec<Table>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Table>, StoreError> {
        let mut tables = tables(tx).await?;
        if tx.query_opt(&HAS_PROGRESS, &[]).await?.is_some() {
            for row in tx.query_built(&format!("select source, name, copied from {PROGRESS}"), &[]).await? {
                if row.text("source")? != self.source {
                    let reason = "the target has a part of a copy of another database; use an empty database";
                    return Err(StoreError::Unusable(reason.into()));
                }
                let (name, copied) = (row.text("name")?, row.int("copied")?);
                tables.iter_mut().filter(|table| table.name == name).for_each(|table| table.copied = copied as u64);
            }
            return Ok(tables);
        }
        for table in &tables {
            let is_seeded = SEEDED.contains(&table.name.as_str());
            let any = format!("select 1 as one from {} limit 1", table.name);
            if !is_seeded && !tx.query_built(&any, &[]).await?.is_empty() {
                let reason = format!("the target has rows in the table {}; use an empty database", table.name);
                return Err(StoreError::Unusable(reason));
            }
        }
        for name in SEEDED {
            tx.query_built(&format!("delete from {name}"), &[]).await?;
        }
        let create =
            format!("create table {PROGRESS} (name text primary key, copied bigint not null, source text not null)");
        tx.query_built(&create, &[]).await?;
        let insert = format!("insert into {PROGRESS} (name, copied, source) values ($1, 0, $2)");
        for table in &tables {
            tx.query_built(&insert, &[Param::Text(&table.name), Param::Text(&self.source)]).await?;
        }
        Ok(tables)
    }
}

async fn tables(tx: &mut Tx<'_>) -> Result<Vec<Table>, StoreError> {
    let mut tables: Vec<Table> = Vec::new();
    let mut keys: Vec<Vec<(i64, usize)>> = Vec::new();
    for row in tx.query(&TABLES, &[]).await? {
        let (name, column, kind) = (row.text("name")?, row.text("column_name")?, row.text("type")?);
        if tables.last().is_none_or(|table| table.name != name) {
            tables.push(Table { name, columns: Vec::new(), key: Vec::new(), identity: None, copied: 0 });
            keys.push(Vec::new());
        }
        let (Some(table), Some(key)) = (tables.last_mut(), keys.last_mut()) else { continue };
        let kind = ColumnKind::parse(&kind)
            .ok_or_else(|| StoreError::unexpected(format!("{}.{column} has the unknown type {kind}", table.name)))?;
        let place = row.int("key_place")?;
        if place >= 0 {
            key.push((place, table.columns.len()));
        }
        if row.bool("has_sequence")? {
            table.identity = Some(column.clone());
        }
        table.columns.push(TableColumn { name: column, kind });
    }
    for (table, mut key) in tables.iter_mut().zip(keys) {
        key.sort_unstable();
        table.key = key.into_iter().map(|(_, position)| position).collect();
    }
    Ok(tables)
}

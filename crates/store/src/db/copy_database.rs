//! Copies all tables of a SQLite database to PostgreSQL. `windlass migrate copy` calls it while no server runs.
//!
//! Both schemas have the same tables and columns, so rows are copied by the types in PostgreSQL's catalog. Each batch
//! commits together with its progress: an interrupted copy continues behind its last batch. At the end both databases are
//! read completely and compared by the counts and the hashes of their rows.

use std::fmt::Write;

use domain::Time;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Rows of one batch.
const BATCH_ROWS: usize = 10_000;
/// A batch has fewer rows if the batch before it had more bytes than this.
const BATCH_BYTES: usize = 16 << 20;
const FIRST_BATCH_ROWS: usize = 500;
/// Tables that the migrations fill. They are replaced; every other table of the target must be empty.
const SEEDED: [&str; 5] = ["access", "installation", "service", "tenants", "trigger_clock"];
/// Exists on the target while a copy is in progress.
const PROGRESS: &str = "copy_progress";

/// One table after the copy. Both databases have the same rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedTable {
    pub name: String,
    pub rows: u64,
    /// Sum of the hashes of the rows, so that it does not depend on their order.
    pub hash: u128,
}

impl Store {
    /// Copies everything to an empty PostgreSQL database with the same schema version, or continues such a copy.
    /// `copied` is called after each batch with the table and its number of copied rows.
    pub async fn copy_to(
        &self,
        target: &Store,
        mut copied: impl FnMut(&str, u64),
    ) -> Result<Vec<CopiedTable>, StoreError> {
        if self.is_postgres() || !target.is_postgres() {
            return Err(StoreError::Unusable("copy is from SQLite to PostgreSQL".into()));
        }
        let source = self.read(ReadSourceName).await?;
        let tables = target.write(PrepareCopy { source }).await?;
        for table in &tables {
            self.copy_table(target, table, &mut copied).await?;
        }
        let mut result = Vec::with_capacity(tables.len());
        for table in &tables {
            let (here, there) = (self.digest(table).await?, target.digest(table).await?);
            if here != there {
                return Err(StoreError::Unusable(format!(
                    "the table {} differs after the copy: {} rows here, {} rows there, or other values; was one of the \
                     databases in use?",
                    table.name, here.rows, there.rows
                )));
            }
            result.push(here);
        }
        target.write(FinishCopy { tables }).await?;
        Ok(result)
    }

    async fn copy_table(
        &self,
        target: &Store,
        table: &Table,
        copied: &mut impl FnMut(&str, u64),
    ) -> Result<(), StoreError> {
        let mut done = table.copied;
        let mut batch = self.read(ReadBatch::first(table, done, FIRST_BATCH_ROWS)).await?;
        while !batch.rows.is_empty() {
            let next = batch.next_rows();
            let after = batch.rows.last().cloned();
            done += batch.rows.len() as u64;
            target.write(InsertBatch { table: table.clone(), rows: batch.rows, done }).await?;
            copied(&table.name, done);
            batch = self.read(ReadBatch { table: table.clone(), after, skip: 0, rows: next }).await?;
        }
        Ok(())
    }

    /// Reads all rows of a table in batches.
    async fn digest(&self, table: &Table) -> Result<CopiedTable, StoreError> {
        let mut digest = CopiedTable { name: table.name.clone(), rows: 0, hash: 0 };
        let mut batch = self.read(ReadBatch::first(table, 0, FIRST_BATCH_ROWS)).await?;
        while let Some(last) = batch.rows.last().cloned() {
            for row in &batch.rows {
                digest.hash = digest.hash.wrapping_add(hash(row));
            }
            digest.rows += batch.rows.len() as u64;
            let rows = batch.next_rows();
            batch = self.read(ReadBatch { table: table.clone(), after: Some(last), skip: 0, rows }).await?;
        }
        Ok(digest)
    }
}

/// A table of both databases.
#[derive(Clone, Debug)]
struct Table {
    name: String,
    columns: Vec<TableColumn>,
    /// Positions of the columns of the primary key, in its order.
    key: Vec<usize>,
    /// Column with a sequence, if any.
    identity: Option<String>,
    /// Rows that an interrupted copy has copied.
    copied: u64,
}

#[derive(Clone, Debug)]
struct TableColumn {
    name: String,
    kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Int,
    SmallInt,
    Bool,
    Real,
    Text,
    Json,
    Blob,
    Uuid,
    Time,
}

impl ColumnKind {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "bigint" => Self::Int,
            "integer" => Self::SmallInt,
            "boolean" => Self::Bool,
            "double precision" => Self::Real,
            "text" => Self::Text,
            "json" => Self::Json,
            "bytea" => Self::Blob,
            "uuid" => Self::Uuid,
            "timestamp with time zone" => Self::Time,
            _ => return None,
        })
    }

    /// The type of the array that carries the values, and the expression that converts an element.
    fn array(self, element: &str) -> (&'static str, String) {
        match self {
            Self::Int => ("bigint", element.to_owned()),
            Self::SmallInt => ("bigint", format!("{element}::integer")),
            Self::Bool => ("bigint", format!("{element} <> 0")),
            Self::Real => ("double precision", element.to_owned()),
            Self::Text => ("text", element.to_owned()),
            Self::Json => ("json", element.to_owned()),
            Self::Blob => ("text", format!("{element}::bytea")),
            Self::Uuid => ("uuid", element.to_owned()),
            Self::Time => ("timestamptz", element.to_owned()),
        }
    }
}

/// A value that both databases can store. Text, JSON and hexadecimal bytes are one kind.
#[derive(Clone, Debug, PartialEq)]
enum CopiedValue {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Uuid(Uuid),
    Time(Time),
}

impl CopiedValue {
    fn read(row: &Row, position: usize, kind: ColumnKind) -> Result<Self, StoreError> {
        if row.is_null(position)? {
            return Ok(Self::Null);
        }
        let value = match kind {
            ColumnKind::Int | ColumnKind::SmallInt => row.opt_int(position)?.map(Self::Int),
            ColumnKind::Bool => Some(Self::Int(i64::from(row.bool(position)?))),
            ColumnKind::Real => row.opt_real(position)?.map(Self::Real),
            ColumnKind::Text | ColumnKind::Json => row.opt_text(position)?.map(Self::Text),
            ColumnKind::Blob => row.opt_blob(position)?.map(|bytes| Self::Text(hex(&bytes))),
            ColumnKind::Uuid => row.opt_uuid(position)?.map(Self::Uuid),
            ColumnKind::Time => row.opt_time(position)?.map(Self::Time),
        };
        Ok(value.unwrap_or(Self::Null))
    }

    /// A parameter for a key. Keys have no bytes.
    fn param(&self, kind: ColumnKind) -> Param<'_> {
        match self {
            Self::Null => Param::Null,
            Self::Int(value) if kind == ColumnKind::Bool => Param::Bool(*value != 0),
            Self::Int(value) => Param::Int(*value),
            Self::Real(value) => Param::Real(*value),
            Self::Text(value) => Param::Text(value),
            Self::Uuid(value) => Param::Uuid(*value),
            Self::Time(value) => Param::Time(*value),
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            _ => 8,
        }
    }
}

/// The form in which PostgreSQL reads bytes from text.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

fn hash(row: &[CopiedValue]) -> u128 {
    let mut hash = Sha256::new();
    for value in row {
        match value {
            CopiedValue::Null => hash.update([0]),
            CopiedValue::Int(value) => hash.update([&[1][..], &value.to_be_bytes()].concat()),
            CopiedValue::Real(value) => hash.update([&[2][..], &value.to_bits().to_be_bytes()].concat()),
            CopiedValue::Text(text) => {
                hash.update([&[3][..], &(text.len() as u64).to_be_bytes()].concat());
                hash.update(text);
            }
            CopiedValue::Uuid(value) => hash.update([&[4][..], value.as_bytes()].concat()),
            CopiedValue::Time(value) => hash.update([&[5][..], &value.micros().to_be_bytes()].concat()),
        }
    }
    let bytes: [u8; 32] = hash.finalize().into();
    u128::from_be_bytes(bytes[..16].try_into().expect("half of 32 bytes"))
}

const INSTANCE: Sql = Sql::both(&["select instance from installation where id = 1"]);

/// Reads the name of the source, by which an interrupted copy recognizes it.
struct ReadSourceName;

impl Operation for ReadSourceName {
    type Output = String;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        let row = tx.query_opt(&INSTANCE, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no name"))?.text("instance")
    }
}

/// Creates the table of the progress on the target, or reads it, and lists the tables to copy.
struct PrepareCopy {
    source: String,
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

/// Reads the rows that follow a row in the order of the primary key.
struct ReadBatch {
    table: Table,
    after: Option<Vec<CopiedValue>>,
    /// Rows to skip, for a copy that continues.
    skip: u64,
    rows: usize,
}

impl ReadBatch {
    fn first(table: &Table, skip: u64, rows: usize) -> Self {
        Self { table: table.clone(), after: None, skip, rows }
    }
}

struct CopiedBatch {
    rows: Vec<Vec<CopiedValue>>,
    asked: usize,
}

impl CopiedBatch {
    /// Rows of the next batch: twice as many while the rows are small.
    fn next_rows(&self) -> usize {
        let bytes: usize = self.rows.iter().flatten().map(CopiedValue::bytes).sum();
        let fitting = self.rows.len().max(1) * BATCH_BYTES / bytes.max(1);
        fitting.min(self.asked * 2).clamp(1, BATCH_ROWS)
    }
}

impl Operation for ReadBatch {
    type Output = CopiedBatch;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CopiedBatch, StoreError> {
        let Table { name, columns, key, .. } = &self.table;
        let listed: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let key_names: Vec<&str> = key.iter().map(|position| listed[*position]).collect();
        let (listed, key_names) = (listed.join(", "), key_names.join(", "));
        let mut params: Vec<Param<'_>> = Vec::new();
        let mut condition = String::new();
        if let Some(after) = &self.after {
            params.extend(key.iter().map(|position| after[*position].param(columns[*position].kind)));
            let marks: Vec<String> = (1..=params.len()).map(|number| format!("${number}")).collect();
            condition = format!(" where ({key_names}) > ({})", marks.join(", "));
        }
        let (limit, offset) = (self.rows, self.skip);
        let text = format!("select {listed} from {name}{condition} order by {key_names} limit {limit} offset {offset}");
        let mut rows = Vec::new();
        for row in tx.query_built(&text, &params).await? {
            let value = |(position, column): (usize, &TableColumn)| CopiedValue::read(&row, position, column.kind);
            rows.push(columns.iter().enumerate().map(value).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(CopiedBatch { rows, asked: self.rows })
    }
}

/// Inserts rows on the target together with the progress of their table.
struct InsertBatch {
    table: Table,
    rows: Vec<Vec<CopiedValue>>,
    done: u64,
}

impl Operation for InsertBatch {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Table { name, columns, .. } = &self.table;
        let (mut arrays, mut values, mut names, mut marks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (position, TableColumn { name, kind }) in columns.iter().enumerate() {
            let (array, value) = kind.array(&format!("n.c{position}"));
            values.push(value);
            names.push(name.as_str());
            marks.push(format!("${}::{array}[]", position + 1));
            arrays.push(self.column(position, *kind));
        }
        let elements: Vec<String> = (0..columns.len()).map(|position| format!("c{position}")).collect();
        let text = format!(
            "insert into {name} ({}) overriding system value select {} from unnest({}) as n ({})",
            names.join(", "),
            values.join(", "),
            marks.join(", "),
            elements.join(", ")
        );
        tx.query_each_built(&text, &arrays).await?;
        let progress = format!("update {PROGRESS} set copied = $1 where name = $2");
        tx.query_built(&progress, &[Param::Int(self.done as i64), Param::Text(name)]).await?;
        Ok(())
    }
}

impl InsertBatch {
    fn column(&self, position: usize, kind: ColumnKind) -> Column<'_> {
        let values = self.rows.iter().map(|row| &row[position]);
        match kind {
            ColumnKind::Int | ColumnKind::SmallInt | ColumnKind::Bool => Column::Int(
                values
                    .map(|value| match value {
                        CopiedValue::Int(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Real => Column::Real(
                values
                    .map(|value| match value {
                        CopiedValue::Real(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Text | ColumnKind::Blob => Column::Text(values.map(CopiedValue::text).collect()),
            ColumnKind::Json => Column::Json(values.map(CopiedValue::text).collect()),
            ColumnKind::Uuid => Column::Uuid(
                values
                    .map(|value| match value {
                        CopiedValue::Uuid(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Time => Column::Time(
                values
                    .map(|value| match value {
                        CopiedValue::Time(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
        }
    }
}

/// Moves the sequences behind the copied numbers and removes the progress.
struct FinishCopy {
    tables: Vec<Table>,
}

impl Operation for FinishCopy {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        for Table { name, identity, .. } in &self.tables {
            let Some(column) = identity else { continue };
            let text = format!(
                "select setval(pg_get_serial_sequence('windlass.{name}', '{column}'), max({column})) from {name}
                 having max({column}) is not null"
            );
            tx.query_built(&text, &[]).await?;
        }
        tx.query_built(&format!("drop table {PROGRESS}"), &[]).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_row_depends_on_every_value_and_its_place() {
        let text = |text: &str| CopiedValue::Text(text.into());
        let rows = [
            vec![text("a"), text("b")],
            vec![text("b"), text("a")],
            vec![text("ab"), text("")],
            vec![text("a"), CopiedValue::Null],
            vec![CopiedValue::Int(0), CopiedValue::Null],
            vec![CopiedValue::Real(0.0), CopiedValue::Null],
            vec![CopiedValue::Time(Time::from_micros(0)), CopiedValue::Null],
        ];
        for (place, row) in rows.iter().enumerate() {
            for other in &rows[place + 1..] {
                assert_ne!(hash(row), hash(other), "{row:?} {other:?}");
            }
        }
        assert_eq!(hex(&[0, 171]), "\\x00ab");
    }

    #[test]
    fn a_batch_of_large_rows_is_followed_by_a_smaller_one() {
        let batch = |bytes: usize, rows: usize| CopiedBatch {
            rows: vec![vec![CopiedValue::Text("x".repeat(bytes))]; rows],
            asked: rows,
        };
        assert_eq!(batch(10, 500).next_rows(), 1_000);
        assert_eq!(batch(1 << 20, 100).next_rows(), 16);
        assert_eq!(batch(64 << 20, 1).next_rows(), 1);
    }
}

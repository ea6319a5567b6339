//! Copies all tables of a SQLite database to PostgreSQL. `windlass migrate copy` calls it while no server runs.
//!
//! Both schemas have the same tables and columns, so rows are copied by the types in PostgreSQL's catalog. Each batch
//! commits together with its progress: an interrupted copy continues behind its last batch. At the end both databases are
//! read completely and compared by the counts and the hashes of their rows.

mod batch;
mod prepare;
mod table;
mod value;

use self::batch::{FIRST_BATCH_ROWS, InsertBatch, ReadBatch};
use self::prepare::PrepareCopy;
use self::table::Table;
use self::value::hash;
use crate::db::tx::{Operation, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

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

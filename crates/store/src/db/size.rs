//! Reads the size of the database and its unused space, for the System page and the metrics.

use crate::db::tx::{Operation, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Size of the database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseSize {
    pub bytes: i64,
    /// SQLite: bytes in free pages.
    pub free_bytes: i64,
    /// PostgreSQL: dead rows, according to its statistics.
    pub dead_rows: i64,
    /// PostgreSQL: the largest tables, with their size including indexes.
    pub largest: Vec<(String, i64)>,
}

impl Store {
    /// Reads the size from the database's own statistics, without scanning a table.
    pub async fn size(&self) -> Result<DatabaseSize, StoreError> {
        self.read(ReadDatabaseSize).await
    }

    /// Returns the size of SQLite's write-ahead log on disk; `None` on PostgreSQL.
    pub fn sqlite_wal_bytes(&self) -> Option<u64> {
        let mut path = self.sqlite_path()?.as_os_str().to_owned();
        path.push("-wal");
        Some(std::fs::metadata(path).map_or(0, |file| file.len()))
    }
}

struct ReadDatabaseSize;

const SIZE: Sql = Sql::new(
    &["select page_count * page_size as bytes, freelist_count * page_size as free_bytes, 0 as dead_rows
       from pragma_page_count, pragma_page_size, pragma_freelist_count"],
    "select coalesce(sum(pg_total_relation_size(relid)), 0)::bigint as bytes, 0::bigint as free_bytes,
         coalesce(sum(n_dead_tup), 0)::bigint as dead_rows
     from pg_stat_user_tables where schemaname = 'windlass'",
);
const LARGEST: Sql = Sql::new(
    &["select '' as name, 0 as bytes where 1 = 0"],
    "select relname::text as name, pg_total_relation_size(relid)::bigint as bytes from pg_stat_user_tables
     where schemaname = 'windlass' order by 2 desc, 1 limit 8",
);

impl Operation for ReadDatabaseSize {
    type Output = DatabaseSize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DatabaseSize, StoreError> {
        let row =
            tx.query_opt(&SIZE, &[]).await?.ok_or_else(|| StoreError::unexpected("the size query returned no row"))?;
        let tables = tx.query(&LARGEST, &[]).await?;
        let largest =
            tables.iter().map(|row| Ok((row.text("name")?, row.int("bytes")?))).collect::<Result<_, StoreError>>()?;
        Ok(DatabaseSize {
            bytes: row.int("bytes")?,
            free_bytes: row.int("free_bytes")?,
            dead_rows: row.int("dead_rows")?,
            largest,
        })
    }
}

//! How large the database is, and how much of that nobody uses.

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Sql, Tx};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub bytes: i64,
    /// SQLite: bytes of pages that are free.
    pub free_bytes: i64,
    /// PostgreSQL: rows that are dead, as its statistics have it.
    pub dead_rows: i64,
    /// PostgreSQL: the largest tables with their indexes.
    pub largest: Vec<(String, i64)>,
}

impl Store {
    /// From what the database keeps of itself; no table is read.
    pub async fn size(&self) -> Result<Size, StoreError> {
        self.read(Read).await
    }

    /// SQLite's write-ahead log on disk.
    pub fn sqlite_wal_bytes(&self) -> Option<u64> {
        let mut path = self.sqlite_path()?.as_os_str().to_owned();
        path.push("-wal");
        Some(std::fs::metadata(path).map_or(0, |file| file.len()))
    }
}

struct Read;

const SIZE: Sql = Sql::new(
    &["select page_count * page_size, freelist_count * page_size, 0
       from pragma_page_count, pragma_page_size, pragma_freelist_count"],
    "select coalesce(sum(pg_total_relation_size(relid)), 0)::bigint, 0::bigint, coalesce(sum(n_dead_tup), 0)::bigint
     from pg_stat_user_tables where schemaname = 'windlass'",
);
const LARGEST: Sql = Sql::new(
    &["select '', 0 where 1 = 0"],
    "select relname::text, pg_total_relation_size(relid)::bigint from pg_stat_user_tables
     where schemaname = 'windlass' order by 2 desc, 1 limit 8",
);

impl Operation for Read {
    type Output = Size;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Size, StoreError> {
        let row = tx.query_opt(&SIZE, &[]).await?.ok_or_else(|| StoreError::unexpected("no size"))?;
        let tables = tx.query(&LARGEST, &[]).await?;
        let largest = tables.iter().map(|row| Ok((row.text(0)?, row.int(1)?))).collect::<Result<_, StoreError>>()?;
        Ok(Size { bytes: row.int(0)?, free_bytes: row.int(1)?, dead_rows: row.int(2)?, largest })
    }
}

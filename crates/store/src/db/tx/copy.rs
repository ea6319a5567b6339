//! Copies a SQLite database that is in use (SQLite's backup API).

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;

/// Writes a consistent snapshot of the database at `from` to the new file `to`, without syncing it.
pub(crate) fn copy_sqlite(from: &Path, to: &Path) -> Result<(), StoreError> {
    let failed = |error: rusqlite::Error| StoreError::Unusable(format!("cannot copy {}: {error}", from.display()));
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(from, flags).map_err(failed)?;
    let to = to.to_str().ok_or_else(|| StoreError::Unusable("the name of the copy is not UTF-8".into()))?;
    connection.execute("vacuum into ?1", [to]).map(|_| ()).map_err(failed)
}

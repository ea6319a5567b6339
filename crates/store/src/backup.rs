//! A copy of a SQLite database while it is in use. PostgreSQL has tools of its own for that.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx;

impl Store {
    /// Writes a copy as of this moment to a file that is not there yet, and returns once the copy is durable.
    ///
    /// Writers go on meanwhile; the copy is one moment of the database, without free pages and without a WAL.
    pub async fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let Some(path) = self.sqlite_path().map(Path::to_owned) else {
            return Err(StoreError::Unusable(
                "a PostgreSQL database is backed up by its own tools: pg_dump, or pg_basebackup with its WAL".into(),
            ));
        };
        copy(path, to.to_owned()).await
    }
}

/// Puts a copy back in the place of a database that is not there.
pub async fn restore(from: &Path, to: &Path) -> Result<(), StoreError> {
    // A WAL of another database beside the copy would be taken for its own.
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let path = beside(to, suffix);
        if path.exists() {
            return Err(unusable(&path, "is there already; move it away first"));
        }
    }
    if !from.is_file() {
        return Err(unusable(from, "is not a file"));
    }
    copy(from.to_owned(), to.to_owned()).await
}

async fn copy(from: PathBuf, to: PathBuf) -> Result<(), StoreError> {
    let copied = tokio::task::spawn_blocking(move || copy_now(&from, &to)).await;
    copied.map_err(|_| StoreError::unexpected("the copy panicked"))?
}

/// First under another name, so that a file of the right name is always whole.
fn copy_now(from: &Path, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        return Err(unusable(to, "is there already"));
    }
    let part = beside(to, ".part");
    let _leftover = fs::remove_file(&part);
    tx::copy_sqlite(from, &part)?;
    let durable = || -> io::Result<()> {
        File::open(&part)?.sync_all()?;
        fs::rename(&part, to)?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    };
    durable().map_err(|error| unusable(to, &error.to_string()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn unusable(path: &Path, why: &str) -> StoreError {
    StoreError::Unusable(format!("{} {why}", path.display()))
}

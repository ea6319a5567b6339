//! Online backup and restore of a SQLite database. PostgreSQL databases are backed up with PostgreSQL's own tools.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::db::{private_files, tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Writes a consistent copy to a new file and returns when the copy is durable. Fails if the file exists.
    ///
    /// Writers continue during the copy. The copy is one snapshot, without free pages and without a WAL.
    pub async fn back_up(&self, to: &Path) -> Result<(), StoreError> {
        let Some(path) = self.sqlite_path().map(Path::to_owned) else {
            return Err(StoreError::Unusable(
                "backup is for SQLite; back up a PostgreSQL database with pg_dump, or with pg_basebackup and its WAL"
                    .into(),
            ));
        };
        copy(path, to.to_owned()).await
    }
}

/// Copies a backup to the path of a database. Fails if a database exists there.
pub async fn restore(from: &Path, to: &Path) -> Result<(), StoreError> {
    // SQLite would apply a leftover WAL of another database to the copy.
    for suffix in ["", "-wal", "-shm", "-journal"] {
        let path = beside(to, suffix);
        if path.exists() {
            return Err(unusable(&path, "already exists; move it away first"));
        }
    }
    if !from.is_file() {
        return Err(unusable(from, "is not a file"));
    }
    if let Some(folder) = to.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(unusable(folder, "is not a folder; create it first"));
    }
    copy(from.to_owned(), to.to_owned()).await
}

async fn copy(from: PathBuf, to: PathBuf) -> Result<(), StoreError> {
    let copied = tokio::task::spawn_blocking(move || copy_now(&from, &to)).await;
    copied.map_err(|_| StoreError::unexpected("the copy panicked"))?
}

/// Copies to a temporary name first, so that a file under the final name is always complete.
fn copy_now(from: &Path, to: &Path) -> Result<(), StoreError> {
    if to.exists() {
        return Err(unusable(to, "already exists"));
    }
    let part = beside(to, ".part");
    let _leftover = fs::remove_file(&part);
    // SQLite accepts an empty file, and would apply the umask to a new one.
    private_files::create_file(&part).map_err(|error| unusable(&part, &error.to_string()))?;
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

//! The identity of the database file. Two servers on one file, or a server on a file that no path leads to, lose data.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::open_error;
use crate::error::StoreError;

pub(super) struct DatabaseFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl DatabaseFile {
    /// Refuses a file with several names: another server could lock it under another one.
    pub(super) fn find(path: &Path) -> Result<Self, StoreError> {
        let metadata = path.metadata().map_err(|error| open_error(path, &error.to_string()))?;
        if metadata.nlink() > 1 {
            return Err(StoreError::Unusable(format!(
                "{} has {} names (hard links), and another server could use it under another name; remove the others",
                path.display(),
                metadata.nlink()
            )));
        }
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// Fails if the path no longer leads to the open file. What is written then would be lost with it.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let is_same = |found: &Metadata| found.dev() == self.device && found.ino() == self.inode;
        let reason = match self.path.metadata() {
            Ok(found) if is_same(&found) => return Ok(()),
            Ok(_) => "was replaced".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "was deleted or renamed".to_owned(),
            Err(error) => format!("cannot be found: {error}"),
        };
        Err(StoreError::unavailable(format!(
            "the database file {} {reason}; put it back, or stop the server",
            self.path.display()
        )))
    }
}

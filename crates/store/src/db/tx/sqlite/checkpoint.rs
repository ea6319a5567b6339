//! Checkpoints SQLite's log beside the writer, so that commits need not wait for it.
//!
//! The log restarts once all of it is in the file, and a thread beside a busy writer never reaches the end. Therefore a
//! thread copies most of it, and the writer copies the rest when the log has grown further.

use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::sqlite_error;
use crate::error::StoreError;

/// Number of new pages in the log that wake the thread. It wakes last shortly before the writer's turn, which then has
/// little to copy.
const SOON: i32 = 1_200;
/// Number of pages from which on the writer checkpoints.
const PAGES: i32 = 4_000;

/// The thread that copies.
pub(super) struct Copier {
    thread: JoinHandle<()>,
}

impl Copier {
    /// Stops the thread, and closes the writer's connection after its own: the last connection to close copies the rest
    /// and removes the log.
    pub(super) fn close_with(self, mut writer: Connection) {
        let none = None::<fn(&mut Wal, i32) -> rusqlite::Result<()>>;
        if writer.wal_hook(none).is_ok() {
            let _ = self.thread.join();
        }
    }
}

/// Tells the thread to copy what the writer has put into the log.
pub(super) fn beside(writer: &mut Connection, other: Connection) -> Result<Copier, StoreError> {
    let (tell, database_now) = sync_channel(1);
    let thread = std::thread::Builder::new()
        .name("sqlite-copier".into())
        .spawn(move || copy_until_closed(&other, &database_now))
        .map_err(|error| StoreError::unavailable(error.to_string()))?;
    let mut next = SOON;
    let hook = move |log: &mut Wal, pages: i32| {
        if pages < SOON {
            next = SOON;
        } else if pages >= PAGES {
            // A reader or the thread blocks the checkpoint: the next one continues. Committed data is not affected.
            let _ = log.checkpoint();
        } else if pages >= next {
            next = pages + SOON;
            let _ = tell.try_send(());
        }
        Ok(())
    };
    writer.wal_hook(Some(hook)).map_err(sqlite_error)?;
    Ok(Copier { thread })
}

fn copy_until_closed(connection: &Connection, database_now: &Receiver<()>) {
    while database_now.recv().is_ok() {
        if let Err(error) = connection.query_row("pragma wal_checkpoint(passive)", [], |_| Ok(())) {
            tracing::warn!(%error, "SQLite's log could not be copied; the writer does it when there is more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PAGE_BYTES, WRITER_CACHE_KB, connect};
    use super::*;

    /// An estimate: the pages of one commit are those of its blob.
    const COMMIT_PAGES: i32 = 64;

    #[test]
    fn checkpoints_bound_the_write_ahead_log_under_constant_writes() {
        let folder = tempfile::tempdir().expect("there is room");
        let path = folder.path().join("log.db");
        let mut writer = connect(&path, WRITER_CACHE_KB).expect("it opens");
        let copier = beside(&mut writer, connect(&path, WRITER_CACHE_KB).expect("it opens")).expect("it starts");
        writer.execute_batch("create table t (number integer primary key, blob blob)").expect("it is made");
        let rounds = 8 * PAGES / COMMIT_PAGES;
        for number in 0..rounds {
            let insert = "insert or replace into t values (?1 % 10, randomblob(?2))";
            writer.execute(insert, [number, COMMIT_PAGES * PAGE_BYTES as i32]).expect("it goes in");
        }
        let log = folder.path().join("log.db-wal");
        let pages = std::fs::metadata(&log).expect("there is a log").len() / u64::from(PAGE_BYTES);
        assert!(pages < 3 * PAGES as u64, "{pages} pages of log");
        let check: String = writer.query_row("pragma integrity_check", [], |row| row.get(0)).expect("it is checked");
        assert_eq!(check, "ok");
        copier.close_with(writer);
        assert!(!log.exists(), "all of it is in the file");
    }
}

//! The writer thread: takes the operations that arrived since the last commit, runs them in one transaction, commits,
//! and replies.
//!
//! Operations first run without savepoints, because with a savepoint SQLite copies every page before it changes it, and
//! operations rarely fail. If one fails, all are rolled back and run again, each in its own savepoint, so that the
//! failed one affects no other.

use std::time::{Duration, Instant};

use domain::limits::{SHARED_COMMIT_REQUESTS, SQLITE_COALESCE_MS};
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::database_file::DatabaseFile;
use super::{RollbackScope, run_now, sqlite_error};
use crate::db::clock::Clock;
use crate::db::tx::Operation;
use crate::error::StoreError;

/// An operation and the channel of its reply.
pub(super) trait Request: Send {
    /// Runs in the open transaction. Returns whether its effects may stay.
    fn run(&mut self, connection: &mut Connection, clock: &Clock, rollback_scope: RollbackScope) -> bool;

    /// Replies after the commit, or with the reason why there was no transaction.
    fn answer(self: Box<Self>, committed: Result<(), StoreError>);
}

/// An operation that is built when its turn comes.
pub(super) struct PendingOperation<O: Operation, M> {
    make: Option<M>,
    operation: Option<O>,
    result: Result<O::Output, StoreError>,
    reply: oneshot::Sender<Result<O::Output, StoreError>>,
}

impl<O: Operation, M: FnOnce() -> O + Send> PendingOperation<O, M> {
    pub(super) fn new(make: M, reply: oneshot::Sender<Result<O::Output, StoreError>>) -> Self {
        let result = Err(StoreError::unavailable("there was no transaction"));
        Self { make: Some(make), operation: None, result, reply }
    }
}

impl<O: Operation, M: FnOnce() -> O + Send> Request for PendingOperation<O, M> {
    fn run(&mut self, connection: &mut Connection, clock: &Clock, rollback_scope: RollbackScope) -> bool {
        if let Some(make) = self.make.take() {
            self.operation = Some(make());
        }
        let Some(operation) = &self.operation else { return false };
        self.result = match rollback_scope {
            RollbackScope::Transaction => caught(connection, clock, operation, rollback_scope),
            RollbackScope::Savepoint => in_savepoint(connection, clock, operation),
        };
        // After a full disk or an I/O error SQLite may have rolled back by itself. No operation may run without a
        // transaction.
        self.result.is_ok() && !connection.is_autocommit()
    }

    fn answer(self: Box<Self>, committed: Result<(), StoreError>) {
        let _ = self.reply.send(committed.and(self.result));
    }
}

pub(super) fn write_until_closed(
    connection: &mut Connection,
    mut requests: mpsc::Receiver<Box<dyn Request>>,
    clock: &Clock,
    file: &DatabaseFile,
) {
    while let Some(first) = requests.blocking_recv() {
        let mut taken = vec![first];
        let committed = match file.check().and_then(|()| begin(connection)) {
            Ok(()) => share_commit(connection, &mut taken, &mut requests, clock),
            Err(error) => {
                // Nothing ran: every waiting caller gets the same error.
                taken.extend(std::iter::from_fn(|| requests.try_recv().ok()));
                Err(error)
            }
        };
        for request in taken {
            request.answer(committed.as_ref().map(|_| ()).map_err(StoreError::share));
        }
    }
}

fn begin(connection: &Connection) -> Result<(), StoreError> {
    connection.prepare_cached("begin immediate").and_then(|mut begin| begin.execute([])).map_err(sqlite_error)?;
    Ok(())
}

/// Runs the requests, and others that arrive meanwhile, in the open transaction, and commits it.
fn share_commit(
    connection: &mut Connection,
    taken: &mut Vec<Box<dyn Request>>,
    requests: &mut mpsc::Receiver<Box<dyn Request>>,
    clock: &Clock,
) -> Result<(), StoreError> {
    let held_until = Instant::now() + Duration::from_millis(SQLITE_COALESCE_MS);
    let mut all_well = taken.iter_mut().all(|request| request.run(connection, clock, RollbackScope::Transaction));
    while all_well && taken.len() < SHARED_COMMIT_REQUESTS && Instant::now() < held_until {
        let Ok(mut request) = requests.try_recv() else { break };
        all_well = request.run(connection, clock, RollbackScope::Transaction);
        taken.push(request);
    }
    if !all_well && !connection.is_autocommit() {
        tracing::debug!(requests = taken.len(), "a shared commit is run again, each request by itself");
        connection.execute_batch("rollback").map_err(sqlite_error)?;
        begin(connection)?;
        for request in taken {
            request.run(connection, clock, RollbackScope::Savepoint);
        }
    }
    if connection.is_autocommit() {
        // A full disk or an I/O error made SQLite roll back the whole transaction.
        return Err(rolled_back());
    }
    let committed = connection.prepare_cached("commit").and_then(|mut commit| commit.execute([]));
    if committed.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("rollback");
    }
    committed.map(|_| ()).map_err(sqlite_error)
}

fn rolled_back() -> StoreError {
    StoreError::unavailable("the transaction was rolled back")
}

fn in_savepoint<O: Operation>(
    connection: &mut Connection,
    clock: &Clock,
    operation: &O,
) -> Result<O::Output, StoreError> {
    if connection.is_autocommit() {
        return Err(rolled_back());
    }
    connection.execute_batch("savepoint op").map_err(sqlite_error)?;
    let result = caught(connection, clock, operation, RollbackScope::Savepoint);
    if connection.is_autocommit() {
        return result.and_then(|_| Err(rolled_back()));
    }
    if result.is_err() {
        connection.execute_batch("rollback to op").map_err(sqlite_error)?;
    }
    connection.execute_batch("release op").map_err(sqlite_error)?;
    result
}

/// A panic in one operation must not stop the writer, and with it all other operations.
fn caught<O: Operation>(
    connection: &mut Connection,
    clock: &Clock,
    operation: &O,
    rollback_scope: RollbackScope,
) -> Result<O::Output, StoreError> {
    let run = std::panic::AssertUnwindSafe(|| run_now(connection, clock, operation, rollback_scope));
    std::panic::catch_unwind(run).unwrap_or_else(|_| Err(StoreError::unexpected("an operation panicked")))
}

#[cfg(test)]
mod tests {
    use super::super::{WRITER_CACHE_KB, connect};
    use super::*;
    use crate::db::tx::Tx;

    /// Inserts its number, and then fails if asked to.
    struct Put {
        number: i64,
        fails: Option<fn() -> StoreError>,
    }

    impl Operation for Put {
        type Output = i64;

        async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
            tx.batch(&format!("insert into t (n) values ({})", self.number)).await?;
            self.fails.map_or(Ok(self.number), |error| Err(error()))
        }
    }

    /// The replies, and the rows afterwards.
    fn written(operations: Vec<Put>) -> (Vec<Option<i64>>, Vec<i64>) {
        let folder = tempfile::tempdir().expect("there is room");
        let mut connection = connect(&folder.path().join("w.db"), WRITER_CACHE_KB).expect("it opens");
        connection.execute_batch("create table t (n integer)").expect("it is made");
        let (sender, requests) = mpsc::channel::<Box<dyn Request>>(operations.len());
        let mut answers = Vec::new();
        for operation in operations {
            let (reply, answer) = oneshot::channel();
            let asked = PendingOperation::new(move || operation, reply);
            assert!(sender.try_send(Box::new(asked)).is_ok(), "there is room for all");
            answers.push(answer);
        }
        drop(sender);
        let file = DatabaseFile::find(&folder.path().join("w.db")).expect("it exists");
        write_until_closed(&mut connection, requests, &Clock::default(), &file);
        let db_clock = answers.iter_mut().map(|answer| answer.try_recv().expect("all are answered").ok()).collect();
        let mut there = connection.prepare("select n from t order by n").expect("it is read");
        let there = there.query_map([], |row| row.get(0)).expect("it is read").collect::<Result<_, _>>();
        (db_clock, there.expect("numbers"))
    }

    fn put(number: i64) -> Put {
        Put { number, fails: None }
    }

    /// Requirement X4.
    #[test]
    fn a_failed_or_panicking_operation_does_not_affect_its_batch() {
        assert_eq!(written((1..4).map(put).collect()), (vec![Some(1), Some(2), Some(3)], vec![1, 2, 3]));
        let fails = |fails| Put { number: 2, fails: Some(fails) };
        for bad in [fails(|| StoreError::unexpected("a bug")), fails(|| panic!("a worse bug"))] {
            assert_eq!(written(vec![put(1), bad, put(3)]), (vec![Some(1), None, Some(3)], vec![1, 3]));
        }
        assert_eq!(written(vec![fails(|| StoreError::unexpected("alone"))]), (vec![None], vec![]));
    }
}

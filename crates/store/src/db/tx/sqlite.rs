//! SQLite in a file: one writer thread with shared commits, and a pool of readers.

mod checkpoint;
mod database_file;
mod writer;

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use domain::limits::SHARED_COMMIT_REQUESTS;
use rusqlite::config::DbConfig;
use rusqlite::types::Value as SqliteValue;
use rusqlite::vtab::array;
use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use uuid::Uuid;

use self::database_file::DatabaseFile;
use self::writer::{PendingOperation, Request, write_until_closed};
use super::row::{Row, SqliteRow, Value};
use super::value::{Column, Param};
use super::{Driver, Operation, Tx};
use crate::db::clock::Clock;
use crate::db::private_files;
use crate::db::tx::multi_row::{MIN_RANGE_ROWS, ROWS_PER_INSERT, multi_row_insert, range_update};
use crate::error::StoreError;

const READERS: usize = 4;
/// Page size of new files. Statements that change many rows log half as many pages as with the default of 4 KiB, and
/// single jobs are as fast.
const PAGE_BYTES: u32 = 8_192;
/// Page cache, beside that of the system. A larger one used memory and saved no time.
const WRITER_CACHE_KB: u32 = 16 * 1_024;
const READER_CACHE_KB: u32 = 2 * 1_024;
/// Size to which the log is truncated after a long read made it grow.
const WAL_BYTES: u64 = 64 << 20;
const STATEMENTS: usize = 256;
/// Rows that one statement moves between tables at a time.
const PART_ROWS: usize = 100;

pub(crate) struct Sqlite {
    writer: mpsc::Sender<Box<dyn Request>>,
    readers: Readers,
    permits: Arc<Semaphore>,
    clock: Clock,
    path: PathBuf,
    // Dropped last: the writer has been stopped and the readers are closed by then.
    _closing: Closing,
    /// Keeps other servers out for as long as this one lives.
    _lock: Option<File>,
}

/// Waits until the writer has closed the file. The last connection to close checkpoints the log and removes it.
struct Closing {
    writer: Option<JoinHandle<()>>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        // A request may have held the last handle: the writer must not wait for itself.
        let others = self.writer.take().filter(|writer| writer.thread().id() != std::thread::current().id());
        let _ = others.map(JoinHandle::join);
    }
}

type Readers = Arc<Mutex<Vec<Connection>>>;

/// A reader that returns to the pool when dropped, also after a panic or when its caller was dropped.
struct Borrowed {
    /// Taken when it returns.
    connection: Option<Connection>,
    readers: Readers,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // Nothing was written. Without an open transaction there is nothing to end.
        let _ = connection.execute_batch("rollback");
        self.readers.lock().expect("lock poisoned").push(connection);
    }
}

impl Sqlite {
    /// Opens the file, or creates it. With `exclusive`, a second exclusive open fails.
    pub(crate) fn open(path: &Path, clock: Clock, exclusive: bool) -> Result<Self, StoreError> {
        create_database(path)?;
        // One file has one path, and one lock file beside it.
        let path = &path.canonicalize().map_err(|error| open_error(path, &error.to_string()))?;
        let lock = if exclusive { Some(lock(path)?) } else { None };
        let file = DatabaseFile::find(path)?;
        let mut connection = connect(path, WRITER_CACHE_KB)?;
        let copier = checkpoint::beside(&mut connection, connect(path, READER_CACHE_KB)?)?;
        let readers = (0..READERS).map(|_| connect(path, READER_CACHE_KB)).collect::<Result<Vec<_>, _>>()?;
        let (sender, receiver) = mpsc::channel(SHARED_COMMIT_REQUESTS);
        let writer_clock = clock.clone();
        let writer = std::thread::Builder::new()
            .name("sqlite-writer".into())
            .spawn(move || {
                write_until_closed(&mut connection, receiver, &writer_clock, &file);
                copier.close_with(connection);
            })
            .map_err(|error| StoreError::unavailable(error.to_string()))?;
        Ok(Self {
            writer: sender,
            readers: Arc::new(Mutex::new(readers)),
            permits: Arc::new(Semaphore::new(READERS)),
            clock,
            path: path.to_owned(),
            _closing: Closing { writer: Some(writer) },
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Runs an operation that is built when its turn comes.
    pub(crate) async fn write<O: Operation>(
        &self,
        make: impl FnOnce() -> O + Send + 'static,
    ) -> Result<O::Output, StoreError> {
        let (reply, answer) = oneshot::channel();
        let request = Box::new(PendingOperation::new(make, reply));
        let stopped = || StoreError::unavailable("the writer has stopped");
        self.writer.send(request).await.map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }

    pub(crate) async fn read<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError>
    where
        Self: 'static,
    {
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| StoreError::unavailable("closed"))?;
        let connection = self.readers.lock().expect("lock poisoned").pop();
        let mut reader = Borrowed { connection, readers: self.readers.clone(), _permit: permit };
        let clock = self.clock.clone();
        // The reader moves along, so that a dropped caller cannot drop it in the middle.
        let read = tokio::task::spawn_blocking(move || {
            let connection = reader.connection.as_mut().ok_or_else(|| StoreError::unavailable("no reader is left"))?;
            connection.execute_batch("begin").map_err(sqlite_error)?;
            run_now(connection, &clock, &operation, RollbackScope::Savepoint)
        });
        read.await.map_err(|_| StoreError::unexpected("a read panicked"))?
    }
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file =
        private_files::open_or_create_file(Path::new(&name)).map_err(|error| open_error(path, &error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::Unusable(format!("{} is in use by another server", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(open_error(path, &error.to_string())),
    }
}

/// Creates the database file before SQLite does, which would apply the umask. SQLite gives the WAL the mode of the
/// database.
fn create_database(path: &Path) -> Result<(), StoreError> {
    match private_files::create_file(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(open_error(path, &error.to_string())),
        _ => Ok(()),
    }
}

fn open_error(path: &Path, error: &str) -> StoreError {
    StoreError::Unusable(format!("cannot open {}: {error}", path.display()))
}

fn connect(path: &Path, cache_kb: u32) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| open_error(path, &error.to_string()))?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(sqlite_error)?;
    connection
        .execute_batch(&format!(
            "pragma page_size = {PAGE_BYTES}; pragma journal_mode = wal; pragma synchronous = full; pragma foreign_keys = on;
             pragma cache_size = -{cache_kb}; pragma temp_store = memory;
             pragma journal_size_limit = {WAL_BYTES};"
        ))
        .map_err(|error| open_error(path, &error.to_string()))?;
    // Otherwise SQLite plans a statement again for each new value of a limit or of the condition of a partial index.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sqlite_error)?;
    array::load_module(&connection).map_err(sqlite_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(sqlite_error)?;
    let synchronous: i64 =
        connection.pragma_query_value(None, "synchronous", |row| row.get(0)).map_err(sqlite_error)?;
    if mode != "wal" || synchronous != 2 {
        return Err(StoreError::Unusable(format!(
            "{} runs with journal_mode={mode}, synchronous={synchronous}; a power cut could lose acknowledged work",
            path.display()
        )));
    }
    Ok(connection)
}

/// Whether the effects of an operation can be undone alone.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RollbackScope {
    /// No savepoint: if it fails, all operations of the transaction run again.
    Transaction,
    /// In a savepoint, or in a transaction that only reads.
    Savepoint,
}

fn run_now<O: Operation>(
    connection: &mut Connection,
    clock: &Clock,
    operation: &O,
    rollback_scope: RollbackScope,
) -> Result<O::Output, StoreError> {
    let driver = Driver::Sqlite(SqliteTx { connection, rollback_scope });
    let mut tx = Tx { driver, now: clock.now(), trigger_version: None, tenants: String::new() };
    let future = pin!(operation.run(&mut tx));
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(StoreError::unexpected("an operation waited for something outside its transaction")),
    }
}

pub(super) struct SqliteTx<'a> {
    connection: &'a mut Connection,
    rollback_scope: RollbackScope,
}

impl SqliteTx<'_> {
    fn statement(&self, text: &str) -> Result<CachedStatement<'_>, StoreError> {
        let prepared = if text.contains('$') {
            self.connection.prepare_cached(&text.replace('$', "?"))
        } else {
            self.connection.prepare_cached(text)
        };
        prepared.map_err(sqlite_error)
    }

    pub(super) fn prepare(&mut self, texts: &[&str]) -> Result<(), StoreError> {
        texts.iter().try_for_each(|text| self.statement(text).map(|_| ()))
    }

    pub(super) fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        self.connection.execute_batch(text).map_err(sqlite_error)
    }

    pub(super) fn query(&mut self, texts: &[&str], params: &[Param<'_>]) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        for text in texts {
            let mut statement = self.statement(text)?;
            bind(&mut statement, params.iter().copied())?;
            fetch(&mut statement, &mut rows)?;
        }
        Ok(rows)
    }

    pub(super) fn execute(&mut self, texts: &[&str], params: &[Param<'_>]) -> Result<u64, StoreError> {
        let mut changed = 0;
        for text in texts {
            let mut statement = self.statement(text)?;
            changed = change(&mut statement, params.iter().copied())?;
        }
        Ok(changed)
    }

    pub(super) fn query_each(
        &mut self,
        texts: &[&str],
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut statements = texts.iter().map(|text| self.statement(text)).collect::<Result<Vec<_>, _>>()?;
        let mut rows = Vec::new();
        for row in 0..columns[0].len() {
            for statement in &mut statements {
                bind(statement, columns.iter().map(|column| column.param(row)).chain(params.iter().copied()))?;
                fetch(statement, &mut rows)?;
            }
        }
        Ok(rows)
    }

    pub(super) fn query_by_ids(
        &mut self,
        texts: &[&str],
        ids: &[Uuid],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut rows = Vec::new();
        for text in texts {
            let mut statement = self.statement(text)?;
            bind_ids(&mut statement, ids)?;
            bind_from(2, &mut statement, params.iter().copied())?;
            fetch(&mut statement, &mut rows)?;
        }
        Ok(rows)
    }

    /// See `Tx::change_and_return`. `$n` is the parameter after the last.
    pub(super) fn change_and_return(
        &mut self,
        texts: &[&str],
        ids: Option<&[Uuid]>,
        params: &[Param<'_>],
        max_bytes: Option<usize>,
    ) -> Result<Vec<Row>, StoreError> {
        let (find, changes) = texts.split_first().expect("a statement has text");
        let first = if ids.is_some() { 2 } else { 1 };
        let mut rows = Vec::new();
        let mut statement = self.statement(find)?;
        ids.map_or(Ok(()), |ids| bind_ids(&mut statement, ids))?;
        bind_from(first, &mut statement, params.iter().copied())?;
        fetch_up_to(max_bytes, &mut statement, &mut rows)?;
        if rows.is_empty() {
            return Ok(rows);
        }
        let found = rows.iter().map(Row::row_id).collect::<Result<Vec<_>, _>>()?;
        if self.change_rows(changes, found, first, params)? {
            return Ok(rows);
        }
        Err(StoreError::unexpected(format!("other rows were changed than the {} found", rows.len())))
    }

    /// See `Tx::change_by_row_id`.
    pub(super) fn change_by_row_id(
        &mut self,
        texts: &[&str],
        rows: Vec<i64>,
        params: &[Param<'_>],
    ) -> Result<bool, StoreError> {
        if self.rollback_scope == RollbackScope::Savepoint {
            return Ok(false);
        }
        if self.change_rows(texts, rows, 1, params)? {
            return Ok(true);
        }
        Err(StoreError::unexpected("rows are not as they were known"))
    }

    /// Returns true if each text changed as many rows as there are. The first of `params` has the number `first`.
    fn change_rows(
        &self,
        texts: &[&str],
        mut rows: Vec<i64>,
        first: usize,
        params: &[Param<'_>],
    ) -> Result<bool, StoreError> {
        rows.sort_unstable();
        let place = first + params.len();
        let by_runs = runs(&rows).count() * MIN_RANGE_ROWS <= rows.len();
        let text_of =
            |text: &&str| if by_runs { self.statement(&range_update(text, place)) } else { self.statement(text) };
        let mut statements = texts.iter().map(text_of).collect::<Result<Vec<_>, _>>()?;
        // Rows move in parts: the next part fills the pages that the last one emptied, so that each is written once.
        let part = if texts.len() > 1 { PART_ROWS } else { rows.len().max(1) };
        for part in rows.chunks(part) {
            for statement in &mut statements {
                bind_from(first, statement, params.iter().copied())?;
                let mut changed = 0;
                if by_runs {
                    for run in runs(part) {
                        statement.raw_bind_parameter(place, run[0]).map_err(sqlite_error)?;
                        statement.raw_bind_parameter(place + 1, run[run.len() - 1]).map_err(sqlite_error)?;
                        changed += statement.raw_execute().map_err(sqlite_error)?;
                    }
                } else {
                    let list = Rc::new(part.iter().map(|id| SqliteValue::Integer(*id)).collect::<Vec<_>>());
                    statement.raw_bind_parameter(place, &list).map_err(sqlite_error)?;
                    changed = statement.raw_execute().map_err(sqlite_error)?;
                }
                if changed != part.len() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    pub(super) fn execute_each(
        &mut self,
        texts: &'static [&'static str],
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<u64, StoreError> {
        let rows = columns[0].len();
        let (mut changed, mut done) = (0, 0);
        for width in ROWS_PER_INSERT {
            let ([text], true) = (texts, rows - done >= width) else { continue };
            let Some(wide) = multi_row_insert(text, columns.len(), width) else { break };
            let mut statement = self.statement(&wide)?;
            while rows - done >= width {
                let of_row = |row| columns.iter().map(move |column| column.param(row));
                changed += change(&mut statement, (done..done + width).flat_map(of_row).chain(params.iter().copied()))?;
                done += width;
            }
        }
        let mut statements = texts.iter().map(|text| self.statement(text)).collect::<Result<Vec<_>, _>>()?;
        let (last, before) = statements.split_last_mut().expect("a statement has text");
        for row in done..rows {
            let values = || columns.iter().map(|column| column.param(row)).chain(params.iter().copied());
            for statement in before.iter_mut() {
                change(statement, values())?;
            }
            changed += change(last, values())?;
        }
        Ok(changed)
    }
}

fn bind<'p>(statement: &mut CachedStatement<'_>, params: impl Iterator<Item = Param<'p>>) -> Result<(), StoreError> {
    bind_from(1, statement, params)
}

/// A statement of a sequence may use fewer parameters than the last. Parameters that it does not name are not bound.
fn bind_from<'p>(
    first: usize,
    statement: &mut CachedStatement<'_>,
    params: impl Iterator<Item = Param<'p>>,
) -> Result<(), StoreError> {
    let wanted = statement.parameter_count();
    for (index, param) in (first..=wanted).zip(params) {
        statement.raw_bind_parameter(index, param).map_err(sqlite_error)?;
    }
    Ok(())
}

/// Binds ids as the first parameter, for `rarray`.
fn bind_ids(statement: &mut CachedStatement<'_>, ids: &[Uuid]) -> Result<(), StoreError> {
    let blob = |id: &Uuid| SqliteValue::Blob(id.as_bytes().to_vec());
    let list = Rc::new(ids.iter().map(blob).collect::<Vec<_>>());
    statement.raw_bind_parameter(1, &list).map_err(sqlite_error)
}

/// Ranges of consecutive row ids.
fn runs(rows: &[i64]) -> impl Iterator<Item = &[i64]> {
    rows.chunk_by(|one, next| one + 1 == *next)
}

fn fetch(statement: &mut CachedStatement<'_>, into: &mut Vec<Row>) -> Result<(), StoreError> {
    fetch_up_to(None, statement, into)
}

/// Reads the rows of a result. With `max_bytes`, stops after the first row with which their texts and blobs reach this size.
fn fetch_up_to(
    max_bytes: Option<usize>,
    statement: &mut CachedStatement<'_>,
    into: &mut Vec<Row>,
) -> Result<(), StoreError> {
    let width = statement.column_count();
    let names = (0..width).map(|column| statement.column_name(column).map(Box::from));
    let names: Arc<[Box<str>]> = names.collect::<Result<_, _>>().map_err(sqlite_error)?;
    let mut rows = statement.raw_query();
    let mut bytes = 0;
    while let Some(row) = rows.next().map_err(sqlite_error)? {
        let mut values = Vec::with_capacity(width);
        for column in 0..width {
            values.push(Value::of(row.get_ref(column).map_err(sqlite_error)?)?);
        }
        bytes += max_bytes.map_or(0, |_| values.iter().map(Value::bytes).sum());
        into.push(Row::Sqlite(SqliteRow { names: names.clone(), values }));
        if max_bytes.is_some_and(|max_bytes| bytes >= max_bytes) {
            break;
        }
    }
    Ok(())
}

fn change<'p>(statement: &mut CachedStatement<'_>, params: impl Iterator<Item = Param<'p>>) -> Result<u64, StoreError> {
    bind(statement, params)?;
    statement.raw_execute().map(|changed| changed as u64).map_err(sqlite_error)
}

fn sqlite_error(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(
            code @ (ErrorCode::DiskFull
            | ErrorCode::ReadOnly
            | ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::SystemIoFailure
            | ErrorCode::CannotOpen
            | ErrorCode::OutOfMemory
            | ErrorCode::PermissionDenied),
        ) => StoreError::Unavailable { reason: format!("{code:?}"), source: Some(Box::new(error)) },
        _ => StoreError::Unexpected { context: "SQLite".into(), source: Some(Box::new(error)) },
    }
}

#[cfg(test)]
mod tests;

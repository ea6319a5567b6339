//! PostgreSQL through a pool, directly or through a pooler in transaction mode.

use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, QueueMode, RecyclingMethod, Runtime,
};
use domain::Time;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::failure::{Failure, is_conflict, naming, pool_error, postgres_error};
use super::heard::Heard;
use super::later::{self, Later, Unopened};
use super::opening::{BEGIN, BEGIN_IN_SESSION, BEGIN_READING, TIME, beside_time, session_settings, unheard};
use super::tls::Address;
use super::value::{Column, Param, Row};
use super::{Driver, First, Operation, Tx};
use crate::clock::Clock;
use crate::error::StoreError;
use crate::wall::around;

const CONNECTIONS: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection may go unused for long, and what is between it and the server must not forget it.
const KEEPALIVES_IDLE: Duration = Duration::from_secs(30);
/// What the driver does where the URL says nothing.
const DRIVERS_KEEPALIVES: Duration = Duration::from_secs(2 * 60 * 60);

pub(crate) struct Postgres {
    pool: Pool,
    clock: Clock,
    heard: Heard,
    /// Statements are prepared once per connection, unless a pooler hands out another session each time.
    prepared: bool,
}

impl Postgres {
    pub(crate) async fn connect(url: &str, clock: Clock) -> Result<Self, StoreError> {
        let Address { mut config, tls } = Address::parse(url)?;
        config.application_name("windlass").connect_timeout(CONNECT_TIMEOUT);
        if config.get_keepalives_idle() == DRIVERS_KEEPALIVES {
            config.keepalives_idle(KEEPALIVES_IDLE);
        }
        let builder = || {
            let fast = ManagerConfig { recycling_method: RecyclingMethod::Fast };
            Pool::builder(Manager::from_config(config.clone(), tls.clone(), fast))
                .max_size(CONNECTIONS)
                // The one that was used last has its plans and the processor's caches at hand.
                .queue_mode(QueueMode::Lifo)
                .wait_timeout(Some(Duration::from_secs(10)))
                .create_timeout(Some(CONNECT_TIMEOUT))
                .runtime(Runtime::Tokio1)
        };
        let unusable = |error: deadpool_postgres::BuildError| StoreError::Unusable(error.to_string());
        let pool = builder().build().map_err(unusable)?;
        if is_pooled(&pool).await.map_err(|error| naming(&config, error))? {
            return Ok(Self { pool, clock, heard: Heard::default(), prepared: false });
        }
        let set_once = Hook::async_fn(|client: &mut ClientWrapper, _| {
            Box::pin(async move { client.batch_execute(&session_settings()).await.map_err(HookError::Backend) })
        });
        let pool = builder().post_create(set_once).build().map_err(unusable)?;
        Ok(Self { pool, clock, heard: Heard::default(), prepared: true })
    }

    pub(crate) fn is_behind_a_pooler(&self) -> bool {
        !self.prepared
    }

    /// Runs an operation that is put together once a connection is at hand.
    pub(crate) async fn write<O: Operation>(&self, make: impl FnOnce() -> O) -> Result<O::Output, StoreError> {
        self.run(make, Ending::Durable).await
    }

    pub(crate) async fn read<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        self.run(|| operation, Ending::Unheard).await
    }

    async fn run<O: Operation>(&self, make: impl FnOnce() -> O, ending: Ending) -> Result<O::Output, StoreError> {
        let mut operation = Late { made: None, make: Some(make) };
        let mut tries = 1;
        loop {
            let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
            match self.attempt(client, &mut operation, ending).await {
                Err(failure) if failure.again && tries < O::TRIES => tries += 1,
                result => return result.map_err(|failure| failure.error),
            }
        }
    }

    async fn attempt<O: Operation, F: FnOnce() -> O>(
        &self,
        client: Object,
        operation: &mut Late<O, F>,
        ending: Ending,
    ) -> Result<O::Output, Failure> {
        // A caller that goes away in mid-transaction must not give the connection back with the transaction open.
        let mut guard = Guard { client: Some(client) };
        let client = guard.client.as_ref().expect("held until the end");
        let prepared = self.prepared;
        let (ahead, later) = (Vec::new(), Vec::new());
        let heard = &self.heard;
        let mut driver = PostgresTx { client, heard, prepared, failed: None, ahead, opening: None, later };
        // It is put together as late as can be: who comes until then is in it.
        let told = if O::OPENS_UNHEARD { Some(self.time(client).await?) } else { None };
        let operation = operation.made();
        let wall = around(operation.tenants());
        let (now, trigger_version) = match told {
            Some(now) => {
                driver.opening = Some(unheard(self.begin_text(), wall.as_deref()));
                (now, None)
            }
            None => self.begin(&mut driver, operation, wall.as_deref(), ending).await?,
        };
        let now = now.plus_ms(self.clock.shift_ms());
        let mut tx = Tx { driver: Driver::Postgres(driver), now, trigger_version, wall };
        let result = operation.run(&mut tx).await;
        let wall = tx.wall;
        let (failed, opening, later) = match tx.driver {
            Driver::Postgres(driver) => (driver.failed, driver.opening, driver.later),
            Driver::Sqlite(_) => (None, None, Vec::new()),
        };
        match result {
            Ok(output) if ending == Ending::Unheard => {
                // It is sent all the same, and who gets the connection next is served after it.
                let _ = client.batch_execute("commit").now_or_never();
                guard.release();
                Ok(output)
            }
            Ok(output) => {
                let unopened = opening.as_deref().map(|opening| Unopened { opening, wall: wall.as_deref() });
                later::commit(client, prepared, unopened, later).await?;
                guard.release();
                Ok(output)
            }
            Err(error) => {
                if client.batch_execute("rollback").await.is_ok() {
                    guard.release();
                }
                Err(Failure { error, again: failed.is_some_and(|state| is_conflict(&state)) })
            }
        }
    }

    /// Opens the transaction and, along with it, asks what the operation will read first. Gives the database's time and,
    /// for who watches triggers, their clock: an event costs no round trip where nobody listens.
    async fn begin<O: Operation>(
        &self,
        tx: &mut PostgresTx<'_>,
        operation: &O,
        wall: Option<&str>,
        ending: Ending,
    ) -> Result<(Time, Option<i64>), Failure> {
        let client = tx.client;
        let failed = |error: tokio_postgres::Error| Failure::of(&error, "begin");
        if !self.prepared {
            let wall = wall.map(|tenants| format!("'{tenants}'"));
            let text = format!("{BEGIN}{}", beside_time::<O>(wall.as_deref()));
            let rows = client.simple_query(&text).await.map_err(failed)?;
            return self.told(number(&rows, 0), number(&rows, 1));
        }
        // All is prepared before anything is sent: what is sent stays in this order.
        let question = format!("{TIME}{}", beside_time::<O>(wall.map(|_| "$1")));
        let question = client.prepare_cached(&question).await.map_err(failed)?;
        let wall: Vec<&(dyn ToSql + Sync)> = wall.iter().map(|wall| wall as &(dyn ToSql + Sync)).collect();
        let mut asked = Vec::new();
        for First { sql, columns, params } in operation.reads_first() {
            let first = Later::of(sql.postgres, typed(&columns, &params));
            let first = first.map_err(|error| Failure { error, again: false })?;
            asked.push((first.prepare(client).await?, first));
        }
        let told = async {
            let row = client.query_one(&question, &wall).await.map_err(failed)?;
            let number = |place: usize| row.get::<_, Option<&str>>(place).and_then(|text| text.parse().ok());
            self.told(number(0), number(1))
        };
        let reads = join_all(asked.iter().map(|(statement, first)| first.query(client, statement)));
        let begin = if ending == Ending::Unheard { BEGIN_READING } else { BEGIN_IN_SESSION };
        let (begun, told, read) = tokio::join!(client.batch_execute(begin), told, reads);
        begun.map_err(failed)?;
        let told = told?;
        for ((_, first), read) in asked.into_iter().zip(read) {
            tx.ahead.push((first, read.map_err(failed)?.into_iter().map(Row::Postgres).collect()));
        }
        Ok(told)
    }

    /// Takes note of the time.
    fn told(&self, now: Option<i64>, trigger_version: Option<i64>) -> Result<(Time, Option<i64>), Failure> {
        let now = now.map(Time::from_micros).ok_or_else(no_time)?;
        self.heard.hear(now);
        Ok((now, trigger_version))
    }

    fn begin_text(&self) -> &'static str {
        if self.prepared { BEGIN_IN_SESSION } else { BEGIN }
    }

    /// The database's time, or a little before: it is asked only when it has said nothing of it for a while.
    async fn time(&self, client: &Object) -> Result<Time, Failure> {
        if let Some(now) = self.heard.now() {
            return Ok(now);
        }
        let rows = client.simple_query(TIME).await.map_err(|error| Failure::of(&error, "time"))?;
        self.told(number(&rows, 0), None)?;
        self.heard.now().ok_or_else(no_time)
    }

    /// Has done at once what the database would do by itself after many changes, its checkpoint too where its user may have one.
    pub(crate) async fn vacuum(&self) -> Result<(), StoreError> {
        let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
        client.batch_execute("vacuum (analyze)").await.map_err(|error| Failure::of(&error, "vacuum").error)?;
        match client.batch_execute("checkpoint").await {
            Err(error) if error.code() != Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                Err(Failure::of(&error, "checkpoint").error)
            }
            _ => Ok(()),
        }
    }

    /// Outside any transaction.
    pub(crate) async fn show(&self, setting: &str) -> Result<String, StoreError> {
        let client = self.pool.get().await.map_err(|error| pool_error(error).error)?;
        let rows =
            client.simple_query(&format!("show {setting}")).await.map_err(|error| Failure::of(&error, "show").error)?;
        Ok(first_text(&rows).unwrap_or_default())
    }
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Nothing is told before it is durable.
    Durable,
    /// A read has nothing to lose: nobody waits for its commit.
    Unheard,
}

/// An operation, made when it is first asked for.
struct Late<O, F> {
    made: Option<O>,
    make: Option<F>,
}

impl<O, F: FnOnce() -> O> Late<O, F> {
    fn made(&mut self) -> &O {
        let make = &mut self.make;
        self.made.get_or_insert_with(|| make.take().expect("made once")())
    }
}

/// Closes the connection instead of returning it when a transaction may still be open on it.
struct Guard {
    client: Option<Object>,
}

impl Guard {
    fn release(&mut self) {
        drop(self.client.take());
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

fn first_text(messages: &[SimpleQueryMessage]) -> Option<String> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    })
}

fn number(messages: &[SimpleQueryMessage], column: usize) -> Option<i64> {
    messages.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.try_get(column).ok().flatten()?.parse().ok(),
        _ => None,
    })
}

fn no_time() -> Failure {
    Failure { error: StoreError::unexpected("the database told no time"), again: false }
}

/// Whether two transactions of one connection may meet different sessions: then nothing may live in a session.
///
/// While one connection is in a transaction, another takes a session of its own and gives it back last; a pooler that
/// hands out the latest returned one then gives it to the first.
async fn is_pooled(pool: &Pool) -> Result<bool, StoreError> {
    let pid = async |client: &Object| -> Result<String, Failure> {
        let rows = client.simple_query("begin; select pg_backend_pid()::text").await;
        Ok(first_text(&rows.map_err(|error| Failure::of(&error, "connect"))?).unwrap_or_default())
    };
    let commit = async |client: &Object| client.batch_execute("commit").await;
    let probe = async {
        let first = pool.get().await.map_err(pool_error)?;
        let second = pool.get().await.map_err(pool_error)?;
        let before = pid(&first).await?;
        pid(&second).await?;
        commit(&first).await.map_err(|error| Failure::of(&error, "connect"))?;
        commit(&second).await.map_err(|error| Failure::of(&error, "connect"))?;
        let after = pid(&first).await?;
        commit(&first).await.map_err(|error| Failure::of(&error, "connect"))?;
        Ok::<_, Failure>(before != after)
    };
    probe.await.map_err(|failure| failure.error)
}

pub(super) struct PostgresTx<'a> {
    client: &'a Object,
    heard: &'a Heard,
    prepared: bool,
    failed: Option<SqlState>,
    /// The statements that travelled with the opening, and their rows.
    ahead: Vec<(Later, Vec<Row>)>,
    /// What opens the transaction, until something is done in it.
    opening: Option<String>,
    /// What travels with the commit.
    later: Vec<Later>,
}

impl PostgresTx<'_> {
    async fn open(&mut self) -> Result<(), StoreError> {
        let Some(opening) = self.opening.take() else { return Ok(()) };
        self.client.batch_execute(&opening).await.map_err(|error| self.fail(error, &opening))
    }

    pub(super) async fn query(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.open().await?;
        if let Some(rows) = self.asked_ahead(text, columns, params) {
            return Ok(rows);
        }
        let rows = if self.prepared {
            let statement = self.client.prepare_cached(text).await;
            match statement {
                Ok(statement) => self.client.query(&statement, &values(columns, params)).await,
                Err(error) => Err(error),
            }
        } else {
            self.client.query_typed(text, &typed(columns, params)).await
        };
        match rows {
            Ok(rows) => Ok(rows.into_iter().map(Row::Postgres).collect()),
            Err(error) => Err(self.fail(error, text)),
        }
    }

    /// Without an opening there is nothing to commit: the statement is the transaction, and what becomes of it if nobody
    /// answers is not known.
    pub(super) async fn query_alone(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        if !self.prepared || self.opening.is_none() {
            return Err(StoreError::unexpected("a statement is not alone in its transaction"));
        }
        let statement = self.client.prepare_cached(text).await.map_err(|error| self.fail(error, text))?;
        let rows = self.client.query(&statement, &values(columns, params)).await.map_err(|error| {
            self.failed = error.code().cloned();
            Failure::of_commit(&error).error
        })?;
        let time = statement.columns().len() - 1;
        let rows: Vec<Row> = rows.into_iter().map(Row::Postgres).collect();
        if let Some(row) = rows.first() {
            self.heard.hear(row.time(time)?);
        }
        Ok(rows)
    }

    /// The rows of what travelled with the opening, if that is what is asked for now.
    fn asked_ahead(&mut self, text: &str, columns: &[Column<'_>], params: &[Param<'_>]) -> Option<Vec<Row>> {
        let is_asked = |asked: &Later| asked.is_of(text) && asked.has(&typed(columns, params));
        let place = self.ahead.iter().position(|(asked, _)| is_asked(asked))?;
        Some(self.ahead.swap_remove(place).1)
    }

    pub(super) async fn execute(
        &mut self,
        text: &str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<u64, StoreError> {
        self.open().await?;
        let changed = if self.prepared {
            match self.client.prepare_cached(text).await {
                Ok(statement) => self.client.execute(&statement, &values(columns, params)).await,
                Err(error) => Err(error),
            }
        } else {
            self.client.execute_typed(text, &typed(columns, params)).await
        };
        changed.map_err(|error| self.fail(error, text))
    }

    pub(super) async fn execute_later(
        &mut self,
        text: &'static str,
        columns: &[Column<'_>],
        params: &[Param<'_>],
    ) -> Result<(), StoreError> {
        self.later.push(Later::of(text, typed(columns, params))?);
        Ok(())
    }

    pub(super) async fn batch(&mut self, text: &str) -> Result<(), StoreError> {
        self.open().await?;
        self.client.batch_execute(text).await.map_err(|error| self.fail(error, text))
    }

    pub(super) async fn prepare(&mut self, text: &str) -> Result<(), StoreError> {
        self.client.prepare(text).await.map(|_| ()).map_err(|error| self.fail(error, text))
    }

    fn fail(&mut self, error: tokio_postgres::Error, text: &str) -> StoreError {
        self.failed = error.code().cloned();
        let start: String = text.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
        postgres_error(&error, &start)
    }
}

fn values<'v>(columns: &'v [Column<'_>], params: &'v [Param<'_>]) -> Vec<&'v (dyn ToSql + Sync)> {
    let columns = columns.iter().map(|column| column as &(dyn ToSql + Sync));
    columns.chain(params.iter().map(|param| param as &(dyn ToSql + Sync))).collect()
}

fn typed<'v>(columns: &'v [Column<'_>], params: &'v [Param<'_>]) -> Vec<(&'v (dyn ToSql + Sync), Type)> {
    let columns = columns.iter().map(|column| (column as &(dyn ToSql + Sync), column.postgres_type()));
    columns.chain(params.iter().map(|param| (param as &(dyn ToSql + Sync), param.postgres_type()))).collect()
}

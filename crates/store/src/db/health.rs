//! Reads the health and the settings of a PostgreSQL server, for `windlass doctor` and the System page.

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns the offset of this machine's clock from the database clock in milliseconds, and the age of the oldest
    /// transaction in seconds. Both are 0 on SQLite, which has one clock and one writer.
    pub async fn clock_skew_and_oldest_transaction(&self) -> Result<(i64, i64), StoreError> {
        if !self.is_postgres() {
            return Ok((0, 0));
        }
        let (now, oldest) = self.read(ReadOldestTransaction).await?;
        Ok((self.clock().now().ms_since(now), oldest))
    }
}

struct ReadOldestTransaction;

const OLDEST: Sql = Sql::new(
    &["select 0 as age_s"],
    "select coalesce(max(extract(epoch from clock_timestamp() - xact_start)), 0)::bigint as age_s from pg_stat_activity
     where xact_start is not null and pid <> pg_backend_pid()",
);

impl Operation for ReadOldestTransaction {
    type Output = (domain::Time, i64);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(domain::Time, i64), StoreError> {
        let row = tx.query_opt(&OLDEST, &[]).await?;
        Ok((tx.now(), row.map(|row| row.int("age_s")).transpose()?.unwrap_or(0)))
    }
}

/// Vacuum horizon and size of a PostgreSQL database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresHealth {
    /// Age, in transactions, of the oldest snapshot, replication slot or prepared transaction. Vacuum cannot remove
    /// rows that died since then.
    pub xmin_age: i64,
    /// Size of the database on disk.
    pub database_bytes: i64,
}

impl Store {
    /// Returns `None` on SQLite.
    pub async fn postgres_health(&self) -> Result<Option<PostgresHealth>, StoreError> {
        if !self.is_postgres() {
            return Ok(None);
        }
        self.read(ReadPostgresHealth).await.map(Some)
    }

    /// Returns the size of the server's WAL on disk; `None` on SQLite and if the role lacks the permission.
    pub async fn postgres_wal_bytes(&self) -> Option<i64> {
        if !self.is_postgres() {
            return None;
        }
        self.read(ReadWalSize).await.ok()
    }
}

struct ReadPostgresHealth;

const HEALTH: Sql = Sql::new(
    &["select 0 as xmin_age, 0 as database_bytes"],
    "select greatest(
         (select max(age(backend_xmin)) from pg_stat_activity where backend_xmin is not null and pid <> pg_backend_pid()),
         (select max(age(xmin)) from pg_replication_slots where xmin is not null),
         (select max(age(transaction)) from pg_prepared_xacts), 0)::bigint as xmin_age,
         pg_database_size(current_database())::bigint as database_bytes",
);

impl Operation for ReadPostgresHealth {
    type Output = PostgresHealth;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PostgresHealth, StoreError> {
        let row = tx.query_opt(&HEALTH, &[]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("the health query returned no row"))?;
        Ok(PostgresHealth { xmin_age: row.int("xmin_age")?, database_bytes: row.int("database_bytes")? })
    }
}

struct ReadWalSize;

const WAL: Sql = Sql::new(&["select 0 as bytes"], "select coalesce(sum(size), 0)::bigint as bytes from pg_ls_waldir()");

impl Operation for ReadWalSize {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&WAL, &[]).await?;
        row.map(|row| row.int("bytes")).transpose().map(Option::unwrap_or_default)
    }
}

/// A setting of PostgreSQL with another value than the default, as new sessions get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedSetting {
    pub name: String,
    pub value: String,
    /// The role or database that has the setting. `None`: the server.
    pub set_for: Option<String>,
}

impl Store {
    /// Returns the settings that change how the statements of this program run. Empty on SQLite.
    pub async fn changed_settings(&self) -> Result<Vec<ChangedSetting>, StoreError> {
        if !self.is_postgres() {
            return Ok(Vec::new());
        }
        self.read(ReadChangedSettings).await
    }
}

struct ReadChangedSettings;

// `reset_val` is the value at the start of the session: later `set` statements do not change it.
const CHANGED: Sql = Sql::new(
    &["select '' as name, '' as value, null as set_for where $1 is null"],
    "select s.name, s.reset_val as value,
         (select case when d.setrole = 0 then 'database ' || current_database() else 'role ' || current_user end
          from pg_db_role_setting d cross join unnest(d.setconfig) as c(pair)
          where (d.setrole = 0 or d.setrole = (select oid from pg_roles where rolname = current_user))
              and (d.setdatabase = 0 or d.setdatabase = (select oid from pg_database where datname = current_database()))
              and lower(split_part(c.pair, '=', 1)) = s.name
          order by d.setrole = 0, d.setdatabase = 0 limit 1) as set_for
     from pg_settings s join json_array_elements_text($1::json) n on n.value = s.name
     where s.reset_val is distinct from s.boot_val order by s.name",
);
const CHECKED_SETTINGS: &str = r#"["default_transaction_deferrable", "default_transaction_isolation",
    "default_transaction_read_only", "idle_session_timeout", "row_security", "session_replication_role",
    "statement_timeout", "synchronous_commit", "temp_file_limit", "transaction_timeout"]"#;

impl Operation for ReadChangedSettings {
    type Output = Vec<ChangedSetting>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ChangedSetting>, StoreError> {
        let rows = tx.query(&CHANGED, &[Param::Json(CHECKED_SETTINGS)]).await?;
        let setting = |row: &Row| {
            let (name, value) = (row.text("name")?, row.text("value")?);
            Ok(ChangedSetting { name, value, set_for: row.opt_text("set_for")? })
        };
        rows.iter().map(setting).collect()
    }
}

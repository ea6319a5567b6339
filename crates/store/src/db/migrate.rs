//! Schema migrations: numbered SQL scripts per database, up and down, with checksums.
//!
//! `up` runs before the server listens. If many nodes start at once, one migrates and the others wait. A schema newer
//! than this program is refused, because the program could violate invariants that it does not know.

use domain::limits::STOPPED_AFTER_MS;
use sha2::{Digest, Sha256};

use crate::db::row_level_security;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// One version of the schema, equivalent on both databases.
#[derive(Clone, Copy)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sqlite: MigrationScript,
    pub postgres: MigrationScript,
}

#[derive(Clone, Copy)]
pub struct MigrationScript {
    pub up: &'static str,
    pub down: &'static str,
}

macro_rules! script {
    ($dialect:literal, $file:literal) => {
        MigrationScript {
            up: include_str!(concat!("../../migrations/", $dialect, "/", $file, ".up.sql")),
            down: include_str!(concat!("../../migrations/", $dialect, "/", $file, ".down.sql")),
        }
    };
}

macro_rules! migrations {
    ($($version:literal $file:literal)*) => {
        &[$(Migration {
            version: $version,
            // The part after the four digits and the underscore.
            name: $file.split_at(5).1,
            sqlite: script!("sqlite", $file),
            postgres: script!("postgres", $file),
        }),*]
    };
}

/// All migrations of this program, oldest first.
pub const MIGRATIONS: &[Migration] = migrations! {
    1 "0001_base"
    2 "0002_queue"
    3 "0003_fleet"
    4 "0004_signals"
    5 "0005_triggers"
    6 "0006_runtimes"
    7 "0007_access"
    8 "0008_node_workers"
    9 "0009_letter_handlers"
    10 "0010_ttfs_lookup"
    11 "0011_sql_signals"
    12 "0012_event_fan_out"
    13 "0013_estimates"
    14 "0014_waiting"
    15 "0015_runs"
    16 "0016_journal"
    17 "0017_waits"
    18 "0018_job_options"
    19 "0019_claim_bytes"
    20 "0020_retention_hold"
    21 "0021_tenant_deletion"
};

/// Lock timeout of a migration on PostgreSQL. DDL waits for running queries on the table, and all later queries wait
/// behind the DDL. With the timeout the migration aborts and is retried, so a long report or a backup does not block
/// the serving nodes, and a transaction that locks several tables does not deadlock with the migration.
const SET_LOCK_TIMEOUT: &str = "set local lock_timeout to '500ms'";
const DISABLE_LOCK_TIMEOUT: &str = "set local lock_timeout to 0";
/// Number of attempts to get the locks: half a minute at 500 ms each.
const TRIES: usize = 60;

const MAKE_TABLE_SQLITE: &str = "create table if not exists schema_migrations (
     version integer primary key, name text not null, checksum text not null, applied_at integer not null)";
// `create schema if not exists` requires the CREATE privilege on the database even if the schema exists, so a role that
// only owns the schema cannot run it.
const MAKE_TABLE_POSTGRES: &str = "do $$ begin
         if not exists (select from pg_namespace where nspname = 'windlass') then create schema windlass; end if;
     end $$;
     create table if not exists schema_migrations (
         version bigint primary key, name text not null, checksum text not null, applied_at timestamptz not null)";
const APPLIED: Sql = Sql::both(&["select version, name, checksum, applied_at from schema_migrations order by version"]);
const RECORD: Sql =
    Sql::both(&["insert into schema_migrations (version, name, checksum, applied_at) values ($1, $2, $3, $4)"]);
const DELETE_RECORD: Sql = Sql::both(&["delete from schema_migrations where version = $1"]);
const HAS_TABLE: Sql = Sql::new(
    &["select count(*) as tables from sqlite_master where type = 'table' and name = 'schema_migrations'"],
    "select count(*) as tables from pg_tables where schemaname = 'windlass' and tablename = 'schema_migrations'",
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    pub version: i64,
    pub name: String,
    pub applied_at: Option<domain::Time>,
}

impl Store {
    /// Applies all pending migrations. Returns their versions.
    pub async fn migrate_up(&self) -> Result<Vec<i64>, StoreError> {
        self.migrate_up_through(MIGRATIONS).await
    }

    /// Like [`Store::migrate_up`], with the given list of migrations.
    pub async fn migrate_up_through(&self, migrations: &'static [Migration]) -> Result<Vec<i64>, StoreError> {
        self.write(MigrateUp { migrations }).await
    }

    /// Reverts all migrations after `version`; 0 reverts all. Returns their versions.
    pub async fn migrate_down(&self, version: i64) -> Result<Vec<i64>, StoreError> {
        self.write(MigrateDown { to: version }).await
    }

    /// Returns true if nodes serve this database or did until a moment ago. Always false on SQLite, where a server
    /// locks the file exclusively.
    pub async fn is_served(&self) -> Result<bool, StoreError> {
        if self.is_postgres() { self.read(IsServed).await } else { Ok(false) }
    }

    /// Returns all migrations of this program and of the database, with the time at which each was applied.
    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, StoreError> {
        self.read(ReadMigrationStatus).await
    }
}

struct MigrateUp {
    migrations: &'static [Migration],
}

impl Operation for MigrateUp {
    const TRIES: usize = TRIES;
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        lock_migrations(tx).await?;
        tx.batch(if tx.is_postgres() { MAKE_TABLE_POSTGRES } else { MAKE_TABLE_SQLITE }).await?;
        let applied = applied(tx).await?;
        check(self.migrations, &applied, tx.is_postgres())?;
        let mut done = Vec::new();
        for migration in self.migrations.iter().skip(applied.len()) {
            let script = migration.script(tx.is_postgres());
            tx.batch(script.up).await?;
            let params = [
                Param::Int(migration.version),
                Param::Text(migration.name),
                Param::Text(&checksum(script.up)),
                Param::Time(tx.now()),
            ];
            tx.execute(&RECORD, &params).await?;
            done.push(migration.version);
        }
        row_level_security::build(tx).await?;
        Ok(done)
    }
}

struct MigrateDown {
    to: i64,
}

impl Operation for MigrateDown {
    const TRIES: usize = TRIES;
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        lock_migrations(tx).await?;
        if !has_table(tx).await? {
            return Ok(Vec::new());
        }
        let applied = applied(tx).await?;
        check(MIGRATIONS, &applied, tx.is_postgres())?;
        let mut undone = Vec::new();
        for (version, _) in applied.into_iter().rev().filter(|(version, _)| *version > self.to) {
            let migration = MIGRATIONS.iter().find(|m| m.version == version).expect("checked above");
            tx.batch(migration.script(tx.is_postgres()).down).await?;
            tx.execute(&DELETE_RECORD, &[Param::Int(version)]).await?;
            undone.push(version);
        }
        Ok(undone)
    }
}

struct IsServed;

// The first migration inserts a heartbeat that no node wrote. It is not newer than the migration.
const HEARTBEAT: Sql = Sql::both(&["select 1 from service s join schema_migrations m on m.version = 1
     where s.beat_at > m.applied_at and s.beat_at > $1"]);

impl Operation for IsServed {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        if !has_table(tx).await? || applied(tx).await?.is_empty() {
            return Ok(false);
        }
        let cutoff = Param::Time(tx.now().plus_ms(-STOPPED_AFTER_MS));
        Ok(tx.query_opt(&HEARTBEAT, &[cutoff]).await?.is_some())
    }
}

struct ReadMigrationStatus;

impl Operation for ReadMigrationStatus {
    type Output = Vec<MigrationStatus>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<MigrationStatus>, StoreError> {
        let mut times = std::collections::BTreeMap::new();
        if has_table(tx).await? {
            for row in tx.query(&APPLIED, &[]).await? {
                times.insert(row.int("version")?, (row.text("name")?, row.time("applied_at")?));
            }
        }
        let mut all: Vec<_> = MIGRATIONS
            .iter()
            .map(|migration| MigrationStatus {
                version: migration.version,
                name: migration.name.into(),
                applied_at: times.remove(&migration.version).map(|(_, at)| at),
            })
            .collect();
        let newer = times.into_iter();
        all.extend(newer.map(|(version, (name, at))| MigrationStatus { version, name, applied_at: Some(at) }));
        Ok(all)
    }
}

impl Migration {
    fn script(&self, postgres: bool) -> &MigrationScript {
        if postgres { &self.postgres } else { &self.sqlite }
    }
}

/// Takes the migration lock, waiting without a timeout for another node that migrates. Then sets the lock timeout.
async fn lock_migrations(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    if !tx.is_postgres() {
        return Ok(());
    }
    tx.batch(DISABLE_LOCK_TIMEOUT).await?;
    tx.lock(&["windlass migrations"]).await?;
    tx.batch(SET_LOCK_TIMEOUT).await
}

async fn has_table(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    let row = tx.query_opt(&HAS_TABLE, &[]).await?;
    Ok(row.map(|row| row.int("tables")).transpose()? == Some(1))
}

async fn applied(tx: &mut Tx<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    let rows = tx.query(&APPLIED, &[]).await?;
    rows.iter().map(|row| Ok((row.int("version")?, row.text("checksum")?))).collect()
}

/// Returns an error if the applied migrations are not a prefix of these migrations.
fn check(migrations: &[Migration], applied: &[(i64, String)], postgres: bool) -> Result<(), StoreError> {
    let newest = migrations.last().map_or(0, |migration| migration.version);
    for (position, (version, recorded)) in applied.iter().enumerate() {
        let Some(migration) = migrations.get(position).filter(|migration| migration.version == *version) else {
            return Err(StoreError::Unusable(format!(
                "the database has schema version {version}, but this version supports at most {newest}; run a newer windlass"
            )));
        };
        if checksum(migration.script(postgres).up) != *recorded {
            return Err(StoreError::Unusable(format!(
                "migration {version} was changed after it was applied to this database; run the windlass that applied it"
            )));
        }
    }
    Ok(())
}

fn checksum(script: &str) -> String {
    Sha256::digest(script.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

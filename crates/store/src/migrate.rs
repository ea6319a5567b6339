//! Migrations: numbered SQL per dialect, up and down, with checksums (X9).
//!
//! `up` runs before the server listens. Many nodes may start at once: one migrates, the others wait. A schema newer than
//! this program is refused, because what it does not know it could break.

use domain::limits::STOPPED_AFTER_MS;
use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::wall;

/// One step of the schema, the same on both databases.
#[derive(Clone, Copy)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sqlite: Script,
    pub postgres: Script,
}

#[derive(Clone, Copy)]
pub struct Script {
    pub up: &'static str,
    pub down: &'static str,
}

macro_rules! script {
    ($dialect:literal, $file:literal) => {
        Script {
            up: include_str!(concat!("../migrations/", $dialect, "/", $file, ".up.sql")),
            down: include_str!(concat!("../migrations/", $dialect, "/", $file, ".down.sql")),
        }
    };
}

macro_rules! migrations {
    ($($version:literal $file:literal)*) => {
        &[$(Migration {
            version: $version,
            // What follows the four digits and the underscore.
            name: $file.split_at(5).1,
            sqlite: script!("sqlite", $file),
            postgres: script!("postgres", $file),
        }),*]
    };
}

/// All migrations of this program, oldest first.
pub const MIGRATIONS: &[Migration] = migrations! {
    1 "0001_spine"
    2 "0002_dead_letters"
    3 "0003_tenancy"
    4 "0004_deliveries"
    5 "0005_calls"
    6 "0006_subjects"
    7 "0007_triggers"
    8 "0008_signals"
    9 "0009_failures"
    10 "0010_figures"
    11 "0011_ttfs"
    12 "0012_sessions_and_quotas"
    13 "0013_trigger_runs"
    14 "0014_throughput"
    15 "0015_runtimes"
    16 "0016_pools"
    17 "0017_secret_keys"
    18 "0018_missed_slots"
    19 "0019_weights"
    20 "0020_openai"
    21 "0021_hosts"
    22 "0022_makers"
    23 "0023_own_subjects"
    24 "0024_row_ids"
    25 "0025_log_readings"
    26 "0026_upkeep"
};

/// On PostgreSQL a change of a table waits for who reads it, and everyone else waits behind the change. It gives way after
/// this long and asks again: neither a long report nor a backup makes the nodes that serve stand still, and who holds one
/// table while it waits for another is not met in a deadlock.
const GIVE_WAY: &str = "set local lock_timeout to '500ms'";
const WAIT: &str = "set local lock_timeout to 0";
/// So that a change has half a minute to come by its tables.
const TRIES: usize = 60;

const MAKE_TABLE_SQLITE: &str = "create table if not exists schema_migrations (
     version integer primary key, name text not null, checksum text not null, applied_at integer not null)";
// A role that owns the schema and nothing else may not even ask for `create schema if not exists`.
const MAKE_TABLE_POSTGRES: &str = "do $$ begin
         if not exists (select from pg_namespace where nspname = 'windlass') then create schema windlass; end if;
     end $$;
     create table if not exists schema_migrations (
         version bigint primary key, name text not null, checksum text not null, applied_at timestamptz not null)";
const APPLIED: Sql = Sql::both(&["select version, name, checksum, applied_at from schema_migrations order by version"]);
const RECORD: Sql =
    Sql::both(&["insert into schema_migrations (version, name, checksum, applied_at) values ($1, $2, $3, $4)"]);
const FORGET: Sql = Sql::both(&["delete from schema_migrations where version = $1"]);
const HAS_TABLE: Sql = Sql::new(
    &["select count(*) from sqlite_master where type = 'table' and name = 'schema_migrations'"],
    "select count(*) from pg_tables where schemaname = 'windlass' and tablename = 'schema_migrations'",
);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationStatus {
    pub version: i64,
    pub name: String,
    pub applied_at: Option<domain::Time>,
}

impl Store {
    /// Brings the schema up to this program's. Gives the versions it applied.
    pub async fn migrate_up(&self) -> Result<Vec<i64>, StoreError> {
        self.migrate_up_through(MIGRATIONS).await
    }

    /// The same for a program that has these migrations.
    pub async fn migrate_up_through(&self, migrations: &'static [Migration]) -> Result<Vec<i64>, StoreError> {
        self.write(Up { migrations }).await
    }

    /// Takes the schema down to `version`; 0 leaves nothing. Gives the versions it undid.
    pub async fn migrate_down(&self, version: i64) -> Result<Vec<i64>, StoreError> {
        self.write(Down { to: version }).await
    }

    /// Whether nodes serve this database, or did a moment ago. Never on SQLite, where a server has the file to itself.
    pub async fn is_served(&self) -> Result<bool, StoreError> {
        if self.is_postgres() { self.read(IsServed).await } else { Ok(false) }
    }

    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, StoreError> {
        self.read(Status).await
    }
}

struct Up {
    migrations: &'static [Migration],
}

impl Operation for Up {
    const TRIES: usize = TRIES;
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        alone(tx).await?;
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
        wall::build(tx).await?;
        Ok(done)
    }
}

struct Down {
    to: i64,
}

impl Operation for Down {
    const TRIES: usize = TRIES;
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        alone(tx).await?;
        if !has_table(tx).await? {
            return Ok(Vec::new());
        }
        let applied = applied(tx).await?;
        check(MIGRATIONS, &applied, tx.is_postgres())?;
        let mut undone = Vec::new();
        for (version, _) in applied.into_iter().rev().filter(|(version, _)| *version > self.to) {
            let migration = MIGRATIONS.iter().find(|m| m.version == version).expect("checked above");
            tx.batch(migration.script(tx.is_postgres()).down).await?;
            tx.execute(&FORGET, &[Param::Int(version)]).await?;
            undone.push(version);
        }
        Ok(undone)
    }
}

struct IsServed;

// The first migration leaves a beat that nobody made.
const BEATEN: Sql = Sql::both(&["select 1 from service s join schema_migrations m on m.version = 1
     where s.beat_at > m.applied_at and s.beat_at > $1"]);

impl Operation for IsServed {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        if !has_table(tx).await? || applied(tx).await?.is_empty() {
            return Ok(false);
        }
        let lately = Param::Time(tx.now().plus_ms(-STOPPED_AFTER_MS));
        Ok(tx.query_opt(&BEATEN, &[lately]).await?.is_some())
    }
}

struct Status;

impl Operation for Status {
    type Output = Vec<MigrationStatus>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<MigrationStatus>, StoreError> {
        let mut times = std::collections::BTreeMap::new();
        if has_table(tx).await? {
            for row in tx.query(&APPLIED, &[]).await? {
                times.insert(row.int(0)?, (row.text(1)?, row.time(3)?));
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
    fn script(&self, postgres: bool) -> &Script {
        if postgres { &self.postgres } else { &self.sqlite }
    }
}

/// Waits as long as it takes for another node that migrates, and from then on gives way.
async fn alone(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    if !tx.is_postgres() {
        return Ok(());
    }
    tx.batch(WAIT).await?;
    tx.lock(&["windlass migrations"]).await?;
    tx.batch(GIVE_WAY).await
}

async fn has_table(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    let row = tx.query_opt(&HAS_TABLE, &[]).await?;
    Ok(row.map(|row| row.int(0)).transpose()? == Some(1))
}

async fn applied(tx: &mut Tx<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    let rows = tx.query(&APPLIED, &[]).await?;
    rows.iter().map(|row| Ok((row.int(0)?, row.text(2)?))).collect()
}

/// Refuses a schema that a program with these migrations did not make.
fn check(migrations: &[Migration], applied: &[(i64, String)], postgres: bool) -> Result<(), StoreError> {
    let newest = migrations.last().map_or(0, |migration| migration.version);
    for (position, (version, recorded)) in applied.iter().enumerate() {
        let Some(migration) = migrations.get(position).filter(|migration| migration.version == *version) else {
            return Err(StoreError::Unusable(format!(
                "the database is at schema version {version}, this program knows up to {newest}: run a newer windlass"
            )));
        };
        if checksum(migration.script(postgres).up) != *recorded {
            return Err(StoreError::Unusable(format!(
                "migration {version} of this database is not the one this program has: it was changed after it ran"
            )));
        }
    }
    Ok(())
}

fn checksum(script: &str) -> String {
    Sha256::digest(script.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Migrations: numbered SQL per dialect, up and down, with checksums (X9).
//!
//! `up` runs before the server listens. Many nodes may start at once: one migrates, the others wait. A schema newer than
//! this program is refused, because what it does not know it could break.

use sha2::{Digest, Sha256};

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};
use crate::wall;

pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    sqlite: Script,
    postgres: Script,
}

struct Script {
    up: &'static str,
    down: &'static str,
}

/// All migrations of this program, oldest first.
pub const MIGRATIONS: &[Migration] = &[
    Migration {
        version: 1,
        name: "spine",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0001_spine.up.sql"),
            down: include_str!("../migrations/sqlite/0001_spine.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0001_spine.up.sql"),
            down: include_str!("../migrations/postgres/0001_spine.down.sql"),
        },
    },
    Migration {
        version: 2,
        name: "dead_letters",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0002_dead_letters.up.sql"),
            down: include_str!("../migrations/sqlite/0002_dead_letters.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0002_dead_letters.up.sql"),
            down: include_str!("../migrations/postgres/0002_dead_letters.down.sql"),
        },
    },
    Migration {
        version: 3,
        name: "tenancy",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0003_tenancy.up.sql"),
            down: include_str!("../migrations/sqlite/0003_tenancy.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0003_tenancy.up.sql"),
            down: include_str!("../migrations/postgres/0003_tenancy.down.sql"),
        },
    },
    Migration {
        version: 4,
        name: "deliveries",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0004_deliveries.up.sql"),
            down: include_str!("../migrations/sqlite/0004_deliveries.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0004_deliveries.up.sql"),
            down: include_str!("../migrations/postgres/0004_deliveries.down.sql"),
        },
    },
    Migration {
        version: 5,
        name: "calls",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0005_calls.up.sql"),
            down: include_str!("../migrations/sqlite/0005_calls.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0005_calls.up.sql"),
            down: include_str!("../migrations/postgres/0005_calls.down.sql"),
        },
    },
    Migration {
        version: 6,
        name: "subjects",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0006_subjects.up.sql"),
            down: include_str!("../migrations/sqlite/0006_subjects.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0006_subjects.up.sql"),
            down: include_str!("../migrations/postgres/0006_subjects.down.sql"),
        },
    },
    Migration {
        version: 7,
        name: "triggers",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0007_triggers.up.sql"),
            down: include_str!("../migrations/sqlite/0007_triggers.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0007_triggers.up.sql"),
            down: include_str!("../migrations/postgres/0007_triggers.down.sql"),
        },
    },
    Migration {
        version: 8,
        name: "signals",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0008_signals.up.sql"),
            down: include_str!("../migrations/sqlite/0008_signals.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0008_signals.up.sql"),
            down: include_str!("../migrations/postgres/0008_signals.down.sql"),
        },
    },
    Migration {
        version: 9,
        name: "failures",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0009_failures.up.sql"),
            down: include_str!("../migrations/sqlite/0009_failures.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0009_failures.up.sql"),
            down: include_str!("../migrations/postgres/0009_failures.down.sql"),
        },
    },
    Migration {
        version: 10,
        name: "figures",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0010_figures.up.sql"),
            down: include_str!("../migrations/sqlite/0010_figures.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0010_figures.up.sql"),
            down: include_str!("../migrations/postgres/0010_figures.down.sql"),
        },
    },
    Migration {
        version: 11,
        name: "ttfs",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0011_ttfs.up.sql"),
            down: include_str!("../migrations/sqlite/0011_ttfs.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0011_ttfs.up.sql"),
            down: include_str!("../migrations/postgres/0011_ttfs.down.sql"),
        },
    },
    Migration {
        version: 12,
        name: "sessions_and_quotas",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0012_sessions_and_quotas.up.sql"),
            down: include_str!("../migrations/sqlite/0012_sessions_and_quotas.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0012_sessions_and_quotas.up.sql"),
            down: include_str!("../migrations/postgres/0012_sessions_and_quotas.down.sql"),
        },
    },
    Migration {
        version: 13,
        name: "trigger_runs",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0013_trigger_runs.up.sql"),
            down: include_str!("../migrations/sqlite/0013_trigger_runs.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0013_trigger_runs.up.sql"),
            down: include_str!("../migrations/postgres/0013_trigger_runs.down.sql"),
        },
    },
    Migration {
        version: 14,
        name: "throughput",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0014_throughput.up.sql"),
            down: include_str!("../migrations/sqlite/0014_throughput.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0014_throughput.up.sql"),
            down: include_str!("../migrations/postgres/0014_throughput.down.sql"),
        },
    },
    Migration {
        version: 15,
        name: "runtimes",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0015_runtimes.up.sql"),
            down: include_str!("../migrations/sqlite/0015_runtimes.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0015_runtimes.up.sql"),
            down: include_str!("../migrations/postgres/0015_runtimes.down.sql"),
        },
    },
    Migration {
        version: 16,
        name: "pools",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0016_pools.up.sql"),
            down: include_str!("../migrations/sqlite/0016_pools.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0016_pools.up.sql"),
            down: include_str!("../migrations/postgres/0016_pools.down.sql"),
        },
    },
    Migration {
        version: 17,
        name: "secret_keys",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0017_secret_keys.up.sql"),
            down: include_str!("../migrations/sqlite/0017_secret_keys.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0017_secret_keys.up.sql"),
            down: include_str!("../migrations/postgres/0017_secret_keys.down.sql"),
        },
    },
    Migration {
        version: 18,
        name: "missed_slots",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0018_missed_slots.up.sql"),
            down: include_str!("../migrations/sqlite/0018_missed_slots.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0018_missed_slots.up.sql"),
            down: include_str!("../migrations/postgres/0018_missed_slots.down.sql"),
        },
    },
    Migration {
        version: 19,
        name: "weights",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0019_weights.up.sql"),
            down: include_str!("../migrations/sqlite/0019_weights.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0019_weights.up.sql"),
            down: include_str!("../migrations/postgres/0019_weights.down.sql"),
        },
    },
    Migration {
        version: 20,
        name: "openai",
        sqlite: Script {
            up: include_str!("../migrations/sqlite/0020_openai.up.sql"),
            down: include_str!("../migrations/sqlite/0020_openai.down.sql"),
        },
        postgres: Script {
            up: include_str!("../migrations/postgres/0020_openai.up.sql"),
            down: include_str!("../migrations/postgres/0020_openai.down.sql"),
        },
    },
];

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
        self.write(Up).await
    }

    /// Takes the schema down to `version`; 0 leaves nothing. Gives the versions it undid.
    pub async fn migrate_down(&self, version: i64) -> Result<Vec<i64>, StoreError> {
        self.write(Down { to: version }).await
    }

    pub async fn migration_status(&self) -> Result<Vec<MigrationStatus>, StoreError> {
        self.read(Status).await
    }
}

struct Up;

impl Operation for Up {
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        tx.lock(&["windlass migrations"]).await?;
        tx.batch(if tx.is_postgres() { MAKE_TABLE_POSTGRES } else { MAKE_TABLE_SQLITE }).await?;
        let applied = applied(tx).await?;
        check(&applied, tx.is_postgres())?;
        let mut done = Vec::new();
        for migration in MIGRATIONS.iter().skip(applied.len()) {
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
    type Output = Vec<i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<i64>, StoreError> {
        tx.lock(&["windlass migrations"]).await?;
        if !has_table(tx).await? {
            return Ok(Vec::new());
        }
        let applied = applied(tx).await?;
        check(&applied, tx.is_postgres())?;
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

async fn has_table(tx: &mut Tx<'_>) -> Result<bool, StoreError> {
    let row = tx.query_opt(&HAS_TABLE, &[]).await?;
    Ok(row.map(|row| row.int(0)).transpose()? == Some(1))
}

async fn applied(tx: &mut Tx<'_>) -> Result<Vec<(i64, String)>, StoreError> {
    let rows = tx.query(&APPLIED, &[]).await?;
    rows.iter().map(|row| Ok((row.int(0)?, row.text(2)?))).collect()
}

/// Refuses a schema that this program did not make.
fn check(applied: &[(i64, String)], postgres: bool) -> Result<(), StoreError> {
    let newest = MIGRATIONS.last().map_or(0, |migration| migration.version);
    for (position, (version, recorded)) in applied.iter().enumerate() {
        let Some(migration) = MIGRATIONS.get(position).filter(|migration| migration.version == *version) else {
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

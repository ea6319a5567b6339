//! `windlass migrate`: runs and reverts database migrations. Also opens databases for other commands.

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use domain::limits::STOPPED_AFTER_MS;
use serde_json::json;
use store::db::copy_database::CopiedTable;
use store::db::migrate::{MIGRATIONS, MigrationStatus};
use store::{DatabaseUrl, KEY_FILE, Pooler, Store, StoreOptions};

use super::exit::Exit;
use super::output::{self, Listing, Output};

/// The database to open.
#[derive(Args)]
pub(crate) struct DatabaseArgs {
    /// Database: `sqlite:PATH` or `postgres://…`
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true, default_value = "sqlite:windlass.db")]
    pub(crate) database: String,
}

impl DatabaseArgs {
    /// Opens the database, also while a server is running. Does not create a SQLite file.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Store> {
        open_existing(&DatabaseUrl::parse(&self.database)?, shared()).await
    }

    /// Opens the database exclusively, for changes that a running server on the same SQLite file would not survive.
    async fn open_existing_alone(&self) -> anyhow::Result<Store> {
        open_existing(&DatabaseUrl::parse(&self.database)?, exclusive()).await
    }

    /// Like `open_existing_alone`, but creates a missing SQLite file.
    async fn open_alone(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&DatabaseUrl::parse(&self.database)?, exclusive()).await?)
    }
}

/// What `--pooler` says about the way to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PoolerSetting {
    Auto,
    Transaction,
    None,
}

impl PoolerSetting {
    /// `has_direct`: there is another URL that leads past a pooler.
    pub(crate) fn pooler(self, has_direct: bool) -> Pooler {
        match self {
            Self::Auto if has_direct => Pooler::Transaction,
            Self::Auto => Pooler::Detect,
            Self::Transaction => Pooler::Transaction,
            Self::None => Pooler::None,
        }
    }
}

/// Options for commands that do not serve. Only `serve` and `agent` check whether the database is configured durably.
pub(super) fn shared() -> StoreOptions {
    StoreOptions { unsafe_durability: true, ..StoreOptions::default() }
}

fn exclusive() -> StoreOptions {
    StoreOptions { exclusive: true, ..shared() }
}

pub(super) async fn open_existing(url: &DatabaseUrl, options: StoreOptions) -> anyhow::Result<Store> {
    if let DatabaseUrl::Sqlite(path) = url
        && !path.exists()
    {
        bail!("there is no database at {}; create one with `windlass serve` or `windlass migrate up`", path.display());
    }
    Ok(Store::open(url, options).await?)
}

/// Returns an error if the schema differs from this version's, because other statements would then fail with SQL
/// errors. Does not migrate: a server of another version may be using the database.
pub(super) async fn check_schema(store: &Store) -> anyhow::Result<()> {
    match schema_difference(&store.migration_status().await?) {
        Some(difference) => bail!("{difference}"),
        None => Ok(()),
    }
}

/// Creates the schema if there is none; otherwise only checks it, like `check_schema`.
pub(super) async fn make_schema(store: &Store) -> anyhow::Result<()> {
    if store.migration_status().await?.iter().all(|migration| migration.applied_at.is_none()) {
        store.migrate_up().await?;
    }
    check_schema(store).await
}

/// Describes how the schema differs from this version's; `None` if it does not.
pub(super) fn schema_difference(migrations: &[MigrationStatus]) -> Option<String> {
    newer_schema(migrations).or_else(|| pending_migrations(migrations))
}

/// Describes a schema that is newer than this version; `None` otherwise. This version could damage data that it does
/// not know.
pub(super) fn newer_schema(migrations: &[MigrationStatus]) -> Option<String> {
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    let version = migrations.iter().map(|migration| migration.version).max().filter(|version| *version > known)?;
    Some(format!(
        "the database has schema version {version}, but this version supports at most {known}; run a newer windlass"
    ))
}

/// Describes pending migrations; `None` if there are none.
pub(super) fn pending_migrations(migrations: &[MigrationStatus]) -> Option<String> {
    let pending = migrations.iter().filter(|migration| migration.applied_at.is_none()).count();
    match pending {
        0 => None,
        all if all == migrations.len() => {
            Some("the database has no schema yet; run `windlass migrate up` or `windlass serve`".into())
        }
        1 => Some("1 migration is pending; run `windlass migrate up` or `windlass serve`".into()),
        some => Some(format!("{some} migrations are pending; run `windlass migrate up` or `windlass serve`")),
    }
}

#[derive(Subcommand)]
pub(crate) enum MigrateVerb {
    /// Run all pending migrations
    Up(DatabaseArgs),
    /// Revert migrations down to a version; the data of reverted migrations is lost, below version 7 also all tokens
    Down {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Version to revert to; 0 removes everything
        #[arg(long)]
        to: i64,
        /// Confirm the loss of data
        #[arg(long)]
        yes: bool,
    },
    /// Show applied and pending migrations
    Status(DatabaseArgs),
    /// Copy a SQLite database to an empty PostgreSQL database, or continue a copy that was interrupted
    ///
    /// No server may use either of them. The copy is compared by counts and hashes of all rows, and verified.
    Copy {
        /// Database to read: `sqlite:PATH`
        #[arg(long, value_name = "DATABASE")]
        from: String,
        /// Database to write: `postgres://…`
        #[arg(long, value_name = "DATABASE")]
        to: String,
    },
}

/// Copies a database. Exits with a failure if an invariant does not hold in the copy.
async fn copy(from: &str, to: &str, output: Output) -> anyhow::Result<Exit> {
    let (from, to) = (DatabaseUrl::parse(from)?, DatabaseUrl::parse(to)?);
    if !matches!((&from, &to), (DatabaseUrl::Sqlite(_), DatabaseUrl::Postgres(_))) {
        let what = "--from must be a SQLite database and --to a PostgreSQL database";
        return Err(super::exit::UsageError(what.into()).into());
    }
    let source = open_existing(&from, exclusive()).await?;
    check_schema(&source).await?;
    let target = Store::open(&to, shared()).await?;
    make_schema(&target).await?;
    if target.is_served().await? {
        let wait_s = STOPPED_AFTER_MS / 1_000;
        bail!("nodes are using the target; stop all of them, wait {wait_s} s and retry");
    }
    let started = std::time::Instant::now();
    let tables = source
        .copy_to(&target, |table, rows| {
            if output == Output::Table {
                output::note(&format!("{table}: {rows} rows"));
            }
        })
        .await?;
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    let verdict = target.verify().await?;
    if output == Output::Json {
        let json = |table: &CopiedTable| json!({"name": table.name, "rows": table.rows, "hash": format!("{:032x}", table.hash)});
        let findings: Vec<&str> = verdict.findings.iter().map(|finding| finding.promise).collect();
        let tables: Vec<_> = tables.iter().map(json).collect();
        output::json(&json!({"tables": tables, "rows": rows, "checks": verdict.checks, "findings": findings}))?;
        return Ok(if verdict.findings.is_empty() { Exit::Done } else { Exit::Failed });
    }
    let (count, seconds) = (tables.len(), started.elapsed().as_secs_f64());
    output::line(&format!("Copied {rows} rows of {count} tables in {seconds:.1} s. Counts and hashes are equal."))?;
    output::note(&format!(
        "Files stay where they are: start the servers with --secret-key-file {key} and with the artifacts of {folder}.",
        key = from.data_dir().join(KEY_FILE).display(),
        folder = from.data_dir().display(),
    ));
    super::verify::print_report(&verdict, output)
}

pub(crate) async fn run(verb: MigrateVerb, output: Output) -> anyhow::Result<Exit> {
    match verb {
        MigrateVerb::Up(database) => {
            let done = database.open_alone().await?.migrate_up().await?;
            match (output, done.as_slice()) {
                (Output::Json, versions) => output::json(&json!({"applied": versions}))?,
                (Output::Table, []) => output::line("The schema is up to date.")?,
                (Output::Table, versions) => output::line(&format!("Applied {}.", list(versions)))?,
            }
        }
        MigrateVerb::Down { database, to, yes } => {
            if !yes {
                let what = "the data of all reverted migrations will be lost; pass --yes to confirm";
                return Err(super::exit::UsageError(what.into()).into());
            }
            let store = database.open_existing_alone().await?;
            if store.is_served().await? {
                let wait_s = STOPPED_AFTER_MS / 1_000;
                bail!("nodes are using this database; stop all of them, wait {wait_s} s and retry");
            }
            warn_of_tokens(&store, to).await?;
            let reverted = store.migrate_down(to).await?;
            match (output, reverted.as_slice()) {
                (Output::Json, versions) => output::json(&json!({"undone": versions}))?,
                (Output::Table, []) => output::line("No migrations to revert.")?,
                (Output::Table, versions) => output::line(&format!("Reverted {}.", list(versions)))?,
            }
        }
        MigrateVerb::Copy { from, to } => return copy(&from, &to, output).await,
        MigrateVerb::Status(database) => {
            let all = database.open_existing().await?.migration_status().await?;
            match output {
                Output::Json => {
                    let json = |migration: &MigrationStatus| {
                        let applied_at = migration.applied_at.map(timestamp);
                        json!({"version": migration.version, "name": migration.name, "applied_at": applied_at})
                    };
                    output::json(&all.iter().map(json).collect::<Vec<_>>())?;
                }
                Output::Table => {
                    let mut listing = Listing::new(&["VERSION", "NAME", "APPLIED"]);
                    for migration in &all {
                        let applied = migration.applied_at.map_or("pending".into(), |at| output::moment(timestamp(at)));
                        listing.row([
                            output::cell(migration.version),
                            output::cell(&migration.name),
                            output::cell(applied),
                        ]);
                    }
                    listing.print()?;
                }
            }
        }
    }
    Ok(Exit::Done)
}

/// Without tokens, everyone who can connect from this machine is an operator.
async fn warn_of_tokens(store: &Store, to: i64) -> anyhow::Result<()> {
    let migrations = store.migration_status().await?;
    let access = migrations.iter().find(|migration| migration.name == "access" && migration.applied_at.is_some());
    if access.is_some_and(|access| to < access.version) && !store.is_open().await? {
        output::note(
            "All tokens are deleted: until new ones exist, every program on this machine has all rights, and a server that \
             listens on another address does not start.",
        );
    }
    Ok(())
}

fn timestamp(time: domain::Time) -> jiff::Timestamp {
    jiff::Timestamp::from_microsecond(time.micros()).unwrap_or_default()
}

fn list(versions: &[i64]) -> String {
    let versions: Vec<String> = versions.iter().map(i64::to_string).collect();
    format!("migration {}", versions.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_migrations_are_reported_in_one_sentence() {
        let migration = |applied_at| MigrationStatus { version: 1, name: "spine".into(), applied_at };
        let (applied, pending) = (|| migration(Some(domain::Time::from_micros(0))), || migration(None));
        assert_eq!(pending_migrations(&[applied(), applied()]), None);
        assert!(pending_migrations(&[applied(), pending()]).unwrap().starts_with("1 migration is pending"));
        assert!(
            pending_migrations(&[applied(), pending(), pending()]).unwrap().starts_with("2 migrations are pending")
        );
        assert!(pending_migrations(&[pending(), pending()]).unwrap().starts_with("the database has no schema yet"));
    }

    /// Requirement X9.
    #[test]
    fn a_newer_schema_is_reported_before_pending_migrations() {
        let at =
            |version| MigrationStatus { version, name: "later".into(), applied_at: Some(domain::Time::from_micros(0)) };
        let known = MIGRATIONS.last().unwrap().version;
        assert_eq!(newer_schema(&[at(1), at(known)]), None);
        let pending = MigrationStatus { applied_at: None, ..at(1) };
        let message = schema_difference(&[pending, at(known + 1)]).unwrap();
        assert!(
            message.contains(&format!("schema version {}", known + 1)) && message.contains("newer windlass"),
            "{message}"
        );
    }
}

//! `windlass migrate`: the schema up, down, and where it stands (X9).

use anyhow::bail;
use clap::{Args, Subcommand};
use domain::limits::STOPPED_AFTER_MS;
use serde_json::json;
use store::migrate::{MIGRATIONS, MigrationStatus};
use store::{DatabaseUrl, Store, StoreOptions};

use super::exit::Exit;
use super::output::{self, Listing, Output};

/// Where the database is.
#[derive(Args)]
pub(crate) struct DatabaseArgs {
    /// `sqlite:PATH` or `postgres://…`.
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true, default_value = "sqlite:windlass.db")]
    pub(crate) database: String,
}

impl DatabaseArgs {
    /// Opens it beside a running server, if there is one. Where there is no database, none is made.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Store> {
        open_existing(&DatabaseUrl::parse(&self.database)?, beside_a_server()).await
    }

    /// Opens it for a change that no server on the same SQLite file would live through.
    async fn open_existing_alone(&self) -> anyhow::Result<Store> {
        open_existing(&DatabaseUrl::parse(&self.database)?, alone()).await
    }

    /// The same, and a SQLite file that is not there is made.
    async fn open_alone(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&DatabaseUrl::parse(&self.database)?, alone()).await?)
    }
}

/// For commands that serve nobody: whether the database is durable enough for that is for `serve` and `agent` to judge.
pub(super) fn beside_a_server() -> StoreOptions {
    StoreOptions { unsafe_durability: true, ..StoreOptions::default() }
}

fn alone() -> StoreOptions {
    StoreOptions { exclusive: true, ..beside_a_server() }
}

pub(super) async fn open_existing(url: &DatabaseUrl, options: StoreOptions) -> anyhow::Result<Store> {
    if let DatabaseUrl::Sqlite(path) = url
        && !path.exists()
    {
        bail!("there is no database at {}; `windlass serve` or `windlass migrate up` makes one", path.display());
    }
    Ok(Store::open(url, options).await?)
}

/// Refuses a database with another schema than this program's, on which every other statement could fail in words of SQL. It
/// changes none: a server of another version may be at work on it.
pub(super) async fn check_schema(store: &Store) -> anyhow::Result<()> {
    match differing(&store.migration_status().await?) {
        Some(differing) => bail!("{differing}"),
        None => Ok(()),
    }
}

/// Makes the schema where there is none at all, and otherwise only looks, as `check_schema` does.
pub(super) async fn make_schema(store: &Store) -> anyhow::Result<()> {
    if store.migration_status().await?.iter().all(|migration| migration.applied_at.is_none()) {
        store.migrate_up().await?;
    }
    check_schema(store).await
}

/// How the schema differs from this program's; nothing when it does not.
pub(super) fn differing(migrations: &[MigrationStatus]) -> Option<String> {
    newer(migrations).or_else(|| lacking(migrations))
}

/// What tells that a newer program was here. This one could break what it does not know.
pub(super) fn newer(migrations: &[MigrationStatus]) -> Option<String> {
    let known = MIGRATIONS.last().map_or(0, |migration| migration.version);
    let version = migrations.iter().map(|migration| migration.version).max().filter(|version| *version > known)?;
    Some(format!("the database is at schema version {version}, this program knows up to {known}: run a newer windlass"))
}

/// What the schema lacks of this program's; nothing when it is up to date.
pub(super) fn lacking(migrations: &[MigrationStatus]) -> Option<String> {
    let pending = migrations.iter().filter(|migration| migration.applied_at.is_none()).count();
    match pending {
        0 => None,
        all if all == migrations.len() => {
            Some("the database has no schema yet; `windlass serve` or `windlass migrate up` makes it".into())
        }
        1 => Some("1 migration is pending; `windlass serve` or `windlass migrate up` runs it".into()),
        some => Some(format!("{some} migrations are pending; `windlass serve` or `windlass migrate up` runs them")),
    }
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Bring the schema up to this program's.
    Up(DatabaseArgs),
    /// Take the schema down; everything made by the undone migrations is lost.
    Down {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The version to go down to; 0 leaves nothing.
        #[arg(long)]
        to: i64,
        /// Say that the data may go.
        #[arg(long)]
        yes: bool,
    },
    /// Show which migrations have run.
    Status(DatabaseArgs),
}

pub(crate) async fn run(verb: Verb, output: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Up(database) => {
            let done = database.open_alone().await?.migrate_up().await?;
            match (output, done.as_slice()) {
                (Output::Json, versions) => output::json(&json!({"applied": versions}))?,
                (Output::Table, []) => output::line("The schema is up to date.")?,
                (Output::Table, versions) => output::line(&format!("Applied {}.", list(versions)))?,
            }
        }
        Verb::Down { database, to, yes } => {
            if !yes {
                let what = "going down loses the data of every undone migration: say --yes to do it";
                return Err(super::exit::UsageError(what.into()).into());
            }
            let store = database.open_existing_alone().await?;
            if store.is_served().await? {
                let wait_s = STOPPED_AFTER_MS / 1_000;
                bail!("nodes serve this database: stop all of them, wait {wait_s} s and say it again");
            }
            let undone = store.migrate_down(to).await?;
            match (output, undone.as_slice()) {
                (Output::Json, versions) => output::json(&json!({"undone": versions}))?,
                (Output::Table, []) => output::line("There was nothing to undo.")?,
                (Output::Table, versions) => output::line(&format!("Undid {}.", list(versions)))?,
            }
        }
        Verb::Status(database) => {
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
    fn a_schema_that_lags_behind_is_told_in_one_sentence() {
        let migration = |applied_at| MigrationStatus { version: 1, name: "spine".into(), applied_at };
        let (applied, pending) = (|| migration(Some(domain::Time::from_micros(0))), || migration(None));
        assert_eq!(lacking(&[applied(), applied()]), None);
        assert!(lacking(&[applied(), pending()]).unwrap().starts_with("1 migration is pending"));
        assert!(lacking(&[applied(), pending(), pending()]).unwrap().starts_with("2 migrations are pending"));
        assert!(lacking(&[pending(), pending()]).unwrap().starts_with("the database has no schema yet"));
    }

    #[test]
    fn x9_a_schema_of_a_newer_program_is_told_before_what_it_lacks() {
        let at =
            |version| MigrationStatus { version, name: "later".into(), applied_at: Some(domain::Time::from_micros(0)) };
        let known = MIGRATIONS.last().unwrap().version;
        assert_eq!(newer(&[at(1), at(known)]), None);
        let pending = MigrationStatus { applied_at: None, ..at(1) };
        let told = differing(&[pending, at(known + 1)]).unwrap();
        assert!(told.contains(&format!("schema version {}", known + 1)) && told.contains("newer windlass"), "{told}");
    }
}

//! `windlass migrate`: the schema up, down, and where it stands (X9).

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;
use store::migrate::MigrationStatus;
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
    /// Opens it beside a running server, if there is one. A SQLite file that is not there is made.
    async fn open(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&DatabaseUrl::parse(&self.database)?, StoreOptions::default()).await?)
    }

    /// The same for all who come to look: where there is no database, none is made.
    pub(crate) async fn open_existing(&self) -> anyhow::Result<Store> {
        open_existing(&DatabaseUrl::parse(&self.database)?, StoreOptions::default()).await
    }
}

pub(super) async fn open_existing(url: &DatabaseUrl, options: StoreOptions) -> anyhow::Result<Store> {
    if let DatabaseUrl::Sqlite(path) = url
        && !path.exists()
    {
        bail!("there is no database at {}; `windlass serve` or `windlass migrate up` makes one", path.display());
    }
    Ok(Store::open(url, options).await?)
}

/// Refuses a database without this program's schema, on which every other statement would fail in words of SQL.
pub(super) async fn check_schema(store: &Store) -> anyhow::Result<()> {
    match lacking(&store.migration_status().await?) {
        Some(lacking) => bail!("{lacking}"),
        None => Ok(()),
    }
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
            let done = database.open().await?.migrate_up().await?;
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
            let undone = database.open_existing().await?.migrate_down(to).await?;
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
}

//! `windlass migrate`: the schema up, down, and where it stands (X9).

use clap::{Args, Subcommand};
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
    /// Opens it beside a running server, if there is one.
    pub(crate) async fn open(&self) -> anyhow::Result<Store> {
        Ok(Store::open(&DatabaseUrl::parse(&self.database)?, StoreOptions::default()).await?)
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
            match done.as_slice() {
                [] => println!("The schema is up to date."),
                versions => println!("Applied {}.", list(versions)),
            }
        }
        Verb::Down { database, to, yes } => {
            if !yes {
                let what = "going down loses the data of every undone migration: say --yes to do it";
                return Err(super::exit::UsageError(what.into()).into());
            }
            let undone = database.open().await?.migrate_down(to).await?;
            match undone.as_slice() {
                [] => println!("There was nothing to undo."),
                versions => println!("Undid {}.", list(versions)),
            }
        }
        Verb::Status(database) => {
            let all = database.open().await?.migration_status().await?;
            match output {
                Output::Json => {
                    let json = |migration: &MigrationStatus| {
                        let applied_at = migration.applied_at.map(timestamp);
                        serde_json::json!({"version": migration.version, "name": migration.name, "applied_at": applied_at})
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

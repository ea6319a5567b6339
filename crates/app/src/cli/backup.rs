//! `windlass backup` and `windlass restore`: a copy of a SQLite database, checked before it is believed.

use std::path::PathBuf;

use clap::Args;
use store::backup::restore;
use store::{DatabaseUrl, Store, StoreOptions};

use super::exit::Exit;
use super::migrate::{DatabaseArgs, check_schema, differing};
use super::output::{self, Output};
use super::verify;

#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The file to write; it must not be there yet.
    to: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// The copy to put back.
    from: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(crate) async fn back_up(args: &BackupArgs, output: Output) -> anyhow::Result<Exit> {
    let store = args.database.open_existing().await?;
    let migrations = store.migration_status().await?;
    // A copy of nothing would only stand in the way of the next one.
    if !store.is_postgres() && migrations.iter().all(|migration| migration.applied_at.is_none()) {
        check_schema(&store).await?;
    }
    store.back_up(&args.to).await?;
    let size = std::fs::metadata(&args.to)?.len();
    if output == Output::Table {
        output::line(&format!("Copied to {} ({}).", args.to.display(), output::bytes(size as i64)))?;
    }
    check(DatabaseUrl::Sqlite(args.to.clone()), output).await
}

pub(crate) async fn put_back(args: &RestoreArgs, output: Output) -> anyhow::Result<Exit> {
    let url = DatabaseUrl::parse(&args.database.database)?;
    let DatabaseUrl::Sqlite(path) = &url else {
        anyhow::bail!("a PostgreSQL database is restored by its own tools: pg_restore, or its base backup and WAL");
    };
    restore(&args.from, path).await?;
    if output == Output::Table {
        output::line(&format!("Restored {}.", path.display()))?;
    }
    check(url, output).await
}

/// A copy that breaks a promise is told as such, and stays where it is to be looked at.
async fn check(url: DatabaseUrl, output: Output) -> anyhow::Result<Exit> {
    let store = Store::open(&url, StoreOptions { exclusive: true, ..StoreOptions::default() }).await?;
    match differing(&store.migration_status().await?) {
        // Before an upgrade is when a copy is wanted most; the promises of another schema cannot be checked in it.
        Some(why) => {
            match output {
                Output::Table => output::note(&format!("The copy was not checked: {why}.")),
                Output::Json => output::json(&serde_json::json!({"checks": 0, "findings": [], "note": why}))?,
            }
            Ok(Exit::Done)
        }
        None => verify::tell(&store.verify().await?, output),
    }
}

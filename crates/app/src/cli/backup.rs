//! `windlass backup` and `windlass restore`: copies a SQLite database and verifies the copy.

use std::path::PathBuf;

use clap::Args;
use store::db::backup::restore;
use store::{DatabaseUrl, Store, StoreOptions};

use super::exit::Exit;
use super::migrate::{DatabaseArgs, check_schema, schema_difference};
use super::output::{self, Output};
use super::verify;

#[derive(Args)]
pub(crate) struct BackupArgs {
    /// File to write; it must not exist
    to: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Args)]
pub(crate) struct RestoreArgs {
    /// Backup file to restore
    from: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

pub(crate) async fn back_up(args: &BackupArgs, output: Output) -> anyhow::Result<Exit> {
    let store = args.database.open_existing().await?;
    let migrations = store.migration_status().await?;
    // A copy of a database without a schema would only block the path for the next backup.
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
        anyhow::bail!("cannot restore a PostgreSQL database; use pg_restore, or a base backup with WAL");
    };
    restore(&args.from, path).await?;
    if output == Output::Table {
        output::line(&format!("Restored {}.", path.display()))?;
    }
    check(url, output).await
}

// A copy that violates an invariant is reported and retained for inspection.
async fn check(url: DatabaseUrl, output: Output) -> anyhow::Result<Exit> {
    let store = Store::open(&url, StoreOptions { exclusive: true, ..StoreOptions::default() }).await?;
    match schema_difference(&store.migration_status().await?) {
        // Backups matter most before an upgrade, but the invariants of another schema version cannot be checked.
        Some(why) => {
            match output {
                Output::Table => output::note(&format!("Did not verify the copy: {why}.")),
                Output::Json => output::json(&serde_json::json!({"checks": 0, "findings": [], "note": why}))?,
            }
            Ok(Exit::Done)
        }
        None => verify::print_report(&store.verify().await?, output),
    }
}

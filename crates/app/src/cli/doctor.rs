//! `windlass doctor`: what could go wrong, before it does.

use std::path::Path;

use serde::Serialize;
use store::Store;

use super::exit::Exit;
use super::migrate::{DatabaseArgs, lacking, newer};
use super::output::{self, Listing, Output};

/// A busy server burns through so many in minutes; older than that, tables bloat.
const XMIN_AGE: i64 = 1_000_000;
const WAL_BYTES: i64 = 8 << 30;

#[derive(Serialize)]
struct Advice {
    /// `ok`, `note` or `problem`.
    level: &'static str,
    about: &'static str,
    detail: String,
}

pub(crate) async fn run(database: &DatabaseArgs, output: Output) -> anyhow::Result<Exit> {
    let mut advice = vec![ok("program", format!("windlass {}", env!("CARGO_PKG_VERSION")))];
    match database.open_existing().await {
        Ok(store) => look(&store, &mut advice).await?,
        Err(error) => advice.push(problem("database", format!("{error:#}"))),
    }
    match output {
        Output::Json => output::json(&advice)?,
        Output::Table => {
            let mut listing = Listing::new(&["", "ABOUT", "DETAIL"]);
            for item in &advice {
                listing.row([output::cell(item.level), output::cell(item.about), output::cell(&item.detail)]);
            }
            listing.print()?;
        }
    }
    Ok(if advice.iter().any(|item| item.level == "problem") { Exit::Failed } else { Exit::Done })
}

async fn look(store: &Store, advice: &mut Vec<Advice>) -> anyhow::Result<()> {
    let migrations = store.migration_status().await?;
    advice.push(match (newer(&migrations), lacking(&migrations)) {
        (Some(newer), _) => problem("schema", newer),
        (None, Some(lacking)) => note("schema", lacking),
        (None, None) => ok("schema", format!("up to date at version {}", migrations.len())),
    });
    match store.sqlite_path() {
        Some(path) => sqlite(path, advice),
        None => postgres(store, advice).await?,
    }
    Ok(())
}

fn sqlite(path: &Path, advice: &mut Vec<Advice>) {
    let size = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map(|file| file.len() as i64).unwrap_or(0)
    };
    advice.push(ok("database", format!("SQLite, {}", output::bytes(size("")))));
    let wal = size("-wal");
    advice.push(if wal > 256 << 20 {
        note("WAL", format!("{}: a long reader keeps it from being folded in", output::bytes(wal)))
    } else {
        ok("WAL", output::bytes(wal))
    });
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(disk) = rustix::fs::statvfs(folder) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize) as i64;
        advice.push(if free < 1 << 30 {
            problem("disk", format!("only {} are free", output::bytes(free)))
        } else {
            ok("disk", format!("{} free", output::bytes(free)))
        });
    }
}

async fn postgres(store: &Store, advice: &mut Vec<Advice>) -> anyhow::Result<()> {
    let version = store.postgres_setting("server_version").await?.unwrap_or_default();
    let major: u32 = version.split(['.', ' ']).next().and_then(|major| major.parse().ok()).unwrap_or(0);
    advice.push(if major >= 14 {
        ok("database", format!("PostgreSQL {version}"))
    } else {
        problem("database", format!("PostgreSQL {version} is older than 14"))
    });
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value = store.postgres_setting(setting).await?.unwrap_or_default();
        advice.push(if value == "off" {
            problem("durability", format!("{setting} is off: acknowledged work can be lost"))
        } else {
            ok("durability", format!("{setting} is {value}"))
        });
    }
    advice.push(if store.is_behind_a_pooler() {
        note("pooler", "statements are not prepared; give --database-direct so that hints between nodes work".into())
    } else {
        ok("pooler", "none in between".into())
    });
    let (skew_ms, oldest_s) = store.clock_skew_and_oldest_transaction().await?;
    advice.push(if skew_ms.abs() > 2_000 {
        note("clock", format!("this machine is {skew_ms} ms off the database; the database's time counts"))
    } else {
        ok("clock", format!("{skew_ms} ms off the database"))
    });
    advice.push(if oldest_s > 600 {
        problem("transactions", format!("one has been open for {oldest_s} s and keeps dead rows from being removed"))
    } else {
        ok("transactions", format!("the oldest is {oldest_s} s old"))
    });
    if let Some(burden) = store.postgres_burden().await? {
        let age = burden.xmin_age;
        advice.push(if age > XMIN_AGE {
            problem("xmin", format!("{age} transactions old: a snapshot, slot or prepared transaction keeps dead rows"))
        } else {
            ok("xmin", format!("{age} transactions old"))
        });
        advice.push(ok("size", format!("{} of database", output::bytes(burden.database_bytes))));
    }
    advice.push(match store.postgres_wal_bytes().await {
        Some(bytes) if bytes > WAL_BYTES => {
            note("WAL", format!("{}: a slot or a failing archiver may keep it", output::bytes(bytes)))
        }
        Some(bytes) => ok("WAL", output::bytes(bytes)),
        None => note("WAL", "this role may not see its size; pg_monitor may".into()),
    });
    Ok(())
}

fn ok(about: &'static str, detail: String) -> Advice {
    Advice { level: "ok", about, detail }
}

fn note(about: &'static str, detail: String) -> Advice {
    Advice { level: "note", about, detail }
}

fn problem(about: &'static str, detail: String) -> Advice {
    Advice { level: "problem", about, detail }
}

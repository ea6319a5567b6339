//! `windlass doctor`: checks configuration, versions, disk and clocks for problems.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use store::db::health::ChangedSetting;
use store::{ARTIFACTS, DatabaseUrl, Store};

use super::exit::Exit;
use super::migrate::{DatabaseArgs, newer_schema, pending_migrations, schema_difference};
use super::output::{self, Listing, Output};

#[derive(Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Data directory of the server, if not the default
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Where the server stores large artifacts, if not in the data directory
    #[arg(long, env = "WINDLASS_ARTIFACTS", value_name = "PLACE")]
    artifacts: Option<String>,
}

impl DoctorArgs {
    /// The directory of large artifacts; `None` if they are in a bucket.
    fn folder(&self) -> anyhow::Result<Option<PathBuf>> {
        if let Some(place) = &self.artifacts {
            return Ok((!place.contains("://")).then(|| place.into()));
        }
        let data_dir = match &self.data_dir {
            Some(data_dir) => data_dir.clone(),
            None => DatabaseUrl::parse(&self.database.database)?.data_dir(),
        };
        Ok(Some(data_dir.join(ARTIFACTS)))
    }
}

/// Limit for the age of the oldest snapshot, in transactions. A busy server uses as many in minutes; older snapshots
/// cause bloat.
const XMIN_AGE: i64 = 1_000_000;
const WAL_BYTES: i64 = 8 << 30;

#[derive(Serialize)]
struct Advice {
    /// `ok`, `note` or `problem`.
    level: &'static str,
    about: &'static str,
    detail: String,
}

pub(crate) async fn run(args: &DoctorArgs, output: Output) -> anyhow::Result<Exit> {
    let mut advice = vec![ok("program", format!("windlass {}", env!("CARGO_PKG_VERSION")))];
    match args.database.open_existing().await {
        Ok(store) => look(&store, args, &mut advice).await?,
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

async fn look(store: &Store, args: &DoctorArgs, advice: &mut Vec<Advice>) -> anyhow::Result<()> {
    let migrations = store.migration_status().await?;
    let is_up_to_date = schema_difference(&migrations).is_none();
    advice.push(match (newer_schema(&migrations), pending_migrations(&migrations)) {
        (Some(newer_schema), _) => problem("schema", newer_schema),
        (None, Some(pending_migrations)) => note("schema", pending_migrations),
        (None, None) => ok("schema", format!("up to date at version {}", migrations.len())),
    });
    match store.sqlite_path() {
        Some(path) => sqlite(path, advice),
        None => {
            postgres(store, advice).await?;
            if let (true, Some(folder)) = (is_up_to_date, args.folder()?) {
                advice.push(artifacts(store, &folder).await);
            }
        }
    }
    Ok(())
}

/// Checks the artifacts directory. A mismatch is only a note: doctor may run on another machine than the server.
async fn artifacts(store: &Store, folder: &Path) -> Advice {
    match store.inspect_blob_location(folder).await {
        Ok(None) => ok("artifacts", format!("large ones in {}", folder.display())),
        Ok(Some(wrong)) => note("artifacts", wrong),
        Err(error) => note("artifacts", error.to_string()),
    }
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
        note("WAL", format!("{}: a long-running reader prevents a checkpoint", output::bytes(wal)))
    } else {
        ok("WAL", output::bytes(wal))
    });
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(disk) = rustix::fs::statvfs(folder) {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize) as i64;
        advice.push(if free < 1 << 30 {
            problem("disk", format!("only {} free", output::bytes(free)))
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
    advice.push(if store.postgres_setting("is_superuser").await?.as_deref() == Some("on") {
        note("role", "a superuser bypasses row-level security; connect as another role".into())
    } else {
        ok("role", "not a superuser".into())
    });
    for setting in ["fsync", "synchronous_commit", "full_page_writes"] {
        let value = store.postgres_setting(setting).await?.unwrap_or_default();
        advice.push(if value == "off" {
            problem("durability", format!("{setting} is off: acknowledged jobs can be lost"))
        } else {
            ok("durability", format!("{setting} is {value}"))
        });
    }
    advice.push(if store.is_behind_a_pooler() {
        note(
            "pooler",
            "prepared statements are not available; set --database-direct so that LISTEN/NOTIFY works".into(),
        )
    } else {
        ok("pooler", "none".into())
    });
    advice.extend(store.changed_settings().await?.iter().map(advice_on));
    let (skew_ms, oldest_s) = store.clock_skew_and_oldest_transaction().await?;
    advice.push(if skew_ms.abs() > 2_000 {
        note(
            "clock",
            format!(
                "this machine's clock differs from the database clock by {skew_ms} ms; Windlass uses the database clock"
            ),
        )
    } else {
        ok("clock", format!("{skew_ms} ms difference from the database clock"))
    });
    advice.push(if oldest_s > 600 {
        problem("transactions", format!("one has been open for {oldest_s} s, which prevents the removal of dead rows"))
    } else {
        ok("transactions", format!("the oldest is {oldest_s} s old"))
    });
    if let Some(burden) = store.postgres_health().await? {
        let age = burden.xmin_age;
        advice.push(if age > XMIN_AGE {
            problem(
                "xmin",
                format!(
                    "{age} transactions old: a snapshot, slot or prepared transaction prevents the removal of dead rows"
                ),
            )
        } else {
            ok("xmin", format!("{age} transactions old"))
        });
        advice.push(ok("size", format!("database {}", output::bytes(burden.database_bytes))));
    }
    advice.push(match store.postgres_wal_bytes().await {
        Some(bytes) if bytes > WAL_BYTES => {
            note("WAL", format!("{}: a replication slot or a failing archiver may retain it", output::bytes(bytes)))
        }
        Some(bytes) => ok("WAL", output::bytes(bytes)),
        None => note("WAL", "size unknown: the role needs pg_monitor".into()),
    });
    Ok(())
}

/// What a setting of the role, the database or the server means for this program.
fn advice_on(setting: &ChangedSetting) -> Advice {
    let ChangedSetting { name, value, set_for } = setting;
    let place = set_for.as_deref().unwrap_or("server");
    let found = format!("{name} is {value} ({place})");
    match name.as_str() {
        "default_transaction_read_only" => problem("settings", format!("{found}: every write fails; reset it")),
        "session_replication_role" => problem("settings", format!("{found}: constraints are not checked; reset it")),
        "row_security" => problem("settings", format!("{found}: requests of tenants fail; reset it")),
        "statement_timeout" | "transaction_timeout" => {
            note("settings", format!("{found}: migrations, backups and maintenance can fail; reset it for this role"))
        }
        "idle_session_timeout" => note("settings", format!("{found}: idle connections are closed and made again")),
        "temp_file_limit" => note("settings", format!("{found}: reports over large tables can fail")),
        "synchronous_commit" => note("settings", format!("{found}: see durability")),
        _ => ok("settings", format!("{found}; it has no effect, because every transaction sets its own")),
    }
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

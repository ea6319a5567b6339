//! `windlass agent`: drives the Docker engine of this machine for the servers on the same database, and serves nobody itself.

use std::path::PathBuf;

use clap::Args;
use engine::Engine;
use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::drive::DriveArgs;
use super::exit::{Exit, UsageError};
use super::serve::stop_on_signal;
use crate::telemetry::{Telemetry, TelemetryArgs};

#[derive(Args)]
pub(crate) struct AgentArgs {
    /// The database of the servers: `postgres://…`.
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true)]
    pub(crate) database: String,
    /// PostgreSQL past any pooler, for hints between nodes; the same as --database unless given.
    #[arg(long, env = "WINDLASS_DATABASE_DIRECT", hide_env_values = true)]
    pub(crate) database_direct: Option<String>,
    /// Where runtimes have their state paths; ./windlass-data, unless given.
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// The key that secrets are sealed with: a copy of the servers'. `secret.key` in the data directory, unless given.
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// Serve on a database that could lose acknowledged work.
    #[arg(long = "unsafe", env = "WINDLASS_UNSAFE")]
    pub(crate) unsafe_durability: bool,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

pub(crate) async fn run(args: AgentArgs) -> anyhow::Result<Exit> {
    let url = DatabaseUrl::parse(&args.database)?;
    if let DatabaseUrl::Sqlite(_) = url {
        let why = "an agent shares its servers' database and a SQLite file has one process: give --database postgres://…, \
                   or let `windlass serve` drive the engine beside it";
        return Err(UsageError(why.into()).into());
    }
    let data_dir = args.data_dir.clone().unwrap_or_else(|| url.data_dir());
    let options = args.drive.options(&data_dir)?;
    let telemetry = Telemetry::start(&args.telemetry)?;
    let store = Store::open(
        &url,
        StoreOptions {
            unsafe_durability: args.unsafe_durability,
            key_file: Some(args.secret_key_file.clone().unwrap_or_else(|| data_dir.join(KEY_FILE))),
            ..StoreOptions::default()
        },
    )
    .await?;
    store.migrate_up().await?;
    store.prepare_secrets().await?;
    let (node, host) = (options.node.clone(), options.docker_host.clone());
    let direct = args.database_direct.clone().unwrap_or_else(|| args.database.clone());
    let engine = Engine::start_agent(store, options, direct).await?;
    let stop = CancellationToken::new();
    let mut signals = JoinSet::new();
    signals.spawn(stop_on_signal(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, stop.clone()));
    println!("Windlass {} drives {host} as the node {node}.", env!("CARGO_PKG_VERSION"));
    stop.cancelled().await;
    engine.stop().await;
    telemetry.stop();
    Ok(Exit::Done)
}

//! `windlass agent`: manages this machine's Docker engine for servers on the same database, without serving HTTP.

use std::path::PathBuf;

use clap::Args;
use engine::Engine;
use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cli::drive::DriveArgs;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::migrate::PoolerSetting;
use crate::cli::serve::stop_on_signal;
use crate::telemetry::{Telemetry, TelemetryArgs};

#[derive(Args)]
pub(crate) struct AgentArgs {
    /// Database of the servers: `postgres://…`
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true)]
    pub(crate) database: String,
    /// PostgreSQL without a pooler, for LISTEN/NOTIFY [default: --database]
    #[arg(long, env = "WINDLASS_DATABASE_DIRECT", hide_env_values = true)]
    pub(crate) database_direct: Option<String>,
    /// Pooler in transaction mode between this node and PostgreSQL, for example PgBouncer. With --database-direct, `auto` means
    /// `transaction`; otherwise the program finds out when it starts
    #[arg(long, env = "WINDLASS_POOLER", value_enum, default_value_t = PoolerSetting::Auto)]
    pub(crate) pooler: PoolerSetting,
    /// Data directory, which contains the state directories of runtimes [default: ./windlass-data]
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Key that encrypts secrets, a copy of the servers' key [default: secret.key in the data directory]
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// Allow database settings that can lose acknowledged jobs
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
        let why = "an agent needs the PostgreSQL database of its servers, because a SQLite file has one process: give \
                   --database postgres://…, or let `windlass serve` manage the engine on its own machine";
        return Err(UsageError(why.into()).into());
    }
    let data_dir = args.data_dir.clone().unwrap_or_else(|| url.data_dir());
    let options = args.drive.options(&data_dir)?;
    let telemetry = Telemetry::start(&args.telemetry)?;
    let store = Store::open(
        &url,
        StoreOptions {
            unsafe_durability: args.unsafe_durability,
            pooler: args.pooler.pooler(args.database_direct.is_some()),
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
    println!("Windlass {} drives {host} as node {node}.", env!("CARGO_PKG_VERSION"));
    stop.cancelled().await;
    engine.stop().await;
    telemetry.stop();
    Ok(Exit::Done)
}

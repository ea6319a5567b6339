//! `windlass serve`: the database, the engine and the HTTP server in one process, until told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use domain::RetryPolicy;
use domain::address::{Allowed, Network, Private};
use domain::limits::MAX_ATTEMPTS;
use engine::{Engine, EngineOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::smtp::{self, StoreMailroom};
use server::{AppState, CookieKey, ServerOptions, Tls, TriggerDefaults};
use store::artifacts::Blobs;
use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drive::DriveArgs;
use super::exit::{Exit, UsageError};
use super::output;
use super::value::finite;
use crate::demo;
use crate::telemetry::{Telemetry, TelemetryArgs};

/// The folder of large artifacts in the data directory.
pub(super) const ARTIFACTS: &str = "artifacts";

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on.
    #[arg(long, env = "WINDLASS_LISTEN", default_value = "127.0.0.1:7717")]
    pub(crate) listen: SocketAddr,
    /// `sqlite:PATH`, or `postgres://…` for any number of nodes on one database.
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true, default_value = "sqlite:windlass.db")]
    pub(crate) database: String,
    /// PostgreSQL past any pooler, for hints between nodes; the same as --database unless given.
    #[arg(long, env = "WINDLASS_DATABASE_DIRECT", hide_env_values = true)]
    pub(crate) database_direct: Option<String>,
    /// The folder for `secret.key`, large artifacts and what runtimes keep: NAME-data beside the SQLite file NAME.db, or
    /// ./windlass-data, unless given.
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Where large artifacts go instead of the data directory: s3://BUCKET/PREFIX, or a folder. Every node needs the same. A
    /// bucket takes AWS_REGION, AWS_ENDPOINT, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from the environment.
    #[arg(long, env = "WINDLASS_ARTIFACTS")]
    pub(crate) artifacts: Option<String>,
    /// The key that secrets are sealed and page sessions signed with; `secret.key` in the data directory, made at the first
    /// start, unless given. Every node needs the same one.
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// Serve over TLS with this certificate chain, as PEM; it is read again when it changes.
    #[arg(long, env = "WINDLASS_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, as PEM.
    #[arg(long, env = "WINDLASS_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Where people reach this server when something stands in front of it: `https://windlass.example.com`. Pages of that
    /// origin count as its own, whatever Host the proxy names; with https, page sessions are kept to TLS.
    #[arg(long, env = "WINDLASS_PUBLIC_URL", value_name = "URL", value_parser = public_origin)]
    pub(crate) public_url: Option<String>,
    /// A TOML file with any of these settings.
    #[arg(long, env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Show what it is about: a lively workload on a temporary database of its own.
    #[arg(long, env = "WINDLASS_DEMO")]
    pub(crate) demo: bool,
    /// Serve on a database that could lose acknowledged work.
    #[arg(long = "unsafe", env = "WINDLASS_UNSAFE")]
    pub(crate) unsafe_durability: bool,
    /// Webhooks and HTTP targets may reach private addresses, this machine included.
    #[arg(long, env = "WINDLASS_ALLOW_PRIVATE")]
    pub(crate) allow_private: bool,
    /// A network that webhooks and HTTP targets may reach whatever it is: 10.1.0.0/16, fd00::/8. May be given again.
    #[arg(long, env = "WINDLASS_ALLOW_NETWORK", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) allow_network: Vec<Network>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Take mail in for triggers of source `email`, on this address; nothing listens unless it is given.
    #[arg(long, env = "WINDLASS_SMTP_LISTEN", value_name = "ADDR")]
    pub(crate) smtp_listen: Option<SocketAddr>,
    /// Bytes of JSON that one job's payload may have.
    #[arg(long, env = "WINDLASS_PAYLOAD_BYTES", default_value_t = domain::limits::PAYLOAD_BYTES)]
    pub(crate) payload_bytes: usize,
    /// Days for which history is kept after the jobs it tells of are gone.
    #[arg(long, env = "WINDLASS_HISTORY_RETENTION_DAYS", default_value_t = 90)]
    pub(crate) history_retention_days: i64,
    /// Days for which the timelines of subjects and runtimes are kept. Who made tokens, triggers and the like is told for a
    /// year at least.
    #[arg(long, env = "WINDLASS_TIMELINE_RETENTION_DAYS", default_value_t = 366)]
    pub(crate) timeline_retention_days: i64,
    /// Days for which answers to calls are kept whose caller was gone.
    #[arg(long, env = "WINDLASS_ABANDONED_EXECUTIONS_RETENTION_DAYS", default_value_t = 7)]
    pub(crate) abandoned_executions_retention_days: i64,
    /// How often one thing may lead to another by triggers before it is taken for a loop.
    #[arg(long, env = "WINDLASS_MAX_TRIGGER_DEPTH", default_value_t = domain::limits::TRIGGER_DEPTH_DEFAULT)]
    pub(crate) max_trigger_depth: i32,
    /// Tries that a new trigger's runs have, unless it says otherwise.
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_MAX_ATTEMPTS", default_value_t = domain::limits::DEFAULT_MAX_ATTEMPTS)]
    pub(crate) trigger_retry_max_attempts: i32,
    /// The first wait between tries of a new trigger's runs.
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_INITIAL_S", default_value_t = 5)]
    pub(crate) trigger_retry_initial_s: u64,
    /// The longest wait between tries of a new trigger's runs.
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_MAXIMUM_S", default_value_t = 3600)]
    pub(crate) trigger_retry_maximum_s: u64,
    /// How much longer each wait is than the one before.
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_EXPONENT", default_value_t = 2.0, value_parser = finite)]
    pub(crate) trigger_retry_exponent: f64,
    /// How much of a wait may be added to it by chance.
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_JITTER", default_value_t = 0.1, value_parser = finite)]
    pub(crate) trigger_retry_jitter: f64,
    /// Days for which dead letters are kept after they are resolved; unresolved ones stay.
    #[arg(long, env = "WINDLASS_DEAD_LETTER_RETENTION_DAYS", default_value_t = 30)]
    pub(crate) dead_letter_retention_days: i64,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    raise_open_files();
    let tls = tls(args.tls_cert.as_deref(), args.tls_key.as_deref())?;
    let telemetry = Telemetry::start(&args.telemetry)?;
    let folder = if args.demo { Some(tempfile::tempdir().context("cannot make a temporary folder")?) } else { None };
    let database = match &folder {
        Some(folder) => format!("sqlite:{}", folder.path().join("demo.db").display()),
        None => args.database.clone(),
    };
    // A port that is taken is told before anything is touched; the program answers only once the schema is up to date.
    let listener = bind(args.listen, "--listen").await?;
    let mail = match args.smtp_listen {
        Some(address) => Some(bind(address, "--smtp-listen").await?),
        None => None,
    };
    let url = DatabaseUrl::parse(&database)?;
    let data_dir = args.data_dir.clone().unwrap_or_else(|| url.data_dir());
    let options = StoreOptions {
        exclusive: true,
        unsafe_durability: args.unsafe_durability,
        key_file: Some(args.secret_key_file.clone().unwrap_or_else(|| data_dir.join(KEY_FILE))),
        ..StoreOptions::default()
    };
    let store = Store::open(&url, options).await?;
    store.migrate_up().await?;
    store.prepare_secrets().await?;
    if !args.listen.ip().is_loopback() {
        refuse_the_world_without_tokens(&store, &database).await?;
        if tls.is_none() && !is_behind_tls(&args) {
            output::note(
                "Tokens go over the network in the clear: give --tls-cert and --tls-key, or put TLS in front.",
            );
        }
    }
    let engine_options = EngineOptions {
        history_retention_s: args.history_retention_days.saturating_mul(86_400),
        timeline_retention_s: args.timeline_retention_days.saturating_mul(86_400),
        direct_url: store.is_postgres().then(|| args.database_direct.clone().unwrap_or(database.clone())),
        blobs: None,
        abandoned_retention_s: args.abandoned_executions_retention_days.saturating_mul(86_400),
        allowed: Allowed {
            private: if args.allow_private { Private::Allowed } else { Private::Refused },
            networks: args.allow_network.clone(),
        },
        max_trigger_depth: args.max_trigger_depth,
        dead_letter_retention_s: args.dead_letter_retention_days.saturating_mul(86_400),
        runtimes: Some(args.drive.options(&data_dir)?),
    };
    let is_secure = tls.is_some();
    let cookies = CookieKey::new(&store.derived_keys("page sessions")?);
    let options = ServerOptions {
        payload_bytes: args.payload_bytes,
        trigger_defaults: trigger_defaults(&args)?,
        cookies: if is_secure || is_behind_tls(&args) { cookies.over_tls_only() } else { cookies },
        public_origin: args.public_url.clone(),
        tls,
        ..ServerOptions::default()
    };
    let state = build(store, engine_options, &data_dir, args.artifacts.as_deref(), options).await?;
    let stop = CancellationToken::new();
    let tracker = TaskTracker::new();
    // From here on a signal stops gracefully: whoever reads the address below may send one at once.
    let mut signals = JoinSet::new();
    signals.spawn(stop_on_signal(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, stop.clone()));
    if let Some(listener) = mail {
        println!("Mail is taken on {}.", listener.local_addr()?);
        let room = Arc::new(StoreMailroom { store: state.store.clone() });
        tracker.spawn(smtp::serve(listener, room, stop.clone()));
    }
    let address = listener.local_addr()?;
    announce(if is_secure { "https" } else { "http" }, address, &url, args.demo);
    if args.demo {
        tracker.spawn(demo::run(state.engine.clone(), stop.clone()));
    }
    let engine = state.engine.clone();
    server::serve(listener, state, stop.clone()).await?;
    stop.cancel();
    tracker.close();
    tracker.wait().await;
    engine.stop().await;
    telemetry.stop();
    Ok(Exit::Done)
}

/// Judged here and not by clap, which takes what a file says for a default: one half may come from there, the other from a flag.
fn tls(certificate: Option<&Path>, key: Option<&Path>) -> anyhow::Result<Option<Tls>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Tls::open(certificate, key).context("cannot serve over TLS")?)),
        (None, None) => Ok(None),
        (Some(_), None) => Err(UsageError("--tls-cert needs its --tls-key".into()).into()),
        (None, Some(_)) => Err(UsageError("--tls-key needs its --tls-cert".into()).into()),
    }
}

/// Something in front of this server speaks TLS with the world.
fn is_behind_tls(args: &ServeArgs) -> bool {
    args.public_url.as_ref().is_some_and(|url| url.starts_with("https:"))
}

/// What browsers will call it, whatever its case and its path: all there is to know of where people reach this server.
fn public_origin(text: &str) -> Result<String, String> {
    let url = engine::outbound::parse_url(text).map_err(|error| error.to_string())?;
    Ok(url.origin().ascii_serialization())
}

/// A server's state on a store that is migrated, for this command and for the benchmark.
pub(crate) async fn state(store: Store, options: EngineOptions, data_dir: &Path) -> anyhow::Result<AppState> {
    build(store, options, data_dir, None, ServerOptions::default()).await
}

async fn build(
    store: Store,
    options: EngineOptions,
    data_dir: &Path,
    artifacts: Option<&str>,
    server_options: ServerOptions,
) -> anyhow::Result<AppState> {
    let blobs = match artifacts {
        Some(place) => Blobs::open(place)?,
        None => Blobs::folder(&data_dir.join(ARTIFACTS))?,
    };
    let engine = Engine::start(store, EngineOptions { blobs: Some(blobs.clone()), ..options }).await?;
    Ok(AppState::new(Arc::new(engine), Arc::new(blobs), server_options))
}

fn trigger_defaults(args: &ServeArgs) -> anyhow::Result<TriggerDefaults> {
    let retry = RetryPolicy::new(
        Some(args.trigger_retry_initial_s),
        Some(args.trigger_retry_maximum_s),
        Some(args.trigger_retry_exponent),
        Some(args.trigger_retry_jitter),
    );
    let retry = retry.map_err(|error| UsageError(format!("the retry settings of triggers: {error}")))?;
    if !(1..=MAX_ATTEMPTS).contains(&i64::from(args.trigger_retry_max_attempts)) {
        let error = format!("--trigger-retry-max-attempts must be from 1 to {MAX_ATTEMPTS}");
        return Err(UsageError(error).into());
    }
    Ok(TriggerDefaults { retry, max_attempts: args.trigger_retry_max_attempts })
}

/// Whoever reaches a server without tokens may do everything: that is for this machine alone.
async fn refuse_the_world_without_tokens(store: &Store, database: &str) -> anyhow::Result<()> {
    if !store.is_open().await? {
        return Ok(());
    }
    let database = if database.starts_with("postgres") { "$WINDLASS_DATABASE" } else { database };
    bail!(
        "there are no tokens yet, and without tokens this program answers on loopback only; make the first one with \
         `windlass token create --database {database} --role admin --name me`, or listen on 127.0.0.1 or [::1]"
    )
}

/// Every connection is an open file, and the usual limit is for programs that have few.
pub(crate) fn raise_open_files() {
    let limits = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limits.maximum.or(limits.current), maximum: limits.maximum };
    // Without it fewer connections are served at once, and everything else works.
    let _ = setrlimit(Resource::Nofile, wanted);
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{address} is in use: stop what listens there, or give another {flag}")
        }
        _ => anyhow::Error::from(error).context(format!("cannot listen on {address}")),
    })
}

fn announce(scheme: &str, address: SocketAddr, url: &DatabaseUrl, demo: bool) {
    let database = match url {
        DatabaseUrl::Sqlite(path) => format!("SQLite in {}", path.display()),
        DatabaseUrl::Postgres(_) => "PostgreSQL".to_string(),
    };
    println!("Windlass {} serves on {scheme}://{address} ({database}).", env!("CARGO_PKG_VERSION"));
    if demo {
        println!("The demo is running: its database is temporary and goes when you press Ctrl-C.");
        println!("In another terminal:  windlass queue list    windlass job list    windlass worker list");
    }
}

/// The first signal stops gracefully; the second ends the process.
pub(super) async fn stop_on_signal(mut terminate: Signal, mut interrupt: Signal, stop: CancellationToken) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stop.cancelled() => return,
    }
    tracing::info!("stopping");
    stop.cancel();
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    std::process::exit(130);
}

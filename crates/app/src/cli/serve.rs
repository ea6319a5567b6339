//! `windlass serve`: runs the engine and the HTTP server in one process until it is stopped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use client::Client;
use domain::address::{Allowed, CidrNetwork, Private};
use domain::limits::MAX_ATTEMPTS;
use domain::{RetryPolicy, TokenText};
use engine::{Engine, EngineOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use server::triggers::smtp;
use server::triggers::smtp::StoreMailroom;
use server::{AnswerSampler, AppState, CookieKey, ServerOptions, Tls, TriggerDefaults};
use store::queue::artifacts::Blobs;
use store::{ARTIFACTS, DatabaseUrl, KEY_FILE, Store, StoreOptions};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::drive::DriveArgs;
use super::exit::{Exit, UsageError};
use super::migrate::PoolerSetting;
use super::output;
use super::value::finite;
use crate::demo::{self, DemoServer};
use crate::telemetry::{Telemetry, TelemetryArgs};

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; `:7717` listens on all IPv4 addresses
    #[arg(long, env = "WINDLASS_LISTEN", default_value = "127.0.0.1:7717", value_parser = listen)]
    pub(crate) listen: SocketAddr,
    /// Database: `sqlite:PATH`, or `postgres://…` for any number of nodes
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true, default_value = "sqlite:windlass.db")]
    pub(crate) database: String,
    /// PostgreSQL without a pooler, for LISTEN/NOTIFY [default: --database]
    #[arg(long, env = "WINDLASS_DATABASE_DIRECT", hide_env_values = true)]
    pub(crate) database_direct: Option<String>,
    /// Pooler in transaction mode between this node and PostgreSQL, for example PgBouncer. With --database-direct, `auto` means
    /// `transaction`; otherwise the program finds out when it starts
    #[arg(long, env = "WINDLASS_POOLER", value_enum, default_value_t = PoolerSetting::Auto)]
    pub(crate) pooler: PoolerSetting,
    /// Directory for `secret.key`, large artifacts and the state of runtimes [default: NAME-data next to the SQLite
    /// file NAME.db, or ./windlass-data]
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Store large artifacts here instead of the data directory: s3://BUCKET/PREFIX, or a directory. Must be the same
    /// on every node. A bucket uses AWS_REGION, AWS_ENDPOINT, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY from the
    /// environment
    #[arg(long, env = "WINDLASS_ARTIFACTS")]
    pub(crate) artifacts: Option<String>,
    /// Key that encrypts secrets and signs page sessions, created at the first start. Must be the same on every node
    /// [default: secret.key in the data directory]
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    pub(crate) secret_key_file: Option<PathBuf>,
    /// File with a token. If the installation never had a token, it becomes an admin token of the tenant `default`.
    /// `windlass token generate` prints a suitable text
    #[arg(long, env = "WINDLASS_BOOTSTRAP_TOKEN_FILE", value_name = "FILE")]
    pub(crate) bootstrap_token_file: Option<PathBuf>,
    /// Serve over TLS with this certificate chain, as PEM; reloaded when it changes
    #[arg(long, env = "WINDLASS_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert, as PEM
    #[arg(long, env = "WINDLASS_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Public address of this server behind a proxy, for example `https://windlass.example.com`. Requests from pages of
    /// this origin are accepted whatever Host the proxy sends; with https, session cookies are sent only over TLS
    #[arg(long, env = "WINDLASS_PUBLIC_URL", value_name = "URL", value_parser = public_origin)]
    pub(crate) public_url: Option<String>,
    /// TOML file with any of these settings
    #[arg(long, env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Run a demo workload on a temporary database
    #[arg(long, env = "WINDLASS_DEMO")]
    pub(crate) demo: bool,
    /// Allow database settings that can lose acknowledged jobs
    #[arg(long = "unsafe", env = "WINDLASS_UNSAFE")]
    pub(crate) unsafe_durability: bool,
    /// Allow webhooks and HTTP targets to reach private addresses, including this machine
    #[arg(long, env = "WINDLASS_ALLOW_PRIVATE")]
    pub(crate) allow_private: bool,
    /// Allow webhooks and HTTP targets to reach this network, for example 10.1.0.0/16 or fd00::/8; may be repeated
    #[arg(long, env = "WINDLASS_ALLOW_NETWORK", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) allow_network: Vec<CidrNetwork>,
    #[command(flatten)]
    pub(crate) drive: DriveArgs,
    /// Accept mail for triggers of source `email` on this address [default: no mail server]
    #[arg(long, env = "WINDLASS_SMTP_LISTEN", value_name = "ADDR", value_parser = listen)]
    pub(crate) smtp_listen: Option<SocketAddr>,
    /// Maximum size of a payload, in bytes of JSON
    #[arg(long, env = "WINDLASS_PAYLOAD_BYTES", default_value_t = domain::limits::PAYLOAD_BYTES)]
    pub(crate) payload_bytes: usize,
    /// Days for which the history of deleted jobs is retained
    #[arg(long, env = "WINDLASS_HISTORY_RETENTION_DAYS", default_value_t = 90)]
    pub(crate) history_retention_days: i64,
    /// Days for which the timelines of subjects and runtimes are retained. Changes to tokens, triggers and similar
    /// objects are retained for at least a year
    #[arg(long, env = "WINDLASS_TIMELINE_RETENTION_DAYS", default_value_t = 366)]
    pub(crate) timeline_retention_days: i64,
    /// Days for which abandoned responses of synchronous calls are retained
    #[arg(long, env = "WINDLASS_ABANDONED_EXECUTIONS_RETENTION_DAYS", default_value_t = 7)]
    pub(crate) abandoned_executions_retention_days: i64,
    /// Maximum length of a chain of triggers; longer chains are stopped as loops
    #[arg(long, env = "WINDLASS_MAX_TRIGGER_DEPTH", default_value_t = domain::limits::TRIGGER_DEPTH_DEFAULT)]
    pub(crate) max_trigger_depth: i32,
    /// Default maximum attempts of a new trigger's runs
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_MAX_ATTEMPTS", default_value_t = domain::limits::DEFAULT_MAX_ATTEMPTS)]
    pub(crate) trigger_retry_max_attempts: i32,
    /// Default backoff after the first failure of a new trigger's run, in seconds
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_INITIAL_S", default_value_t = 5)]
    pub(crate) trigger_retry_initial_s: u64,
    /// Default maximum backoff of a new trigger's runs, in seconds
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_MAXIMUM_S", default_value_t = 3600)]
    pub(crate) trigger_retry_maximum_s: u64,
    /// Default factor by which the backoff of a new trigger's runs grows
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_EXPONENT", default_value_t = 2.0, value_parser = finite)]
    pub(crate) trigger_retry_exponent: f64,
    /// Default share of the backoff that is added at random, from 0 to 1
    #[arg(long, env = "WINDLASS_TRIGGER_RETRY_JITTER", default_value_t = 0.1, value_parser = finite)]
    pub(crate) trigger_retry_jitter: f64,
    /// Days for which resolved dead letters are retained; unresolved ones are never deleted
    #[arg(long, env = "WINDLASS_DEAD_LETTER_RETENTION_DAYS", default_value_t = 30)]
    pub(crate) dead_letter_retention_days: i64,
    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,
}

/// Parses an address to listen on. A missing host stands for every IPv4 address.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None => text.replacen("localhost:", "127.0.0.1:", 1),
    };
    full.parse().map_err(|_| format!("{text:?} is not an address; use 127.0.0.1:7717, or :7717 for all addresses"))
}

pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<Exit> {
    raise_open_files();
    let tls = tls(args.tls_cert.as_deref(), args.tls_key.as_deref())?;
    let telemetry = Telemetry::start(&args.telemetry)?;
    let folder =
        if args.demo { Some(tempfile::tempdir().context("cannot create a temporary directory")?) } else { None };
    let database = match &folder {
        Some(folder) => format!("sqlite:{}", folder.path().join("demo.db").display()),
        None => args.database.clone(),
    };
    // Bind before opening the database, so that an occupied port is reported early. Requests are served only after
    // migrations.
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
        pooler: args.pooler.pooler(args.database_direct.is_some()),
        key_file: Some(args.secret_key_file.clone().unwrap_or_else(|| data_dir.join(KEY_FILE))),
        ..StoreOptions::default()
    };
    let store = Store::open(&url, options).await?;
    store.migrate_up().await?;
    store.prepare_secrets().await?;
    if let Some(file) = &args.bootstrap_token_file {
        bootstrap_token(&store, file).await?;
    }
    if !args.listen.ip().is_loopback() {
        require_tokens(&store, &database).await?;
        if tls.is_none() && !is_behind_tls(&args) {
            output::note(
                "Tokens are sent over the network unencrypted; set --tls-cert and --tls-key, or use a proxy with TLS.",
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
            networks: allowed_networks(&args)?,
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
    // Install the signal handler before printing the address: a script that reads the address may send a signal at
    // once.
    let mut signals = JoinSet::new();
    signals.spawn(stop_on_signal(signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, stop.clone()));
    if let Some(listener) = mail {
        println!("Accepting mail on {}.", listener.local_addr()?);
        let mailroom = Arc::new(StoreMailroom { store: state.store.clone() });
        tracker.spawn(smtp::serve(listener, mailroom, stop.clone()));
    }
    let address = listener.local_addr()?;
    announce(if is_secure { "https" } else { "http" }, address, &url, args.demo);
    state.engine.spawn_until_stopped(AnswerSampler::new(state.store.clone()).run());
    let engine = state.engine.clone();
    let demo = async {
        if args.demo {
            let token_file = args.bootstrap_token_file.as_deref();
            let server = if is_secure { None } else { Some(demo_server(address, token_file)?) };
            demo::run(engine.clone(), server, stop.clone()).await;
        }
        anyhow::Ok(())
    };
    let serve = async {
        let served = server::serve(listener, state, stop.clone()).await;
        stop.cancel();
        anyhow::Ok(served?)
    };
    tokio::try_join!(serve, demo)?;
    tracker.close();
    tracker.wait().await;
    engine.stop().await;
    telemetry.stop();
    Ok(Exit::Done)
}

// Checked here and not by clap, because one setting may come from the file and the other from a flag.
fn tls(certificate: Option<&Path>, key: Option<&Path>) -> anyhow::Result<Option<Tls>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some(Tls::open(certificate, key).context("cannot serve over TLS")?)),
        (None, None) => Ok(None),
        (Some(_), None) => Err(UsageError("--tls-cert needs its --tls-key".into()).into()),
        (None, Some(_)) => Err(UsageError("--tls-key needs its --tls-cert".into()).into()),
    }
}

/// True if a proxy terminates TLS.
fn is_behind_tls(args: &ServeArgs) -> bool {
    args.public_url.as_ref().is_some_and(|url| url.starts_with("https:"))
}

/// The origin of a URL, as browsers send it.
fn public_origin(text: &str) -> Result<String, String> {
    let url = engine::outbound::parse_url(text).map_err(|error| error.to_string())?;
    Ok(url.origin().ascii_serialization())
}

/// Builds a server's state on a migrated store, for this command and for the benchmark.
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
    let retry = retry.map_err(|error| UsageError(format!("invalid --trigger-retry settings: {error}")))?;
    if !(1..=MAX_ATTEMPTS).contains(&i64::from(args.trigger_retry_max_attempts)) {
        let error = format!("--trigger-retry-max-attempts must be from 1 to {MAX_ATTEMPTS}");
        return Err(UsageError(error).into());
    }
    Ok(TriggerDefaults { retry, max_attempts: args.trigger_retry_max_attempts })
}

/// Creates the first token of the installation with the text of a file. A later start changes nothing.
async fn bootstrap_token(store: &Store, file: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read --bootstrap-token-file {}", file.display()))?;
    let token = TokenText::parse(text.trim()).with_context(|| {
        format!("{} has no valid token; create a text with `windlass token generate`", file.display())
    })?;
    if store.bootstrap_token(&token).await? {
        tracing::info!("created the admin token of --bootstrap-token-file");
    }
    Ok(())
}

/// The networks of `--allow-network`. The demo also sends webhooks to itself.
fn allowed_networks(args: &ServeArgs) -> anyhow::Result<Vec<CidrNetwork>> {
    let mut networks = args.allow_network.clone();
    if args.demo {
        networks.push(reachable(args.listen.ip()).to_string().parse()?);
    }
    Ok(networks)
}

/// The address at which this machine reaches a listener on `ip`.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// The demo calls its own server over HTTP.
fn demo_server(address: SocketAddr, token_file: Option<&Path>) -> anyhow::Result<DemoServer> {
    let url = format!("http://{}", SocketAddr::new(reachable(address.ip()), address.port()));
    let mut client = Client::builder(&url);
    if let Some(file) = token_file {
        client = client.token(std::fs::read_to_string(file)?.trim());
    }
    Ok(DemoServer { client: client.build()?, url })
}

/// Returns an error if no token exists: without tokens every caller has full access, so the server must listen on
/// loopback only.
async fn require_tokens(store: &Store, database: &str) -> anyhow::Result<()> {
    if !store.is_open().await? {
        return Ok(());
    }
    let database = if database.starts_with("postgres") { "$WINDLASS_DATABASE" } else { database };
    bail!(
        "no tokens exist, and without tokens the server listens on loopback only; create a token with \
         `windlass token create --database {database} --role admin --name me`, or listen on 127.0.0.1 or [::1]"
    )
}

/// Raises the limit of open files, because every connection is one and the default limit is low.
pub(crate) fn raise_open_files() {
    let limits = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limits.maximum.or(limits.current), maximum: limits.maximum };
    // If this fails, fewer connections are served at the same time.
    let _ = setrlimit(Resource::Nofile, wanted);
}

async fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!("{address} is in use; stop the program that listens there, or use another {flag}")
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
        println!("The demo is running on a temporary database, which is deleted when you press Ctrl-C.");
        println!("In another terminal:  windlass queue list    windlass job list    windlass worker list");
    }
}

/// Stops gracefully on the first signal and exits immediately on the second.
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

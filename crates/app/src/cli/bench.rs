//! `windlass bench`: measures enqueue, claim and settle throughput and latency with full durability.
//!
//! Compare figures only within one run: machines differ and are noisy. Every line is one measurement.

mod drive;
mod eta;
mod figure;
mod measure;
mod pages;
mod raw;
mod served;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use store::{DatabaseUrl, Store, StoreOptions};

use super::exit::Exit;
use super::output::{Output, note};
use drive::{EmbeddedEngine, HttpServer};
use figure::Figure;

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Database to measure. A PostgreSQL database must have no Windlass schema; it is wiped afterwards
    /// [default: a SQLite file in a temporary directory]
    #[arg(long, env = "WINDLASS_BENCH_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Run only these measurements
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Metric>,
    /// Measure only the embedded engine, or only HTTP [default: both]
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Rounds per measurement; the median is printed
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs per measurement, in percent of the full size
    #[arg(long, default_value_t = 100)]
    scale: u64,
    /// Compare with an earlier run, a file of JSON lines, and report changes larger than the noise
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Enqueue jobs one at a time with 16 producers
    Enqueue16,
    /// Enqueue jobs one at a time with 64 producers
    Enqueue64,
    /// Enqueue jobs in batches of 1,000 with one producer
    Bulk,
    /// Claim, run and settle 100,000 waiting jobs
    Drain100k,
    /// Time from enqueue to handler start, at 50 jobs per second
    Latency,
    /// Drain 100,000 of a million waiting jobs. Like those below, runs only when named
    #[value(name = "drain_of_1M")]
    DrainOf1M,
    /// Drain 100,000 waiting jobs next to a million ended jobs
    #[value(name = "drain_retained1M")]
    DrainRetained1M,
    /// Drain 100,000 waiting jobs next to ten million ended jobs
    #[value(name = "drain_retained10M")]
    DrainRetained10M,
    /// Drain 100,000 waiting jobs behind a million parked jobs
    #[value(name = "drain_parked1M")]
    DrainParked1M,
    /// Drain 100,000 waiting jobs next to 10,000 other queues with jobs
    #[value(name = "drain_queues10k")]
    DrainQueues10k,
    /// Drain 100,000 waiting jobs next to 10,000 other tenants with jobs
    #[value(name = "drain_tenants10k")]
    DrainTenants10k,
    /// Drain 100,000 waiting jobs through two nodes on one PostgreSQL database (embedded only)
    #[value(name = "drain_nodes2")]
    DrainNodes2,
    /// Drain 100,000 waiting jobs through three nodes (embedded only)
    #[value(name = "drain_nodes3")]
    DrainNodes3,
    /// Latency with 1,000 workers that wait for the same queue
    #[value(name = "latency_workers1k")]
    LatencyWorkers1k,
    /// Run `windlass verify` on ten million jobs (embedded only)
    #[value(name = "verify10M")]
    Verify10M,
    /// Read signals of a million waiting jobs, 1,000 per second (HTTP only, like those below)
    #[value(name = "signals1M")]
    Signals1M,
    /// Time from a cancellation to the event on the job's stream, with 5,000 open streams
    Streams5k,
    /// Time from a change of a fact to the start of the handler, with 100,000 subjects and 10 processes
    Subjects100k,
    /// Time to render each dashboard page, with a million jobs
    Pages,
    /// How often ETAs hold, with the limits: the mean of `--rounds` seeds in virtual time, and a minute in real time
    Eta,
}

impl Metric {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The number of nodes that the measurement uses.
    fn nodes(self) -> usize {
        match self {
            Self::DrainNodes2 => 2,
            Self::DrainNodes3 => 3,
            _ => 1,
        }
    }

    /// True for measurements that take minutes.
    fn is_large(self) -> bool {
        let small = [Self::Enqueue16, Self::Enqueue64, Self::Bulk, Self::Drain100k, Self::Latency];
        !small.contains(&self)
    }

    fn is_measured(self, mode: Mode) -> bool {
        match mode {
            Mode::Embedded => !matches!(self, Self::Signals1M | Self::Streams5k | Self::Subjects100k | Self::Pages),
            Mode::Http => !matches!(self, Self::Verify10M | Self::DrainNodes2 | Self::DrainNodes3 | Self::Eta),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    Embedded,
    Http,
}

pub(crate) async fn run(args: BenchArgs, output: Output) -> anyhow::Result<Exit> {
    let old = args.compare.as_deref().map(figure::read).transpose()?;
    let mut figures = Vec::new();
    for mode in [Mode::Embedded, Mode::Http] {
        if args.mode.is_some_and(|only| only != mode) {
            continue;
        }
        for metric in Metric::value_variants() {
            let wanted = if args.only.is_empty() { !metric.is_large() } else { args.only.contains(metric) };
            if !wanted || !metric.is_measured(mode) {
                continue;
            }
            let measured = match metric {
                Metric::Pages => pages::measure(&args, scaled(&args, 1_000_000)).await?,
                Metric::Eta => eta::measure(&args, output).await?,
                _ => vec![median(&args, mode, *metric).await?],
            };
            for figure in measured {
                // The table of estimates is printed as a whole.
                if *metric != Metric::Eta || output == Output::Json {
                    figure.print(output)?;
                }
                figures.push(figure);
            }
        }
    }
    if figures.is_empty() {
        bail!("no measurement selected");
    }
    if let Some(old) = old {
        let changes = figure::compare(&old, &figures);
        let none = || vec!["no change larger than the noise".to_owned()];
        // To stderr: a program may read the figures from stdout.
        Some(changes).filter(|changes| !changes.is_empty()).unwrap_or_else(none).iter().for_each(|line| note(line));
    }
    Ok(Exit::Done)
}

fn scaled(args: &BenchArgs, jobs: u64) -> u64 {
    (jobs * args.scale / 100).max(1)
}

async fn median(args: &BenchArgs, mode: Mode, metric: Metric) -> anyhow::Result<Figure> {
    let mut rounds = Vec::new();
    for _ in 0..args.rounds.max(1) {
        let scratch = ScratchDatabase::open(args.database.as_deref()).await?;
        let scaled = |jobs: u64| scaled(args, jobs);
        let figure = match mode {
            Mode::Embedded if metric.nodes() > 1 => {
                let mut nodes = vec![EmbeddedEngine::start(&scratch.store).await?];
                for _ in 1..metric.nodes() {
                    nodes.push(EmbeddedEngine::start(&scratch.beside(args.database.as_deref()).await?).await?);
                }
                measure::drain_through(&nodes, &metric.name(), scaled(100_000)).await?
            }
            Mode::Embedded => measure::measure(&EmbeddedEngine::start(&scratch.store).await?, metric, scaled).await?,
            Mode::Http => measure::measure_served(&HttpServer::start(&scratch.store).await?, metric, scaled).await?,
        };
        rounds.push(figure);
        scratch.wipe().await?;
    }
    Ok(Figure::median(rounds))
}

/// A database that is empty before the measurement and wiped after it.
struct ScratchDatabase {
    store: Store,
    folder: Option<tempfile::TempDir>,
}

impl ScratchDatabase {
    async fn open(database: Option<&str>) -> anyhow::Result<Self> {
        let (url, folder) = match database {
            Some(url) => match DatabaseUrl::parse(url)? {
                DatabaseUrl::Sqlite(path) => {
                    let beside = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                    let folder = tempfile::tempdir_in(beside.map_or_else(|| PathBuf::from("."), PathBuf::from))?;
                    (DatabaseUrl::Sqlite(folder.path().join("bench.db")), Some(folder))
                }
                url => (url, None),
            },
            None => {
                let folder = tempfile::tempdir()?;
                (DatabaseUrl::Sqlite(folder.path().join("bench.db")), Some(folder))
            }
        };
        let options = StoreOptions { exclusive: true, ..StoreOptions::default() };
        let store = Store::open(&url, options).await.context("cannot open the database to measure")?;
        refuse_used_database(&store).await?;
        store.migrate_up().await?;
        // Clean up now, so that vacuuming earlier measurements does not slow down this one. Compared programs also
        // start with a checkpoint.
        store.vacuum().await?;
        Ok(Self { store, folder })
    }

    /// Opens another node's connection to the same database.
    async fn beside(&self, database: Option<&str>) -> anyhow::Result<Store> {
        let url = database.map(DatabaseUrl::parse).transpose()?;
        let Some(url @ DatabaseUrl::Postgres(_)) = url else {
            bail!("several nodes need PostgreSQL: --database postgres://…")
        };
        Ok(Store::open(&url, StoreOptions::default()).await?)
    }

    async fn wipe(self) -> anyhow::Result<()> {
        if self.folder.is_none() {
            self.store.migrate_down(0).await?;
        }
        Ok(())
    }
}

/// Returns an error if the database has a schema: it may contain tenants, tokens and triggers even without jobs. A
/// wiped database has none.
async fn refuse_used_database(store: &Store) -> anyhow::Result<()> {
    if store.migration_status().await?.iter().any(|migration| migration.applied_at.is_some()) {
        bail!(
            "the database to measure must have no schema yet, because it is wiped afterwards: use a new database, or \
             remove all data with `windlass migrate down --to 0 --yes`"
        );
    }
    Ok(())
}

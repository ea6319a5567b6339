//! `windlass bench`: how fast this machine takes work in, hands it out and ends it, with full durability.
//!
//! Figures are for ratios within one run; machines differ and are noisy. Every line is one measurement.

mod drive;
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
use drive::{Embed, Http};
use figure::Figure;

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// The database to measure; a SQLite file in a temporary folder unless given. One on PostgreSQL must have no schema of
    /// this program: it is wiped afterwards.
    #[arg(long, env = "WINDLASS_BENCH_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Measure only these.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Metric>,
    /// Measure only in this process, or only over HTTP.
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// How often each is measured; the median is printed.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Jobs per measurement, in percent of the full size.
    #[arg(long, default_value_t = 100)]
    scale: u64,
    /// Also tell what changed since an older run, a file of JSON lines, by more than the noise.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Jobs taken in one by one by 16 producers.
    Enqueue16,
    /// Jobs taken in one by one by 64 producers.
    Enqueue64,
    /// Jobs taken in a thousand at a time by one producer.
    Bulk,
    /// A hundred thousand waiting jobs, claimed, run and settled.
    Drain100k,
    /// From the enqueue to the handler's start, 50 jobs a second.
    Latency,
    /// A hundred thousand of a million waiting jobs. Only when named, like those below.
    #[value(name = "drain_of_1M")]
    DrainOf1M,
    /// A hundred thousand waiting jobs beside a million that have ended.
    #[value(name = "drain_retained1M")]
    DrainRetained1M,
    /// The same beside ten million.
    #[value(name = "drain_retained10M")]
    DrainRetained10M,
    /// A hundred thousand waiting jobs behind a million that cannot run.
    #[value(name = "drain_parked1M")]
    DrainParked1M,
    /// A hundred thousand waiting jobs beside 10,000 other queues that have some.
    #[value(name = "drain_queues10k")]
    DrainQueues10k,
    /// The same beside 10,000 other tenants.
    #[value(name = "drain_tenants10k")]
    DrainTenants10k,
    /// A hundred thousand waiting jobs, worked off through two nodes on one PostgreSQL. In this process alone.
    #[value(name = "drain_nodes2")]
    DrainNodes2,
    /// The same through three.
    #[value(name = "drain_nodes3")]
    DrainNodes3,
    /// The latency with 1,000 workers that wait for the same queue.
    #[value(name = "latency_workers1k")]
    LatencyWorkers1k,
    /// `windlass verify` on ten million jobs, in this process alone.
    #[value(name = "verify10M")]
    Verify10M,
    /// Reads of signals of a million waiting jobs, 1,000 a second. Over HTTP alone, like those below.
    #[value(name = "signals1M")]
    Signals1M,
    /// From a cancel until the job's stream says so, with 5,000 streams open.
    Streams5k,
    /// From a fact's change until the handler of the job it calls for starts, with 100,000 subjects and 10 processes.
    Subjects100k,
    /// What the server takes for each page of the dashboard, beside a million jobs.
    Pages,
}

impl Metric {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Through how many nodes it is measured.
    fn nodes(self) -> usize {
        match self {
            Self::DrainNodes2 => 2,
            Self::DrainNodes3 => 3,
            _ => 1,
        }
    }

    /// Takes minutes.
    fn is_large(self) -> bool {
        let small = [Self::Enqueue16, Self::Enqueue64, Self::Bulk, Self::Drain100k, Self::Latency];
        !small.contains(&self)
    }

    fn is_measured(self, mode: Mode) -> bool {
        match mode {
            Mode::Embedded => !matches!(self, Self::Signals1M | Self::Streams5k | Self::Subjects100k | Self::Pages),
            Mode::Http => !matches!(self, Self::Verify10M | Self::DrainNodes2 | Self::DrainNodes3),
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
                _ => vec![median(&args, mode, *metric).await?],
            };
            for figure in measured {
                figure.print(output)?;
                figures.push(figure);
            }
        }
    }
    if figures.is_empty() {
        bail!("nothing was measured");
    }
    if let Some(old) = old {
        let changes = figure::compare(&old, &figures);
        let none = || vec!["nothing changed by more than the noise".to_owned()];
        // Beside the figures, which a program may be reading.
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
        let scratch = Scratch::open(args.database.as_deref()).await?;
        let scaled = |jobs: u64| scaled(args, jobs);
        let figure = match mode {
            Mode::Embedded if metric.nodes() > 1 => {
                let mut nodes = vec![Embed::start(&scratch.store).await?];
                for _ in 1..metric.nodes() {
                    nodes.push(Embed::start(&scratch.beside(args.database.as_deref()).await?).await?);
                }
                measure::drain_through(&nodes, &metric.name(), scaled(100_000)).await?
            }
            Mode::Embedded => measure::measure(&Embed::start(&scratch.store).await?, metric, scaled).await?,
            Mode::Http => measure::measure_served(&Http::start(&scratch.store).await?, metric, scaled).await?,
        };
        rounds.push(figure);
        scratch.wipe().await?;
    }
    Ok(Figure::median(rounds))
}

/// A database that held nothing before the measurement and holds nothing after it.
struct Scratch {
    store: Store,
    folder: Option<tempfile::TempDir>,
}

impl Scratch {
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
        refuse_what_is_in_use(&store).await?;
        store.migrate_up().await?;
        // What was measured before is not to be cleared away at the cost of what comes now. Peers begin with a checkpoint too.
        store.vacuum().await?;
        Ok(Self { store, folder })
    }

    /// Another node's handle on the same database.
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

/// Whatever has a schema may hold somebody's tenants, tokens and triggers, with or without a job. One that was wiped has none.
async fn refuse_what_is_in_use(store: &Store) -> anyhow::Result<()> {
    if store.migration_status().await?.iter().any(|migration| migration.applied_at.is_some()) {
        bail!(
            "the database to measure must have no schema yet: it would be wiped afterwards; make a new one, or let go of \
             all that is in it with `windlass migrate down --to 0 --yes`"
        );
    }
    Ok(())
}

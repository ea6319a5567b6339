//! Opens every disk that a power cut could have left, lets SQLite recover, and checks the acknowledged facts.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::db::tx::{Operation, Sql, Tx};
use store::{DatabaseUrl, Store, StoreError, StoreOptions};
use uuid::Uuid;

use super::EndStates;
use super::disk::{Disk, Image, Survival};
use super::record::{Event, Promise, Record};

/// Every recovered database is read. Every n-th one is also opened by the store and checked with `verify` and SQLite's
/// integrity check, which take longer. A large campaign does that for fewer of them.
const FULL_CHECK_EVERY: usize = 10;
const FULL_CHECK_EVERY_IN_LARGE: usize = 100;
const LARGE_CAMPAIGN: usize = 5_000;
/// A campaign stops after this many findings.
const MAX_FINDINGS: usize = 20;

pub(super) struct Scenario<'a> {
    record: &'a Record,
    ends: &'a EndStates,
    seed: u64,
    /// Positions of the cuts and what survives them, in the order of the recording.
    cuts: Vec<(usize, Survival)>,
}

#[derive(Default)]
pub(super) struct Report {
    pub(super) states: usize,
    /// Acknowledged facts in the recording.
    pub(super) responses: usize,
    writes: usize,
    syncs: usize,
    took: Duration,
    pub(super) findings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, responses, writes, syncs, took, findings } = self;
        let lost = findings.len();
        write!(f, "writes={writes} syncs={syncs} responses={responses} states={states} lost={lost} in {took:.1?}")
    }
}

impl<'a> Scenario<'a> {
    /// Two thirds of the cuts are between two calls, as far as there are so many calls. The others are random.
    pub(super) fn new(record: &'a Record, ends: &'a EndStates, seed: u64, states: usize) -> Self {
        let changes = |event: &Event| !matches!(event, Event::Response { .. });
        let prefixes: Vec<usize> = (0..record.events.len()).filter(|at| changes(&record.events[*at])).collect();
        // A short campaign selects evenly spaced prefixes.
        let wanted = prefixes.len().min(states * 2 / 3);
        let selected = (0..wanted).map(|number| prefixes[number * prefixes.len() / wanted.max(1)]);
        let mut cuts: Vec<(usize, Survival)> = selected.map(|at| (at + 1, Survival::All)).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        while cuts.len() < states {
            let survival = if rng.random_ratio(1, 8) { Survival::Nothing } else { Survival::Random };
            cuts.push((rng.random_range(1..=record.events.len()), survival));
        }
        cuts.sort_by_key(|(at, _)| *at);
        Self { record, ends, seed, cuts }
    }

    pub(super) async fn run(&self) -> Report {
        let started = Instant::now();
        let count = |wanted: fn(&Event) -> bool| self.record.events.iter().filter(|event| wanted(event)).count();
        let promises = |event: &Event| if let Event::Response { promises } = event { promises.len() } else { 0 };
        let mut report = Report {
            responses: self.record.events.iter().map(promises).sum(),
            writes: count(|event| matches!(event, Event::Write { .. })),
            syncs: count(|event| matches!(event, Event::Sync { .. } | Event::SyncFolder)),
            ..Report::default()
        };
        let folder = memory_folder();
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut disk = Disk::empty(self.record);
        let mut expected = Expected::default();
        for (number, (at, survival)) in self.cuts.iter().enumerate() {
            expected.add(&self.record.events[disk.at..*at], self.ends);
            disk.advance_to(*at);
            let cut_folder = folder.path().join(number.to_string());
            write(&cut_folder, disk.image(*survival, &mut rng));
            let is_large = self.cuts.len() > LARGE_CAMPAIGN;
            let full = number % if is_large { FULL_CHECK_EVERY_IN_LARGE } else { FULL_CHECK_EVERY } == 0;
            let finding = check(&cut_folder.join("journey.db"), &expected, full).await;
            std::fs::remove_dir_all(&cut_folder).expect("removes the folder");
            report.states += 1;
            let describe = |finding: String| format!("cut {number} after event {at} with {survival:?}: {finding}");
            report.findings.extend(finding.map(describe));
            if report.findings.len() >= MAX_FINDINGS {
                break;
            }
        }
        report.took = started.elapsed();
        report
    }
}

fn memory_folder() -> tempfile::TempDir {
    let shared_memory = Path::new("/dev/shm");
    let folder = if shared_memory.is_dir() { tempfile::tempdir_in(shared_memory) } else { tempfile::tempdir() };
    folder.expect("a temporary folder")
}

/// The facts acknowledged before the cut.
#[derive(Default)]
struct Expected {
    jobs: HashMap<Uuid, ExpectedJob>,
}

#[derive(Clone, Default)]
struct ExpectedJob {
    epoch: i64,
    ended: Option<&'static str>,
}

/// The jobs of a database with their epoch and state.
type StoredJobs = HashMap<Uuid, (i64, String)>;

impl Expected {
    /// Returns the first acknowledged fact that the database does not contain.
    fn missing(&self, stored: &StoredJobs) -> Option<String> {
        self.jobs.iter().find_map(|(job, expected)| {
            let Some((epoch, state)) = stored.get(job) else { return Some(format!("{job} was accepted and is lost")) };
            if *epoch < expected.epoch {
                return Some(format!("{job} was claimed with epoch {} and has epoch {epoch}", expected.epoch));
            }
            let changed = expected.ended.filter(|ended| *ended != state.as_str());
            changed.map(|ended| format!("{job} was {ended} and is {state}"))
        })
    }

    fn add(&mut self, events: &[Event], ends: &EndStates) {
        let promises = events
            .iter()
            .filter_map(|event| if let Event::Response { promises } = event { Some(promises) } else { None });
        for promise in promises.flatten() {
            match promise {
                Promise::Accepted(job) => {
                    self.jobs.entry(*job).or_default();
                }
                Promise::Claimed(job, epoch) => self.jobs.entry(*job).or_default().epoch = *epoch,
                Promise::Ended(job) => self.jobs.entry(*job).or_default().ended = Some(ends[job]),
            }
        }
    }
}

fn write(folder: &Path, image: Image) {
    std::fs::create_dir(folder).expect("creates the folder");
    for (name, bytes) in image {
        std::fs::write(folder.join(name), bytes).expect("writes the file");
    }
}

/// Returns what is wrong with a disk that a cut left.
async fn check(database: &Path, expected: &Expected, full: bool) -> Option<String> {
    match read(database) {
        Ok(stored) => {
            if let Some(lost) = expected.missing(&stored) {
                return Some(lost);
            }
            if !full {
                return None;
            }
        }
        // The cut interrupted the migrations. The next start of the server resumes them.
        Err(_) if expected.jobs.is_empty() => {}
        Err(error) => return Some(format!("it cannot be read: {error}")),
    }
    match open_and_verify(database).await {
        Ok(finding) => finding,
        Err(error) => Some(format!("it does not open: {error:?}")),
    }
}

/// Reads every job. Opening the database makes SQLite recover it.
fn read(database: &Path) -> rusqlite::Result<StoredJobs> {
    let connection = rusqlite::Connection::open(database)?;
    let mut jobs =
        connection.prepare("select id, epoch, state from jobs union all select id, epoch, state from ended")?;
    let rows = jobs.query_map([], |row| {
        let id: [u8; 16] = row.get(0)?;
        Ok((Uuid::from_bytes(id), (row.get(1)?, row.get(2)?)))
    })?;
    rows.collect()
}

/// Opens the database as a server does and runs both integrity checks.
async fn open_and_verify(database: &Path) -> Result<Option<String>, StoreError> {
    let store = Store::open(&DatabaseUrl::Sqlite(database.to_owned()), StoreOptions::default()).await?;
    store.migrate_up().await?;
    if let Some(finding) = store.read(IntegrityCheck).await? {
        return Ok(Some(format!("the integrity check of SQLite found: {finding}")));
    }
    let verdict = store.verify().await?;
    Ok((!verdict.findings.is_empty()).then(|| format!("{:?}", verdict.findings)))
}

/// SQLite's integrity check of the whole file. Returns its first finding.
struct IntegrityCheck;

const INTEGRITY_CHECK: Sql = Sql::both(&["select integrity_check from pragma_integrity_check"]);

impl Operation for IntegrityCheck {
    type Output = Option<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let first = tx.query(&INTEGRITY_CHECK, &[]).await?.first().map(|row| row.text(0)).transpose()?;
        Ok(first.filter(|finding| finding != "ok"))
    }
}

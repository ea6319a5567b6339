//! Opens every disk that a power cut could have left, lets SQLite recover, and looks for what had been answered.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::tx::{Operation, Sql, Tx};
use store::{DatabaseUrl, Store, StoreError, StoreOptions};
use uuid::Uuid;

use super::Ends;
use super::disk::{Disk, Image, Luck};
use super::record::{Event, Promise, Record};

/// Every recovered database is read. One of so many is also opened as a server does it, and held against `verify` and
/// SQLite's own check, which take longer; of a great number fewer are.
const WHOLE_CHECK_EVERY: usize = 10;
const OF_MANY_EVERY: usize = 100;
const MANY: usize = 5_000;
/// After so many findings the rest adds nothing.
const ENOUGH: usize = 20;

pub(super) struct Scenario<'a> {
    record: &'a Record,
    ends: &'a Ends,
    seed: u64,
    /// Where to cut and with what luck, in the order of the recording.
    cuts: Vec<(usize, Luck)>,
}

#[derive(Default)]
pub(super) struct Report {
    pub(super) states: usize,
    /// Answers in the recording.
    pub(super) answers: usize,
    writes: usize,
    syncs: usize,
    took: Duration,
    pub(super) findings: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, answers, writes, syncs, took, findings } = self;
        let lost = findings.len();
        write!(f, "writes={writes} syncs={syncs} answers={answers} states={states} lost={lost} in {took:.1?}")
    }
}

impl<'a> Scenario<'a> {
    /// Every prefix first; half as many again, and whatever is left of `states`, by chance.
    pub(super) fn new(record: &'a Record, ends: &'a Ends, seed: u64, states: usize) -> Self {
        let changes = |event: &Event| !matches!(event, Event::Answer { .. });
        let prefixes: Vec<usize> = (0..record.events.len()).filter(|at| changes(&record.events[*at])).collect();
        // A short campaign takes the prefixes evenly.
        let wanted = prefixes.len().min(states * 2 / 3);
        let taken = (0..wanted).map(|number| prefixes[number * prefixes.len() / wanted.max(1)]);
        let mut cuts: Vec<(usize, Luck)> = taken.map(|at| (at + 1, Luck::All)).collect();
        let mut rng = StdRng::seed_from_u64(seed);
        while cuts.len() < states {
            let luck = if rng.random_ratio(1, 8) { Luck::Nothing } else { Luck::Chance };
            cuts.push((rng.random_range(1..=record.events.len()), luck));
        }
        cuts.sort_by_key(|(at, _)| *at);
        Self { record, ends, seed, cuts }
    }

    pub(super) async fn run(&self) -> Report {
        let started = Instant::now();
        let count = |wanted: fn(&Event) -> bool| self.record.events.iter().filter(|event| wanted(event)).count();
        let promises = |event: &Event| if let Event::Answer { promises } = event { promises.len() } else { 0 };
        let mut report = Report {
            answers: self.record.events.iter().map(promises).sum(),
            writes: count(|event| matches!(event, Event::Write { .. })),
            syncs: count(|event| matches!(event, Event::Sync { .. } | Event::SyncFolder)),
            ..Report::default()
        };
        let folder = memory_folder();
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut disk = Disk::empty(self.record);
        let mut expected = Expected::default();
        for (number, (at, luck)) in self.cuts.iter().enumerate() {
            expected.learn(&self.record.events[disk.at..*at], self.ends);
            disk.advance_to(*at);
            let place = folder.path().join(number.to_string());
            write(&place, disk.image(*luck, &mut rng));
            let whole = number % if self.cuts.len() > MANY { OF_MANY_EVERY } else { WHOLE_CHECK_EVERY } == 0;
            let found = check(&place.join("journey.db"), &expected, whole).await;
            std::fs::remove_dir_all(&place).expect("the folder goes");
            report.states += 1;
            let told = |what: String| format!("cut {number} after event {at} with {luck:?}: {what}");
            report.findings.extend(found.map(told));
            if report.findings.len() >= ENOUGH {
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

/// What had been answered by the time of the cut.
#[derive(Default)]
struct Expected {
    jobs: HashMap<Uuid, Known>,
}

#[derive(Clone, Default)]
struct Known {
    epoch: i64,
    ended: Option<&'static str>,
}

/// What is in a database: each job's epoch and state.
type There = HashMap<Uuid, (i64, String)>;

impl Expected {
    /// The first answer that does not hold any more.
    fn missing(&self, there: &There) -> Option<String> {
        self.jobs.iter().find_map(|(job, known)| {
            let Some((epoch, state)) = there.get(job) else { return Some(format!("{job} was accepted and is lost")) };
            if *epoch < known.epoch {
                return Some(format!("{job} was claimed with epoch {} and has epoch {epoch}", known.epoch));
            }
            let changed = known.ended.filter(|ended| *ended != state.as_str());
            changed.map(|ended| format!("{job} was {ended} and is {state}"))
        })
    }

    fn learn(&mut self, events: &[Event], ends: &Ends) {
        let answers = events
            .iter()
            .filter_map(|event| if let Event::Answer { promises } = event { Some(promises) } else { None });
        for promise in answers.flatten() {
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

fn write(place: &Path, image: Image) {
    std::fs::create_dir(place).expect("the folder is made");
    for (name, bytes) in image {
        std::fs::write(place.join(name), bytes).expect("the file is written");
    }
}

/// What is wrong with a disk that a cut left, if anything is.
async fn check(database: &Path, expected: &Expected, whole: bool) -> Option<String> {
    match read(database) {
        Ok(there) => {
            if let Some(lost) = expected.missing(&there) {
                return Some(lost);
            }
            if !whole {
                return None;
            }
        }
        // The cut came while the schema was being made; a server goes on where it was.
        Err(_) if expected.jobs.is_empty() => {}
        Err(error) => return Some(format!("it cannot be read: {error}")),
    }
    match serve(database).await {
        Ok(found) => found,
        Err(error) => Some(format!("it does not open: {error:?}")),
    }
}

/// Every job with its epoch and state. Opening is what makes SQLite recover.
fn read(database: &Path) -> rusqlite::Result<There> {
    let connection = rusqlite::Connection::open(database)?;
    let mut jobs =
        connection.prepare("select id, epoch, state from jobs union all select id, epoch, state from ended")?;
    let rows = jobs.query_map([], |row| {
        let id: [u8; 16] = row.get(0)?;
        Ok((Uuid::from_bytes(id), (row.get(1)?, row.get(2)?)))
    })?;
    rows.collect()
}

/// What a server does first, and what it would find.
async fn serve(database: &Path) -> Result<Option<String>, StoreError> {
    let store = Store::open(&DatabaseUrl::Sqlite(database.to_owned()), StoreOptions::default()).await?;
    store.migrate_up().await?;
    if let Some(told) = store.read(Sound).await? {
        return Ok(Some(format!("SQLite says: {told}")));
    }
    let verdict = store.verify().await?;
    Ok((!verdict.findings.is_empty()).then(|| format!("{:?}", verdict.findings)))
}

/// SQLite's own look at the whole file.
struct Sound;

const SOUND: Sql = Sql::both(&["select integrity_check from pragma_integrity_check"]);

impl Operation for Sound {
    type Output = Option<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let told = tx.query(&SOUND, &[]).await?.first().map(|row| row.text(0)).transpose()?;
        Ok(told.filter(|told| told != "ok"))
    }
}

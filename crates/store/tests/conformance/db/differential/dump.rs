//! Dumps the whole state of the model or of a database as lines of text. Jobs and workers appear by number.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use domain::{JobState, TenantId};
use store::StoreError;
use store::db::tx::{Operation, Param, Sql, Tx};
use testkit::model::Model;
use testkit::name;

pub(super) type Dump = BTreeMap<&'static str, BTreeSet<String>>;

pub(super) fn hash(lines: &BTreeSet<String>) -> u64 {
    let mut hasher = DefaultHasher::new();
    lines.hash(&mut hasher);
    hasher.finish()
}

pub(super) fn dump_model(model: &Model) -> Dump {
    let state = |job: usize| model.jobs[job].job.job_state();
    let jobs = model.jobs.iter().enumerate().map(|(number, job)| {
        format!(
            "{number} {} attempt {} epoch {} worker {:?} parked {:?} parent {:?} retried as {:?}",
            state(number),
            job.job.attempt,
            job.job.epoch.0,
            model.worker_of(number),
            job.parked,
            job.parent,
            job.retried_as
        )
    });
    let live = || (0..model.jobs.len()).filter(|job| !state(*job).is_terminal());
    let mut claims: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (job, claim) in live().filter_map(|job| Some((job, model.jobs[job].claim?))) {
        *claims.entry((claim, model.worker_of(job).expect("claimed"))).or_default() += 1;
    }
    let claims: Vec<(usize, usize)> = claims.into_iter().map(|((_, worker), jobs)| (worker, jobs)).collect();
    Dump::from([
        ("jobs", jobs.collect()),
        ("live", live().map(|job| format!("{job} waits {}", model.jobs[job].job.wait_s.unwrap_or(0))).collect()),
        ("holds", model.holds.iter().map(|(scope, job, epoch)| format!("{job} {} {scope}", epoch.0)).collect()),
        ("revocations", model.revocations.iter().map(|(w, job, epoch)| format!("{w} {job} {}", epoch.0)).collect()),
        ("claims", counted(claims.iter().map(|(worker, jobs)| format!("{worker} {jobs}")))),
        (
            "backoffs",
            model
                .backoffs
                .iter()
                .map(|((subject, process), backoff)| {
                    let (wait, ends) = (backoff.wait_s.unwrap_or(0), i32::from(backoff.until.is_some()));
                    format!("{process} off {subject} for {} waits {wait} ends {ends}", backoff.cause.replace(' ', "_"))
                })
                .collect(),
        ),
        ("unique keys", model.unique.iter().map(|((q, key), (job, _))| format!("{job} {q} {key}")).collect()),
        (
            "deliveries",
            counted(
                model
                    .deliveries
                    .iter()
                    .map(|(job, to, from): &(usize, JobState, JobState)| format!("{job} {to} {from}")),
            ),
        ),
        ("counts", ["q", "r"].iter().map(|queue| format!("{queue} {:?}", model.counts(&name(queue)))).collect()),
        (
            "workers",
            (0..model.workers.len())
                .filter(|worker| !model.workers[*worker].removed)
                .map(|worker| {
                    let row = &model.workers[worker];
                    let affinity = row.affinity.as_ref().map_or("-".into(), ToString::to_string);
                    format!("{worker} {affinity} dead {}", i32::from(row.is_dead))
                })
                .collect(),
        ),
    ])
}

/// Converts a bag to a set: each line gets its number of occurrences.
fn counted(lines: impl Iterator<Item = String>) -> BTreeSet<String> {
    let mut bag: BTreeMap<String, usize> = BTreeMap::new();
    lines.for_each(|line| *bag.entry(line).or_default() += 1);
    bag.into_iter().map(|(line, count)| format!("{line} x{count}")).collect()
}

/// State that no operation returns, read directly from the tables.
pub(super) struct Rows {
    pub(super) tenant: TenantId,
}

const LIVE: Sql = Sql::both(&["select id, coalesce(wait_s, 0) from jobs where tenant = $1"]);
const HOLDS: Sql = Sql::both(&["select job, epoch, scope from holds where tenant = $1"]);
const REVOCATIONS: Sql = Sql::both(&["select worker, job, epoch from revocations where tenant = $1"]);
const CLAIMS: Sql = Sql::both(&["select worker, remaining from claims where tenant = $1"]);
const BACKOFFS: Sql = Sql::both(&["select process, subject, cause, coalesce(wait_s, 0),
     case when until is null then 0 else 1 end from backoffs where tenant = $1"]);
const UNIQUE: Sql = Sql::both(&["select job, queue, key from unique_keys where tenant = $1"]);
const DELIVERIES: Sql = Sql::both(&["select job, op, body from deliveries where tenant = $1"]);
const WORKERS: Sql = Sql::both(&["select id, coalesce(affinity, '-'), case when dead_at is null then 0 else 1 end
     from workers where tenant = $1"]);

impl Operation for Rows {
    type Output = Dump;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Dump, StoreError> {
        let of = [Param::Int(self.tenant.0)];
        let mut dump = Dump::new();
        let mut live = BTreeSet::new();
        for row in tx.query(&LIVE, &of).await? {
            live.insert(format!("job:{} waits {}", row.job(0)?, row.int(1)?));
        }
        dump.insert("live", live);
        let mut holds = BTreeSet::new();
        for row in tx.query(&HOLDS, &of).await? {
            holds.insert(format!("job:{} {} {}", row.job(0)?, row.int(1)?, row.text(2)?));
        }
        dump.insert("holds", holds);
        let mut revocations = BTreeSet::new();
        for row in tx.query(&REVOCATIONS, &of).await? {
            revocations.insert(format!("worker:{} job:{} {}", row.uuid(0)?, row.job(1)?, row.int(2)?));
        }
        dump.insert("revocations", revocations);
        let mut claims = Vec::new();
        for row in tx.query(&CLAIMS, &of).await? {
            claims.push(format!("worker:{} {}", row.uuid(0)?, row.int(1)?));
        }
        dump.insert("claims", counted(claims.into_iter()));
        let mut backoffs = BTreeSet::new();
        for row in tx.query(&BACKOFFS, &of).await? {
            let (process, subject, cause) = (row.text(0)?, row.text(1)?, row.text(2)?);
            // The model records error codes without their messages.
            let cause = cause.split(": ").next().unwrap_or_default().replace(' ', "_");
            backoffs.insert(format!("{process} off {subject} for {cause} waits {} ends {}", row.int(3)?, row.int(4)?));
        }
        dump.insert("backoffs", backoffs);
        let mut unique = BTreeSet::new();
        for row in tx.query(&UNIQUE, &of).await? {
            unique.insert(format!("job:{} {} {}", row.job(0)?, row.text(1)?, row.text(2)?));
        }
        dump.insert("unique keys", unique);
        let mut deliveries = Vec::new();
        for row in tx.query(&DELIVERIES, &of).await? {
            let body = row.text(2)?;
            let from = body.split(r#""previous_state":""#).nth(1).and_then(|rest| rest.split('"').next());
            deliveries.push(format!("job:{} {} {}", row.job(0)?, row.text(1)?, from.unwrap_or("?")));
        }
        dump.insert("deliveries", counted(deliveries.into_iter()));
        let mut workers = BTreeSet::new();
        for row in tx.query(&WORKERS, &of).await? {
            workers.insert(format!("worker:{} {} dead {}", row.uuid(0)?, row.text(1)?, row.int(2)?));
        }
        dump.insert("workers", workers);
        Ok(dump)
    }
}

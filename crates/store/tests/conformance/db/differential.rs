//! Differential test: seeded random sequences of operations run on the model and on each database. After every step
//! the results are compared. Some sequences also compare a hash of the whole state after every step, the others the
//! state at the end.
//!
//! A failure names its seed. To run one seed alone, set `ONE` below and run `cargo nextest run -p windlass-store
//! differential::one_seed`.

mod dump;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use domain::{JobId, QueueSettings, RetryPolicy, TenantId, WorkerId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use store::fleet::backoffs::lockout::{Lockout, Until};
use store::queue::cancel::Canceled;
use store::queue::claim::Claimed;
use store::queue::enqueue::{EnqueueReply, NewJob};
use store::queue::list::JobFilter;
use store::queue::retry::Retried;
use store::queue::settle::{End, Outcome, Settled};
use store::queue::workers::heartbeat::Heartbeat;
use store::queue::workers::register::NewWorker;
use store::signals::refine::SignalChange;
use store::{Clock, DatabaseUrl, Store, StoreError, StoreOptions};
use testkit::model::{Model, STEP_MS, Step, StepResult, generate, settings};
use testkit::{Database, ServiceHeartbeat, name};

use crate::support::{psql, run_sql, texts};
use dump::{Dump, Rows, dump_model, hash};

const STEPS: usize = 40;
/// One in this many sequences compares the state after every step, because reading the state takes longer than a step.
const COMPARE_ONE_IN_ON_SQLITE: u64 = 20;
const COMPARE_ONE_IN_ON_POSTGRES: u64 = 4;
/// Factor by which every duration in a step is multiplied. Half a grid unit is then minutes, longer than the 5 seconds
/// that a busy machine may take between two steps.
const STRETCH: i64 = 30;
/// Distance between the due times of two steps that would coincide. The sum over all steps is less than half a grid
/// unit.
const APART_S: i64 = 3;
/// A failed seed to rerun.
const ONE: u64 = 0;

#[tokio::test]
async fn one_seed_matches_the_model() {
    check_sqlite(ONE..ONE + 1).await;
    check_postgres(ONE..ONE + 1).await;
}

/// Requirement X8.
#[tokio::test]
async fn sqlite_matches_the_model_in_the_first_sequences() {
    check_sqlite(0..1_000).await;
}

/// Requirement X8.
#[tokio::test]
async fn sqlite_matches_the_model_in_more_sequences() {
    check_sqlite(1_000..2_000).await;
}

/// Requirement X8.
#[tokio::test]
async fn postgres_matches_the_model_in_the_first_sequences() {
    check_postgres(0..100).await;
}

/// Requirement X8.
#[tokio::test]
async fn postgres_matches_the_model_in_more_sequences() {
    check_postgres(100..200).await;
}

/// Uses an in-memory file system if there is one: the test is about behavior, not the disk.
async fn check_sqlite(seeds: std::ops::Range<u64>) {
    let shared_memory = std::path::Path::new("/dev/shm");
    let folder = if shared_memory.is_dir() { tempfile::tempdir_in(shared_memory) } else { tempfile::tempdir() };
    let folder = folder.expect("a temporary folder");
    let clock = Clock::system();
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let url = DatabaseUrl::Sqlite(folder.path().join("test.db"));
    let store = Store::open(&url, options).await.expect("the database opens");
    store.migrate_up().await.expect("the migrations run");
    check(store, clock, seeds).await;
}

async fn check_postgres(seeds: std::ops::Range<u64>) {
    let db = Database::postgres().await;
    let database = texts(&db.store, "", "select current_database()::text").await.remove(0);
    // Commits need not reach the disk, which would take most of the time of the test.
    let alter = format!("alter database {database} set synchronous_commit = off");
    psql(&db.admin).await.client.batch_execute(&alter).await.expect("alters");
    let options = StoreOptions { clock: db.clock.clone(), unsafe_durability: true, ..StoreOptions::default() };
    let store = Store::open(&db.url, options).await.expect("the database opens");
    check(store, db.clock, seeds).await;
}

async fn check(store: Store, clock: Clock, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        Run::new(&store, &clock, seed).all().await;
    }
    assert_eq!(store.check_counters().await.expect("checks"), []);
}

/// One sequence, with its own tenant, on a database that earlier sequences used.
struct Run<'a> {
    store: &'a Store,
    clock: &'a Clock,
    /// When the store's clock and the model's last agreed. Since then real time has advanced only the store's clock.
    agreed_at: Instant,
    seed: u64,
    tenant: TenantId,
    model: Model,
    jobs: Vec<JobId>,
    workers: Vec<WorkerId>,
    done: Vec<Step>,
    comparison: Comparison,
}

/// Returns the step with every duration multiplied by `STRETCH`. Delays of different steps that would end at one
/// moment end seconds apart, in the order of the steps, so that the speed of the machine decides nothing.
fn stretched(step: Step, number: usize) -> Step {
    let stretch_time = |time: i64| time * STRETCH;
    let apart_s = number as i64 * APART_S;
    let stretch_retry = |retry: RetryPolicy| {
        let [initial_s, maximum_s] = [retry.initial_s(), retry.maximum_s()].map(|wait_s| Some(wait_s * STRETCH as u64));
        RetryPolicy::new(initial_s, maximum_s, Some(retry.exponent()), Some(retry.jitter())).expect("a valid policy")
    };
    match step {
        Step::Enqueue { mut jobs, key } => {
            for (job, delay) in &mut jobs {
                *delay = delay.map(|delay| stretch_time(delay) + apart_s);
                let Some(extras) = &mut job.extras else { continue };
                extras.retry = extras.retry.map(stretch_retry);
                extras.timeout_s = extras.timeout_s.map(stretch_time);
                if let Some(unique) = &mut extras.unique {
                    unique.for_s = unique.for_s.map(stretch_time);
                }
            }
            Step::Enqueue { jobs, key }
        }
        Step::Register { queues, kinds, affinities, lease_ms } => {
            Step::Register { queues, kinds, affinities, lease_ms: stretch_time(lease_ms) }
        }
        Step::Settle { worker, mut outcomes } => {
            for (_, _, end) in &mut outcomes {
                if let End::Snooze { delay_ms } = end {
                    *delay_ms = stretch_time(*delay_ms) + apart_s * 1_000;
                }
            }
            Step::Settle { worker, outcomes }
        }
        Step::Put { queue, settings } => {
            let (retry, starvation_s) = (settings.retry.map(stretch_retry), settings.starvation_s.map(stretch_time));
            Step::Put { queue, settings: QueueSettings { retry, starvation_s, ..settings } }
        }
        Step::LockOut { subject, process, for_s } => Step::LockOut { subject, process, for_s: for_s.map(stretch_time) },
        Step::Pass { seconds } => Step::Pass { seconds: stretch_time(seconds) },
        Step::Outage { seconds } => Step::Outage { seconds: stretch_time(seconds) },
        other => other,
    }
}

/// When the whole state is compared.
#[derive(Clone, Copy, PartialEq)]
enum Comparison {
    AfterEveryStep,
    AtTheEnd,
}

impl<'a> Run<'a> {
    fn new(store: &'a Store, clock: &'a Clock, seed: u64) -> Self {
        let tenant = TenantId(1_000 + seed as i64);
        let (model, jobs, workers, done) = (Model::new(), Vec::new(), Vec::new(), Vec::new());
        let one_in = if store.is_postgres() { COMPARE_ONE_IN_ON_POSTGRES } else { COMPARE_ONE_IN_ON_SQLITE };
        let comparison = if seed.is_multiple_of(one_in) { Comparison::AfterEveryStep } else { Comparison::AtTheEnd };
        Self { store, clock, agreed_at: Instant::now(), seed, tenant, model, jobs, workers, done, comparison }
    }

    async fn all(&mut self) {
        let mut rng = StdRng::seed_from_u64(self.seed);
        self.serve().await;
        self.step(Step::Put { queue: name("q"), settings: settings() }).await;
        let limits = self.seed.is_multiple_of(3).then_some(3);
        let limited = QueueSettings { per_key: Some(2), concurrency: limits, ..settings() };
        self.step(Step::Put { queue: name("r"), settings: limited }).await;
        for _ in 0..STEPS {
            let step = generate(&mut rng, &self.model);
            self.step(step).await;
        }
        self.compare_dumps().await;
        self.clean_up().await;
    }

    async fn step(&mut self, step: Step) {
        let step = stretched(step, self.done.len());
        let expected = self.model.run(&step);
        self.done.push(step.clone());
        let answer = match self.run(step).await {
            Ok(answer) => answer,
            Err(error) => panic!("{}: {error:?}", self.report()),
        };
        assert_eq!(answer, expected, "{}", self.report());
        if self.comparison == Comparison::AfterEveryStep {
            self.compare_hashes().await;
        }
        self.model.pass_ms(STEP_MS);
        self.clock.advance_ms(STEP_MS);
    }

    /// Describes the sequence so far and how to rerun it.
    fn report(&self) -> String {
        let steps: Vec<String> = self.done.iter().map(|step| format!("  {step:?}")).collect();
        let database = if self.store.is_postgres() { "PostgreSQL" } else { "SQLite" };
        format!(
            "{}\nseed {} on {database}: left is the store, right is the model. Again: set ONE = {} in differential.rs, \
             then `cargo nextest run -p windlass-store differential::one_seed`",
            steps.join("\n"),
            self.seed,
            self.seed
        )
    }

    /// Records that the service was up until now, with no outage.
    async fn serve(&self) {
        self.store.write(ServiceHeartbeat { since: None }).await.expect("records a heartbeat");
    }

    /// Advances the store's clock to the model's. Real time since they agreed is subtracted: the grid tolerates the
    /// drift between two such steps, but not that of a whole sequence.
    fn pass(&mut self, seconds: i64) {
        let millis = seconds * 1_000;
        let late = self.agreed_at.elapsed().as_millis() as i64;
        // Never backwards: ids are ordered by time.
        let moved = (millis - late).max(1);
        self.clock.advance_ms(moved);
        self.agreed_at += Duration::from_millis((millis - moved).unsigned_abs());
    }

    fn number(&mut self, id: JobId) -> usize {
        let position = self.jobs.iter().position(|job| *job == id);
        position.unwrap_or_else(|| {
            self.jobs.push(id);
            self.jobs.len() - 1
        })
    }

    async fn run(&mut self, step: Step) -> Result<StepResult, StoreError> {
        let (store, tenant) = (self.store, self.tenant);
        Ok(match step {
            Step::Enqueue { jobs, key } => {
                let now = self.clock.now();
                let at = |(job, delay): (NewJob, Option<i64>)| NewJob { run_at: delay.map(|s| now.plus_s(s)), ..job };
                match store.enqueue(tenant, jobs.into_iter().map(at).collect(), key).await? {
                    EnqueueReply::KeyReused => StepResult::KeyReused,
                    EnqueueReply::Accepted(jobs) => {
                        let rows = jobs.iter().map(|job| (self.number(job.id), job.state, job.existing));
                        StepResult::Accepted(rows.collect())
                    }
                }
            }
            Step::Register { queues, kinds, affinities, lease_ms } => {
                let new = NewWorker { name: "w".into(), queues, kinds, affinities, lease_ms };
                self.workers.push(store.register_worker(tenant, new).await?);
                StepResult::Registered(self.workers.len() - 1)
            }
            Step::Heartbeat { worker, affinity } => {
                match store.heartbeat(tenant, self.workers[worker], affinity).await? {
                    Heartbeat::Alive { cancel, drain, .. } => {
                        StepResult::Alive { cancel: cancel.iter().map(|job| self.number(*job)).collect(), drain }
                    }
                    Heartbeat::LeaseExpired => StepResult::LeaseExpired,
                    Heartbeat::NotFound => StepResult::NotFound,
                }
            }
            Step::Claim { worker, max, affinity } => {
                match store.claim(tenant, self.workers[worker], max, affinity).await? {
                    Claimed::Jobs { jobs, .. } => {
                        let rows = jobs.iter().map(|job| (self.number(job.id), job.epoch, job.attempt));
                        StepResult::Claimed(rows.collect())
                    }
                    Claimed::LeaseExpired => StepResult::LeaseExpired,
                    Claimed::NotFound => StepResult::NotFound,
                }
            }
            Step::Settle { worker, outcomes } => {
                let outcome = |(job, epoch, end)| Outcome { job: self.jobs[job], epoch, end };
                let outcomes = outcomes.into_iter().map(outcome).collect();
                match store.settle(tenant, self.workers[worker], outcomes).await? {
                    Settled::Results(statuses) => StepResult::Settled(statuses),
                    Settled::FactsWithoutSubject(_) => panic!("no outcome brings facts"),
                    Settled::NoSuchKey(..) => panic!("no outcome suspends its job"),
                    Settled::NoSuchWorker => StepResult::NotFound,
                }
            }
            Step::Signal { job, epoch, state } => {
                let change = SignalChange { epoch, state, ..SignalChange::default() };
                StepResult::Signaled(store.signal(tenant, self.jobs[job], change).await?)
            }
            Step::Cancel { job } => {
                let canceled = store.cancel(tenant, self.jobs[job], "me".into()).await?;
                self.canceled(canceled)
            }
            Step::CancelByKey { queue, key } => {
                let canceled = store.cancel_by_key(tenant, queue, key, "me".into()).await?;
                self.canceled(canceled)
            }
            Step::Retry { job } => match store.retry_job(tenant, self.jobs[job], None, "me").await? {
                Retried::Created(made) => StepResult::Retried { job: self.number(made.id), before: false },
                Retried::AlreadyRetried(job) => StepResult::Retried { job: self.number(job), before: true },
                Retried::OtherPayload(_) => panic!("no retry brings a payload"),
                Retried::NotEnded(state) => StepResult::NotEnded(state),
                Retried::NotFound => StepResult::NotFound,
            },
            Step::Promote => StepResult::Promoted(store.promote_due().await?.jobs),
            Step::Sweep => StepResult::Swept(store.sweep().await?),
            Step::RepairParked => StepResult::Repaired(store.repair_parked_jobs().await?),
            Step::RemoveBackoff { subject, process } => {
                StepResult::Found(store.let_in(tenant, subject, process, "me".into()).await?)
            }
            Step::Scan => StepResult::Scanned(store.scan().await?.unparked),
            Step::Remove { worker } => StepResult::Found(store.remove_worker(tenant, self.workers[worker]).await?),
            Step::Drain { worker } => StepResult::Found(store.drain_worker(tenant, self.workers[worker]).await?),
            other => {
                match other {
                    Step::Fold => drop(store.fold_counters().await?),
                    Step::Pause { queue } => store.pause_queue(tenant, queue, "me".into(), None).await?,
                    Step::Resume { queue } => store.resume_queue(tenant, queue, "me".into()).await?,
                    Step::Put { queue, settings } => store.put_queue(tenant, queue, settings, "me".into()).await?,
                    Step::LockOut { subject, process, for_s } => {
                        let until = for_s.map_or(Until::Forever, Until::Seconds);
                        let (cause, actor) = ("hands off".into(), "me".into());
                        store.lock_out(tenant, Lockout { subject, process, until, cause, actor }).await?;
                    }
                    Step::Pass { seconds } => {
                        self.pass(seconds);
                        self.serve().await;
                    }
                    Step::Outage { seconds } => {
                        self.pass(seconds);
                        assert!(store.beat().await?, "a minute without heartbeat is an outage");
                        self.serve().await;
                    }
                    other => unreachable!("{other:?} was run above"),
                }
                StepResult::Done
            }
        })
    }

    fn canceled(&mut self, canceled: Canceled) -> StepResult {
        match canceled {
            Canceled::Canceled(job) => StepResult::Canceled(self.number(job)),
            Canceled::AlreadyEnded(state) => StepResult::AlreadyEnded(state),
            Canceled::Claimed | Canceled::Compensating(..) => panic!("the cancel was not restricted to waiting jobs"),
            Canceled::NotFound => StepResult::NotFound,
        }
    }

    /// Compares the whole state by hash. If the hashes differ, compares the dumps for details.
    async fn compare_hashes(&mut self) {
        let stored = self.dump_store().await;
        let modeled = dump_model(&self.model);
        if stored.iter().any(|(part, lines)| hash(lines) != hash(&modeled[part])) {
            self.compare_dumps().await;
            panic!("the hashes differ but the dumps are equal\n{}", self.report());
        }
    }

    async fn compare_dumps(&mut self) {
        let (stored, modeled) = (self.dump_store().await, dump_model(&self.model));
        for (part, stored) in stored {
            assert_eq!(stored, modeled[&part], "{part}\n{}", self.report());
        }
        for (number, id) in self.jobs.iter().enumerate() {
            let history = self.store.history(self.tenant, *id).await.expect("reads").expect("every job has one");
            // The model records how attempts start and end, not what the worker reports in between.
            let is_modeled =
                |item: &store::queue::history::HistoryItem| !matches!(item.event.as_str(), "loading" | "working");
            let stored = history.into_iter().filter(is_modeled).map(|item| {
                let worker = item.worker.and_then(|id| self.workers.iter().position(|position| *position == id));
                (item.event, item.attempt, worker, item.cause)
            });
            assert_eq!(
                stored.collect::<Vec<_>>(),
                self.model.jobs[number].history,
                "history of {number}\n{}",
                self.report()
            );
        }
    }

    async fn dump_store(&mut self) -> Dump {
        let mut dump = Dump::new();
        let rows = self.store.read(Rows { tenant: self.tenant }).await.expect("reads");
        for (part, lines) in rows {
            // Ids become numbers: `#job:…` and `#worker:…` in the lines.
            let lines = lines.into_iter().map(|line| self.numbered(&line)).collect();
            dump.insert(part, lines);
        }
        let mut rows = BTreeSet::new();
        let page = self.store.list_jobs(self.tenant, JobFilter::default(), None, 1_000).await.expect("lists");
        assert_eq!(page.jobs.len(), self.jobs.len(), "every job is listed once");
        for job in page.jobs {
            let number = self.number(job.id);
            let worker = job.worker.filter(|_| job.state.is_claimed());
            let worker = worker.and_then(|id| self.workers.iter().position(|position| *position == id));
            let parent = job.parent.map(|id| self.number(id));
            let retried_as = job.retried_as.map(|id| self.number(id));
            rows.insert(format!(
                "{number} {} attempt {} epoch {} worker {worker:?} parked {:?} parent {parent:?} retried as \
                 {retried_as:?}",
                job.state, job.attempt, job.epoch.0, job.parked
            ));
        }
        dump.insert("jobs", rows);
        let mut counts = BTreeSet::new();
        for queue in ["q", "r"] {
            // The second queue gets its settings in the second step.
            let counted = self.store.queue(self.tenant, &name(queue)).await.expect("reads");
            let counted = counted.map(|queue| queue.counts).unwrap_or_default();
            counts.insert(format!("{queue} {counted:?}"));
        }
        dump.insert("counts", counts);
        dump
    }

    fn numbered(&self, line: &str) -> String {
        let number = |token: &str| {
            let id = token.strip_prefix("job:").and_then(|id| id.parse().ok()).map(JobId::new);
            if let Some(job) = id.and_then(|id| self.jobs.iter().position(|job| *job == id)) {
                return job.to_string();
            }
            let id = token.strip_prefix("worker:").and_then(|id| id.parse().ok()).map(WorkerId::new);
            let worker = id.and_then(|id| self.workers.iter().position(|worker| *worker == id));
            worker.map_or_else(|| token.to_owned(), |worker| worker.to_string())
        };
        line.split(' ').map(number).collect::<Vec<_>>().join(" ")
    }

    /// Ends all jobs and removes all workers: sweeps and promotions span all tenants, so live rows would disturb the
    /// next sequence.
    async fn clean_up(&mut self) {
        for job in 0..self.jobs.len() {
            if !self.model.jobs[job].job.job_state().is_terminal() {
                self.step(Step::Cancel { job }).await;
            }
        }
        for worker in 0..self.workers.len() {
            self.step(Step::Remove { worker }).await;
        }
        let rows = self.store.read(Rows { tenant: self.tenant }).await.expect("reads");
        for part in ["holds", "revocations", "claims", "live"] {
            assert_eq!(rows[part], BTreeSet::new(), "{part} left behind\n{}", self.report());
        }
        self.store.fold_counters().await.expect("folds");
        run_sql(self.store, "delete from deliveries").await.expect("empties");
    }
}

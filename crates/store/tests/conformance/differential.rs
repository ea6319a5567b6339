//! X8: seeded random sequences of operations on the model and on each database. After every step the answers are compared
//! and, in some sequences, the whole state by its hash; in the others the state at the end.
//!
//! A failure names its seed. To run one alone, put it into `ONE` below and run
//! `cargo nextest run -p windlass-store differential::one_seed`.

mod dump;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use domain::{JobId, QueueSettings, RetryPolicy, TenantId, WorkerId};
use rand::SeedableRng;
use rand::rngs::StdRng;
use store::backoffs::by_hand::{Lockout, Until};
use store::jobs::cancel::Canceled;
use store::jobs::claim::Claimed;
use store::jobs::enqueue::{EnqueueReply, NewJob};
use store::jobs::list::JobFilter;
use store::jobs::retry::Retried;
use store::jobs::settle::{End, Outcome, Settled};
use store::signals::refine::SignalChange;
use store::workers::heartbeat::Heartbeat;
use store::workers::register::NewWorker;
use store::{Clock, DatabaseUrl, Store, StoreError, StoreOptions};
use testkit::model::{Answer, Model, STEP_MS, Step, generate, settings};
use testkit::{Database, Served, name};

use crate::support::{psql, run_sql, texts};
use dump::{Dump, Rows, dump_model, hash};

const STEPS: usize = 40;
/// In one of so many sequences the state is looked at after every step: looking takes longer than the step.
const LOOKED_AT_ON_SQLITE: u64 = 20;
const LOOKED_AT_ON_POSTGRES: u64 = 4;
/// Every time in a step is made so many times as long. Half a place of the grid is then minutes, and not the five
/// seconds that a busy machine may take between two steps.
const STRETCH: i64 = 30;
/// What lies between those of two steps that fall on one moment; of all steps together, less than half a place of the grid.
const APART_S: i64 = 3;
/// A seed that failed, to look at.
const ONE: u64 = 0;

#[tokio::test]
async fn one_seed() {
    check_sqlite(ONE..ONE + 1).await;
    check_postgres(ONE..ONE + 1).await;
}

#[tokio::test]
async fn x8_sqlite_does_what_the_model_does_in_the_first_sequences() {
    check_sqlite(0..1_000).await;
}

#[tokio::test]
async fn x8_sqlite_does_what_the_model_does_in_more_sequences() {
    check_sqlite(1_000..2_000).await;
}

#[tokio::test]
async fn x8_postgres_does_what_the_model_does_in_the_first_sequences() {
    check_postgres(0..100).await;
}

#[tokio::test]
async fn x8_postgres_does_what_the_model_does_in_more_sequences() {
    check_postgres(100..200).await;
}

/// In memory where the machine offers that: what is tested is behaviour, not the disk.
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
    // Likewise: what is tested is behaviour, and waiting for the disk is most of what a commit takes.
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

/// One sequence: a tenant of its own, on a database that others used before.
struct Run<'a> {
    store: &'a Store,
    clock: &'a Clock,
    /// Since when real time runs on in the store's clock and not in the model's.
    agreed: Instant,
    seed: u64,
    tenant: TenantId,
    model: Model,
    jobs: Vec<JobId>,
    workers: Vec<WorkerId>,
    done: Vec<Step>,
    look: Look,
}

/// The same step with every time in it `STRETCH` times as long. Two that were put off to one moment in different steps come
/// seconds apart, the later one after the other, so that what the machine took between them decides nothing.
fn stretched(step: Step, number: usize) -> Step {
    let longer = |time: i64| time * STRETCH;
    let apart_s = number as i64 * APART_S;
    let slower = |retry: RetryPolicy| {
        let [initial_s, maximum_s] = [retry.initial_s(), retry.maximum_s()].map(|wait_s| Some(wait_s * STRETCH as u64));
        RetryPolicy::new(initial_s, maximum_s, Some(retry.exponent()), Some(retry.jitter())).expect("a valid policy")
    };
    match step {
        Step::Enqueue { mut jobs, key } => {
            for (job, delay) in &mut jobs {
                *delay = delay.map(|delay| longer(delay) + apart_s);
                let Some(extras) = &mut job.extras else { continue };
                extras.retry = extras.retry.map(slower);
                extras.timeout_s = extras.timeout_s.map(longer);
                if let Some(unique) = &mut extras.unique {
                    unique.for_s = unique.for_s.map(longer);
                }
            }
            Step::Enqueue { jobs, key }
        }
        Step::Register { queues, kinds, affinities, lease_ms } => {
            Step::Register { queues, kinds, affinities, lease_ms: longer(lease_ms) }
        }
        Step::Settle { worker, mut outcomes } => {
            for (_, _, end) in &mut outcomes {
                if let End::Snooze { delay_ms } = end {
                    *delay_ms = longer(*delay_ms) + apart_s * 1_000;
                }
            }
            Step::Settle { worker, outcomes }
        }
        Step::Put { queue, settings } => {
            let (retry, starvation_s) = (settings.retry.map(slower), settings.starvation_s.map(longer));
            Step::Put { queue, settings: QueueSettings { retry, starvation_s, ..settings } }
        }
        Step::LockOut { subject, process, for_s } => Step::LockOut { subject, process, for_s: for_s.map(longer) },
        Step::Pass { seconds } => Step::Pass { seconds: longer(seconds) },
        Step::Outage { seconds } => Step::Outage { seconds: longer(seconds) },
        other => other,
    }
}

/// When the whole state is compared.
#[derive(Clone, Copy, PartialEq)]
enum Look {
    AfterEveryStep,
    AtTheEnd,
}

impl<'a> Run<'a> {
    fn new(store: &'a Store, clock: &'a Clock, seed: u64) -> Self {
        let tenant = TenantId(1_000 + seed as i64);
        let (model, jobs, workers, done) = (Model::new(), Vec::new(), Vec::new(), Vec::new());
        let one_in = if store.is_postgres() { LOOKED_AT_ON_POSTGRES } else { LOOKED_AT_ON_SQLITE };
        let look = if seed.is_multiple_of(one_in) { Look::AfterEveryStep } else { Look::AtTheEnd };
        Self { store, clock, agreed: Instant::now(), seed, tenant, model, jobs, workers, done, look }
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
        self.leave_nothing().await;
    }

    async fn step(&mut self, step: Step) {
        let step = stretched(step, self.done.len());
        let expected = self.model.run(&step);
        self.done.push(step.clone());
        let answer = match self.run(step).await {
            Ok(answer) => answer,
            Err(error) => panic!("{}: {error:?}", self.told()),
        };
        assert_eq!(answer, expected, "{}", self.told());
        if self.look == Look::AfterEveryStep {
            self.compare_hashes().await;
        }
        self.model.pass_ms(STEP_MS);
        self.clock.advance_ms(STEP_MS);
    }

    /// The sequence so far, and how to run it again.
    fn told(&self) -> String {
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

    /// The service has beaten all the while, and does until time passes again.
    async fn serve(&self) {
        self.store.write(Served { since: None }).await.expect("the service beats");
    }

    /// Lets time pass to where the model's clock is. What the machine took since they agreed is part of it: the grid
    /// forgives what is lost between two such steps, not what a whole sequence takes.
    fn pass(&mut self, seconds: i64) {
        let millis = seconds * 1_000;
        let late = self.agreed.elapsed().as_millis() as i64;
        // Never back: ids sort by time.
        let moved = (millis - late).max(1);
        self.clock.advance_ms(moved);
        self.agreed += Duration::from_millis((millis - moved).unsigned_abs());
    }

    fn number(&mut self, id: JobId) -> usize {
        let known = self.jobs.iter().position(|job| *job == id);
        known.unwrap_or_else(|| {
            self.jobs.push(id);
            self.jobs.len() - 1
        })
    }

    async fn run(&mut self, step: Step) -> Result<Answer, StoreError> {
        let (store, tenant) = (self.store, self.tenant);
        Ok(match step {
            Step::Enqueue { jobs, key } => {
                let now = self.clock.now();
                let at = |(job, delay): (NewJob, Option<i64>)| NewJob { run_at: delay.map(|s| now.plus_s(s)), ..job };
                match store.enqueue(tenant, jobs.into_iter().map(at).collect(), key).await? {
                    EnqueueReply::KeyReused => Answer::KeyReused,
                    EnqueueReply::Accepted(jobs) => {
                        let told = jobs.iter().map(|job| (self.number(job.id), job.state, job.existing));
                        Answer::Accepted(told.collect())
                    }
                }
            }
            Step::Register { queues, kinds, affinities, lease_ms } => {
                let new = NewWorker { name: "w".into(), queues, kinds, affinities, lease_ms };
                self.workers.push(store.register_worker(tenant, new).await?);
                Answer::Registered(self.workers.len() - 1)
            }
            Step::Heartbeat { worker, affinity } => {
                match store.heartbeat(tenant, self.workers[worker], affinity).await? {
                    Heartbeat::Alive { cancel, drain, .. } => {
                        Answer::Alive { cancel: cancel.iter().map(|job| self.number(*job)).collect(), drain }
                    }
                    Heartbeat::Gone => Answer::Gone,
                    Heartbeat::NotFound => Answer::NotFound,
                }
            }
            Step::Claim { worker, max, affinity } => {
                match store.claim(tenant, self.workers[worker], max, affinity).await? {
                    Claimed::Jobs { jobs, .. } => {
                        let told = jobs.iter().map(|job| (self.number(job.id), job.epoch, job.attempt));
                        Answer::Claimed(told.collect())
                    }
                    Claimed::Gone => Answer::Gone,
                    Claimed::NotFound => Answer::NotFound,
                }
            }
            Step::Settle { worker, outcomes } => {
                let outcome = |(job, epoch, end)| Outcome { job: self.jobs[job], epoch, end };
                let outcomes = outcomes.into_iter().map(outcome).collect();
                match store.settle(tenant, self.workers[worker], outcomes).await? {
                    Settled::Results(statuses) => Answer::Settled(statuses),
                    Settled::StrayFacts(_) => panic!("no outcome brings facts"),
                    Settled::NoSuchWorker => Answer::NotFound,
                }
            }
            Step::Signal { job, epoch, state } => {
                let change = SignalChange { epoch, state, ..SignalChange::default() };
                Answer::Signaled(store.signal(tenant, self.jobs[job], change).await?)
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
                Retried::Made(made) => Answer::Retried { job: self.number(made.id), before: false },
                Retried::Before(job) => Answer::Retried { job: self.number(job), before: true },
                Retried::Otherwise(_) => panic!("no retry brings a payload"),
                Retried::NotEnded(state) => Answer::NotEnded(state),
                Retried::NotFound => Answer::NotFound,
            },
            Step::Promote => Answer::Promoted(store.promote_due().await?.jobs),
            Step::Sweep => Answer::Swept(store.sweep().await?),
            Step::Unpark => Answer::Unparked(store.unpark_forgotten().await?),
            Step::LetIn { subject, process } => {
                Answer::Found(store.let_in(tenant, subject, process, "me".into()).await?)
            }
            Step::Scan => Answer::Scanned(store.scan().await?.unparked),
            Step::Remove { worker } => Answer::Found(store.remove_worker(tenant, self.workers[worker]).await?),
            Step::Drain { worker } => Answer::Found(store.drain_worker(tenant, self.workers[worker]).await?),
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
                        assert!(store.beat().await?, "a minute's silence is an outage");
                        self.serve().await;
                    }
                    other => unreachable!("{other:?} was run above"),
                }
                Answer::Done
            }
        })
    }

    fn canceled(&mut self, canceled: Canceled) -> Answer {
        match canceled {
            Canceled::Canceled(job) => Answer::Canceled(self.number(job)),
            Canceled::AlreadyEnded(state) => Answer::AlreadyEnded(state),
            Canceled::AtWork => panic!("only one that waits was to be canceled"),
            Canceled::NotFound => Answer::NotFound,
        }
    }

    /// The whole state by its hash; where that differs, the dumps tell how.
    async fn compare_hashes(&mut self) {
        let theirs = self.dump_store().await;
        let ours = dump_model(&self.model);
        if theirs.iter().any(|(part, lines)| hash(lines) != hash(&ours[part])) {
            self.compare_dumps().await;
            panic!("the state differs by its hash alone\n{}", self.told());
        }
    }

    async fn compare_dumps(&mut self) {
        let (theirs, ours) = (self.dump_store().await, dump_model(&self.model));
        for (part, theirs) in theirs {
            assert_eq!(theirs, ours[&part], "{part}\n{}", self.told());
        }
        for (number, id) in self.jobs.iter().enumerate() {
            let history = self.store.history(self.tenant, *id).await.expect("reads").expect("every job has one");
            let theirs = history.into_iter().map(|item| {
                let worker = item.worker.and_then(|id| self.workers.iter().position(|known| *known == id));
                (item.event, item.attempt, worker, item.cause)
            });
            assert_eq!(
                theirs.collect::<Vec<_>>(),
                self.model.jobs[number].history,
                "history of {number}\n{}",
                self.told()
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
        let mut told = BTreeSet::new();
        let page = self.store.list_jobs(self.tenant, JobFilter::default(), None, 1_000).await.expect("lists");
        assert_eq!(page.jobs.len(), self.jobs.len(), "every job is listed once");
        for job in page.jobs {
            let number = self.number(job.id);
            let worker = job.worker.filter(|_| job.state.is_claimed());
            let worker = worker.and_then(|id| self.workers.iter().position(|known| *known == id));
            let parent = job.parent.map(|id| self.number(id));
            let retried_as = job.retried_as.map(|id| self.number(id));
            told.insert(format!(
                "{number} {} attempt {} epoch {} worker {worker:?} parked {:?} parent {parent:?} retried as \
                 {retried_as:?}",
                job.state, job.attempt, job.epoch.0, job.parked
            ));
        }
        dump.insert("jobs", told);
        let mut counts = BTreeSet::new();
        for queue in ["q", "r"] {
            // The second queue is told something by the second step.
            let counted = self.store.queue(self.tenant, &name(queue)).await.expect("reads");
            let counted = counted.map(|queue| queue.counts).unwrap_or_default();
            counts.insert(format!("{queue} {counted:?}"));
        }
        dump.insert("counts", counts);
        dump
    }

    fn numbered(&self, line: &str) -> String {
        let number = |word: &str| {
            let id = word.strip_prefix("job:").and_then(|id| id.parse().ok()).map(JobId::new);
            if let Some(job) = id.and_then(|id| self.jobs.iter().position(|job| *job == id)) {
                return job.to_string();
            }
            let id = word.strip_prefix("worker:").and_then(|id| id.parse().ok()).map(WorkerId::new);
            let worker = id.and_then(|id| self.workers.iter().position(|worker| *worker == id));
            worker.map_or_else(|| word.to_owned(), |worker| worker.to_string())
        };
        line.split(' ').map(number).collect::<Vec<_>>().join(" ")
    }

    /// What is live would disturb the next sequence: sweeps and promotions are for all tenants.
    async fn leave_nothing(&mut self) {
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
            assert_eq!(rows[part], BTreeSet::new(), "{part} left behind\n{}", self.told());
        }
        self.store.fold_counters().await.expect("folds");
        run_sql(self.store, "delete from deliveries").await.expect("empties");
    }
}

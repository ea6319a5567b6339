//! Producers and workers that never give up, and what must be true of every job they were told is safe.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::wire::{JobAccepted, JobRequest, JobView, QueueCounts};
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use domain::limits::DEFAULT_MAX_ATTEMPTS;
use serde_json::json;
use testkit::history::{self, At, Event, State};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{LOOK_EVERY, PATIENCE, Witness, insist, is_passing, job, until};

const QUEUE: &str = "load";
const PRODUCERS: usize = 4;
const WORKERS: usize = 3;
/// Long enough that some handler is always at work when the server is killed.
const WORK: Duration = Duration::from_millis(5);
/// Longer than a busy machine leaves a worker standing: no job is to change hands because of that.
const LEASE_S: i64 = 40;

pub(crate) struct Load {
    client: Client,
    witness: Witness,
    acknowledged: Arc<Mutex<HashSet<Uuid>>>,
    no_more: CancellationToken,
    stop: CancellationToken,
    producers: JoinSet<()>,
    workers: JoinSet<()>,
}

/// Figures of a load that went through.
pub(crate) struct Report {
    pub(crate) acknowledged: usize,
    pub(crate) runs: usize,
    pub(crate) applied: usize,
    /// Attempts beyond the first.
    pub(crate) burnt: i64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, runs, applied, burnt } = self;
        write!(f, "acknowledged={acknowledged} lost=0 runs={runs} applied={applied} burnt={burnt}")
    }
}

impl Load {
    pub(crate) fn start(client: Client) -> Self {
        let mut load = Self {
            witness: Witness::new(client.clone()),
            client,
            acknowledged: Arc::default(),
            no_more: CancellationToken::new(),
            stop: CancellationToken::new(),
            producers: JoinSet::new(),
            workers: JoinSet::new(),
        };
        for producer in 0..PRODUCERS {
            load.producers.spawn(produce(
                producer,
                load.client.clone(),
                load.acknowledged.clone(),
                load.no_more.clone(),
            ));
        }
        for number in 0..WORKERS {
            let worker = worker(number, &load.witness);
            let stop = load.stop.clone();
            load.workers.spawn(async move {
                worker.run(stop).await.expect("nobody refuses the worker");
            });
        }
        load
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.lock().expect("nobody panics with the log in hand").len()
    }

    /// Returns once this many more jobs are acknowledged and as many have been done.
    pub(crate) async fn more(&self, jobs: usize) {
        let (acknowledged, applied) = (self.acknowledged(), self.witness.applied());
        until(&format!("{jobs} more jobs go through"), async || {
            let through = self.acknowledged() >= acknowledged + jobs && self.witness.applied() >= applied + jobs;
            through.then_some(())
        })
        .await;
    }

    /// Lets the work run out, stops everyone in order, and asserts what was promised.
    pub(crate) async fn finish(mut self) -> Report {
        self.no_more.cancel();
        while let Some(ended) = self.producers.join_next().await {
            ended.expect("no producer panics");
        }
        let acknowledged = std::mem::take(&mut *self.acknowledged.lock().expect("nobody panics with the log in hand"));
        self.drained(acknowledged.len()).await;
        self.stop.cancel();
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("no worker panics");
        }
        let asked = self.witness.now();
        let jobs = self.all_jobs().await;
        self.judge(&acknowledged, &jobs, asked);
        self.check(&acknowledged, &jobs)
    }

    async fn drained(&self, acknowledged: usize) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let counts = insist(async || self.client.queue(QUEUE).await).await.counts;
            let QueueCounts { scheduled, queued, running, succeeded, failed, canceled } = counts;
            assert_eq!((failed, canceled), (0, 0), "no job may end otherwise than well: {counts:?}");
            if scheduled + queued + running == 0 {
                assert_eq!(succeeded as usize, acknowledged, "every acknowledged job was made, and once");
                return;
            }
            if Instant::now() > deadline {
                let jobs = self.all_jobs().await;
                let open: Vec<_> = jobs.values().filter(|job| job.state != "succeeded").collect();
                let known = |job: &JobView| self.witness.read(|log| log.claimed_by.contains_key(&(job.id, job.epoch)));
                let told = |job: &&JobView| format!("{} is {}, its worker knows: {}", job.id, job.state, known(job));
                panic!("not done within {PATIENCE:?}: {:#?}", open.iter().map(told).collect::<Vec<_>>());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn all_jobs(&self) -> HashMap<Uuid, JobView> {
        let mut filter = JobFilter { queue: Some(QUEUE.into()), limit: Some(500), ..JobFilter::default() };
        let mut jobs = HashMap::new();
        loop {
            let page = self.client.jobs(&filter).await.expect("the listing is there");
            jobs.extend(page.items.into_iter().map(|job| (job.id, job)));
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() {
                return jobs;
            }
        }
    }

    /// What producers, workers and this last look saw, held against each other.
    fn judge(&self, acknowledged: &HashSet<Uuid>, jobs: &HashMap<Uuid, JobView>, asked: At) {
        let mut log = self.witness.read(|log| log.history.clone());
        let max_attempts = DEFAULT_MAX_ATTEMPTS.into();
        log.extend(acknowledged.iter().map(|job| Event::Enqueued { job: *job, max_attempts }));
        log.extend(jobs.values().map(|job| seen(job, asked, self.witness.now())));
        let verdict = history::check(&log);
        println!("{verdict}");
        verdict.assert_kept();
    }

    fn check(&self, acknowledged: &HashSet<Uuid>, jobs: &HashMap<Uuid, JobView>) -> Report {
        let lost: Vec<_> = acknowledged.iter().filter(|id| !jobs.contains_key(id)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        assert_eq!(jobs.len(), acknowledged.len(), "a job was made that nobody was told of");
        self.witness.read(|log| {
            for (id, job) in jobs {
                assert_eq!(job.state, "succeeded", "{id}");
                let last = (*id, job.epoch);
                assert!(log.runs.contains_key(&last), "{id} succeeded in a claim that nobody ran: {}", job.epoch);
                let applied: Vec<_> = log.applied.iter().filter(|((applied, _), _)| applied == id).collect();
                match applied.as_slice() {
                    [(claim, 1)] => assert_eq!(**claim, last, "{id} was finished by another claim than it shows"),
                    // The commit held and the server was gone before it could say so.
                    [] => assert!(log.unanswered.contains(&last), "{id} succeeded and nobody had told so"),
                    more => panic!("{id} was finished more than once: {more:?}"),
                }
            }
            let twice: Vec<_> = log.runs.iter().filter(|(_, runs)| **runs > 1).collect();
            assert!(twice.is_empty(), "claims that were run twice: {twice:?}");
            let shared: Vec<_> = log.claimed_by.iter().filter(|(_, workers)| workers.len() > 1).collect();
            assert!(shared.is_empty(), "claims that two workers got: {shared:?}");
            assert!(log.overlaps.is_empty(), "jobs that two handlers ran at once: {:?}", log.overlaps);
            Report {
                acknowledged: acknowledged.len(),
                runs: log.runs.len(),
                applied: log.applied.len(),
                burnt: jobs.values().map(|job| job.attempt - 1).sum(),
            }
        })
    }
}

/// A look at a job, as the checker of histories wants it.
pub(crate) fn seen(job: &JobView, asked: At, at: At) -> Event {
    Event::Seen { job: job.id, state: State::named(&job.state), attempt: job.attempt, asked, at }
}

async fn produce(producer: usize, client: Client, acknowledged: Arc<Mutex<HashSet<Uuid>>>, no_more: CancellationToken) {
    for number in 0.. {
        if no_more.is_cancelled() {
            return;
        }
        let key = format!("{producer}-{number}");
        let request = job(QUEUE, json!({ "producer": producer, "number": number }));
        let accepted = enqueue(&client, &key, &request).await;
        let fresh = acknowledged.lock().expect("nobody panics with the log in hand").insert(accepted.id);
        assert!(fresh, "two keys gave one job: {}", accepted.id);
    }
}

/// Again and again with the same key, until there is an answer.
async fn enqueue(client: &Client, key: &str, request: &JobRequest) -> JobAccepted {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.enqueue_once(key, request).await {
            Ok(accepted) => return accepted,
            Err(error) if is_passing(&error) => assert!(Instant::now() < deadline, "no answer: {error}"),
            Err(error) => panic!("the job was refused: {error}"),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn worker(number: usize, witness: &Witness) -> Worker<Witness> {
    let handler_witness = witness.clone();
    let handle = move |job: JobContext| {
        let witness = handler_witness.clone();
        async move {
            let _running = witness.ran(&job);
            tokio::time::sleep(WORK).await;
            Ok::<_, HandlerError>(job.attempt())
        }
    };
    let builder = Worker::builder(witness.clone()).name(format!("load-{number}")).queue(QUEUE).lease_s(LEASE_S);
    builder.concurrency(4).handle_any(handle).build().expect("the worker is complete")
}

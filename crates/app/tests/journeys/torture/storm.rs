//! Work that goes on whatever happens: producers that never give up, workers that fail, snooze and die, jobs that are
//! called off, events that make jobs. Everyone writes down what they saw; at the end the log is judged.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::wire::{JobRequest, JobView, RawValue, RetrySettings, TriggerRequest};
use client::{Client, ClientError, HandlerError, JobContext, JobFilter, Worker};
use serde_json::{Value, json};
use testkit::history::{self, Answer, Event, Verdict};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{PATIENCE, RETRY_MS, Witness, insist, is_passing, job, seen, until, value};

const QUEUE: &str = "storm";
/// Where jobs go that events make.
const MADE: &str = "made";
const TOPIC: &str = "weather";
const PRODUCERS: usize = 3;
/// Enough that a rate is offered while some wait for an answer.
const PRODUCERS_AT_RATE: usize = 16;
const WORKERS: usize = 3;
const LEASE_S: i64 = 3;
/// Jobs that may be open while producers go on: a storm is about faults, not about a backlog.
const OPEN_AT_MOST: u64 = 300;

/// What becomes of a job, by its number.
#[derive(Clone, Copy)]
enum Fate {
    Finish,
    FailOnce,
    FailAlways,
    FailForGood,
    SnoozeOnce,
    CallOff,
}

impl Fate {
    fn of(number: u64) -> Self {
        match number % 20 {
            1 => Self::FailOnce,
            5 => Self::FailAlways,
            9 => Self::FailForGood,
            13 => Self::SnoozeOnce,
            17 => Self::CallOff,
            _ => Self::Finish,
        }
    }

    fn max_attempts(self) -> i64 {
        match self {
            Self::FailAlways => 2,
            // Kills burn attempts, and no job may fail for that.
            _ => 20,
        }
    }
}

pub(super) struct Storm {
    nodes: Vec<Client>,
    witness: Witness,
    accepted: Arc<AtomicU64>,
    no_more: CancellationToken,
    producers: JoinSet<()>,
    workers: Vec<(CancellationToken, JoinSet<()>)>,
}

impl Storm {
    /// On any number of nodes of one database.
    pub(super) async fn start(nodes: Vec<Client>) -> Self {
        Self::of(nodes, Pace::AsDone { batch: 1 }).await
    }

    /// With producers that put in so many jobs at once.
    pub(super) async fn with_batches(nodes: Vec<Client>, batch: u64) -> Self {
        Self::of(nodes, Pace::AsDone { batch }).await
    }

    /// With so many jobs offered each second, whatever becomes of them.
    pub(super) async fn at_rate(nodes: Vec<Client>, per_s: u32) -> Self {
        Self::of(nodes, Pace::Every(Duration::from_secs(1) * PRODUCERS_AT_RATE as u32 / per_s)).await
    }

    async fn of(nodes: Vec<Client>, pace: Pace) -> Self {
        let witness = Witness::new(nodes[0].clone());
        let trigger = TriggerRequest {
            name: "storm".into(),
            source: "pubsub".into(),
            filter: Some(raw(&json!({ "topic": TOPIC }))),
            target: raw(&json!({ "job": { "queue": MADE, "kind": "made" } })),
            mode: None,
            retry: None,
            enabled: None,
        };
        insist(async || nodes[0].create_trigger(&trigger).await).await;
        let (accepted, no_more) = (Arc::default(), CancellationToken::new());
        let (producers, workers) = (JoinSet::new(), Vec::new());
        let mut storm = Self { nodes, witness, accepted, no_more, producers, workers };
        for number in 0..pace.producers() {
            let producer = Producer {
                number: number as u64,
                pace,
                client: storm.nodes[number % storm.nodes.len()].clone(),
                witness: storm.witness.clone(),
                accepted: storm.accepted.clone(),
                no_more: storm.no_more.clone(),
            };
            storm.producers.spawn(producer.run());
        }
        for number in 0..WORKERS {
            storm.add_worker(number);
        }
        storm
    }

    fn add_worker(&mut self, number: usize) {
        let witness = self.witness.beside(self.nodes[number % self.nodes.len()].clone());
        let builder = Worker::builder(witness).name(format!("storm-{number}")).queues([QUEUE, MADE]).lease_s(LEASE_S);
        let worker = builder.concurrency(8).handle_any(handle).build().expect("the worker is complete");
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let until = stop.clone();
        task.spawn(async move {
            let _statistics = worker.run(until).await.expect("nobody refuses the worker");
        });
        self.workers.push((stop, task));
    }

    /// A worker is gone from one moment to the next, with all it held, and another comes.
    pub(super) async fn lose_a_worker(&mut self) {
        let (_, mut task) = self.workers.remove(0);
        task.abort_all();
        while task.join_next().await.is_some() {}
        self.add_worker(self.workers.len());
    }

    /// Outcomes that the server has applied so far.
    pub(super) fn done(&self) -> u64 {
        self.witness.applied() as u64
    }

    /// Returns once so many more jobs have been done.
    pub(super) async fn more(&self, jobs: u64) {
        let wanted = self.done() + jobs;
        until(&format!("{jobs} more jobs are done"), async || (self.done() >= wanted).then_some(())).await;
    }

    /// Jobs that the server has taken on so far.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Jobs that have not ended, as the server counts them.
    pub(super) async fn open(&self) -> i64 {
        open(&self.nodes[0], QUEUE).await
    }

    /// What was asked so far.
    pub(super) fn operations(&self) -> usize {
        self.witness.read(|log| log.history.len())
    }

    /// Lets everything run out and judges what was seen.
    pub(super) async fn judge(mut self) -> Verdict {
        self.no_more.cancel();
        while let Some(ended) = self.producers.join_next().await {
            ended.expect("no producer panics");
        }
        let client = self.nodes[0].clone();
        let deadline = Instant::now() + 2 * PATIENCE;
        loop {
            let open = open(&client, QUEUE).await + open(&client, MADE).await;
            if open == 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{open} jobs are still open: {:#?}", self.unfinished().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.events_have_arrived(deadline).await;
        for (stop, _) in &self.workers {
            stop.cancel();
        }
        for (_, mut task) in std::mem::take(&mut self.workers) {
            while let Some(ended) = task.join_next().await {
                ended.expect("no worker panics");
            }
        }
        self.look(QUEUE).await;
        self.look(MADE).await;
        let verdict = self.witness.read(|log| history::check(&log.history));
        verdict.assert_kept();
        verdict
    }

    /// What a dispatcher took and could not tell of comes back when its time is over; after that, what is missing is lost.
    /// Each event is waited for by its id: one whose answer was lost makes a job too, and so a count would come out too soon.
    async fn events_have_arrived(&self, deadline: Instant) {
        let published = |event: &Event| match event {
            Event::Published { event } => Some(*event),
            _ => None,
        };
        let published: Vec<Uuid> = self.witness.read(|log| log.history.iter().filter_map(published).collect());
        while Instant::now() < deadline {
            let open = open(&self.nodes[0], MADE).await;
            let made: HashSet<Uuid> = jobs(&self.nodes[0], MADE).await.iter().map(event_of).collect();
            if open == 0 && published.iter().all(|event| made.contains(event)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn unfinished(&self) -> Vec<String> {
        let ended = ["succeeded", "failed", "canceled"];
        let jobs = jobs(&self.nodes[0], QUEUE).await.into_iter().filter(|job| !ended.contains(&job.state.as_str()));
        jobs.take(5).map(|job| format!("{job:?}")).collect()
    }

    async fn look(&self, queue: &str) {
        let asked = self.witness.now();
        for job in jobs(&self.nodes[0], queue).await {
            self.witness.tell(seen(&job, asked, self.witness.now()));
            if queue == MADE {
                self.witness.tell(Event::Made { event: event_of(&job), job: job.id });
            }
        }
    }
}

/// The event that made the job.
fn event_of(job: &JobView) -> Uuid {
    let event = value(Some(&job.payload))["event"]["id"].as_str().and_then(|id| id.parse().ok());
    event.expect("it tells its event")
}

async fn open(client: &Client, queue: &str) -> i64 {
    match client.queue(queue).await {
        Ok(view) => view.counts.scheduled + view.counts.queued + view.counts.running,
        // The first event may not have come yet.
        Err(error) if error.status() == Some(404) => 0,
        Err(error) => {
            assert!(is_passing(&error), "{error}");
            1
        }
    }
}

async fn jobs(client: &Client, queue: &str) -> Vec<JobView> {
    let mut filter = JobFilter { queue: Some(queue.into()), limit: Some(500), ..JobFilter::default() };
    let mut jobs = Vec::new();
    loop {
        let page = insist(async || client.jobs(&filter).await).await;
        jobs.extend(page.items);
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            return jobs;
        }
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("JSON is JSON")
}

/// Does to each job what is its fate.
async fn handle(job: JobContext) -> Result<i64, HandlerError> {
    let payload = value(Some(&job.job().payload));
    tokio::time::sleep(Duration::from_millis(3)).await;
    let Some(number) = payload["number"].as_u64() else { return Ok(0) };
    let first = job.attempt() == 1;
    match Fate::of(number) {
        Fate::FailOnce if first => Err(HandlerError::retryable("storm", "the first attempt fails")),
        Fate::FailAlways => Err(HandlerError::retryable("storm", "every attempt fails")),
        Fate::FailForGood => Err(HandlerError::permanent("storm", "it can never succeed")),
        // Only once: an epoch is counted for each claim.
        Fate::SnoozeOnce if job.job().epoch == 1 => Err(HandlerError::snooze(Duration::from_secs(1))),
        _ => Ok(job.attempt()),
    }
}

/// When the next job is put in.
#[derive(Clone, Copy)]
enum Pace {
    /// When few are open, so many in one request. One alone goes with a key, so that it may be sent again.
    AsDone { batch: u64 },
    /// One for each producer whenever this has passed.
    Every(Duration),
}

impl Pace {
    fn producers(self) -> usize {
        match self {
            Self::AsDone { .. } => PRODUCERS,
            Self::Every(_) => PRODUCERS_AT_RATE,
        }
    }
}

struct Producer {
    number: u64,
    pace: Pace,
    client: Client,
    witness: Witness,
    accepted: Arc<AtomicU64>,
    no_more: CancellationToken,
}

impl Producer {
    async fn run(self) {
        let mut turns = match self.pace {
            Pace::AsDone { .. } => None,
            Pace::Every(wait) => Some(tokio::time::interval(wait)),
        };
        for number in (self.number..).step_by(self.pace.producers()) {
            match &mut turns {
                None => self.room().await,
                Some(turns) => {
                    turns.tick().await;
                }
            }
            if self.no_more.is_cancelled() {
                return;
            }
            if let Pace::AsDone { batch: batch @ 2.. } = self.pace {
                self.enqueue_many(number, batch).await;
                self.publish(number).await;
                continue;
            }
            if number % 25 == 24 {
                self.publish(number).await;
                continue;
            }
            let fate = Fate::of(number);
            let id = self.enqueue(number, fate).await;
            if matches!(fate, Fate::CallOff) {
                self.call_off(id).await;
            }
        }
    }

    /// Waits while enough is open. What a program of its own has done, or who never heard the answer, was not witnessed:
    /// when it looks like too much, the server is asked.
    async fn room(&self) {
        while !self.no_more.is_cancelled()
            && self.accepted.load(Ordering::Relaxed) > self.witness.applied() as u64 * 10 / 8 + OPEN_AT_MOST
            && open(&self.client, QUEUE).await > OPEN_AT_MOST as i64
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn enqueue(&self, number: u64, fate: Fate) -> Uuid {
        let (key, request) = (format!("storm-{number}"), request(number));
        let accepted = persist(|| self.client.enqueue_once(&key, &request)).await;
        self.witness.tell(Event::Enqueued { job: accepted.id, max_attempts: fate.max_attempts() });
        self.accepted.fetch_add(1, Ordering::Relaxed);
        accepted.id
    }

    async fn enqueue_many(&self, round: u64, batch: u64) {
        let numbers = || round * batch..(round + 1) * batch;
        // Again until it is answered, as on a machine that is too busy for a connection to PostgreSQL.
        let ids = persist(|| self.client.enqueue_batch(numbers().map(request).collect())).await;
        for (job, number) in ids.into_iter().zip(numbers()) {
            self.witness.tell(Event::Enqueued { job, max_attempts: Fate::of(number).max_attempts() });
        }
        self.accepted.fetch_add(batch, Ordering::Relaxed);
    }

    async fn call_off(&self, job: Uuid) {
        let asked = self.witness.now();
        let answer = match self.client.cancel(job).await {
            Ok(_) => Answer::Applied,
            Err(error) if is_passing(&error) || matches!(error, ClientError::Decode(_)) => Answer::None,
            Err(_) => Answer::Refused,
        };
        self.witness.tell(Event::Canceled { job, answer, asked, at: self.witness.now() });
    }

    /// Again until it is answered: an event whose answer was lost may make a job of its own.
    async fn publish(&self, number: u64) {
        let data = json!({ "event": number });
        let accepted = persist(|| self.client.publish(TOPIC, &data)).await;
        self.witness.tell(Event::Published { event: accepted.event_id });
    }
}

/// The job of this number, whose fate it tells.
fn request(number: u64) -> JobRequest {
    let wait_s = Some(RETRY_MS / 1_000);
    let retry = RetrySettings { initial_s: wait_s, maximum_s: wait_s, exponent: Some(1.0), jitter: Some(0.0) };
    let max_attempts = Some(Fate::of(number).max_attempts());
    JobRequest { max_attempts, retry: Some(retry), ..job(QUEUE, json!({ "number": number })) }
}

/// The same call until it is answered.
async fn persist<T, F: Future<Output = Result<T, ClientError>>>(mut call: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(is_passing(&error) && Instant::now() < deadline, "no answer: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

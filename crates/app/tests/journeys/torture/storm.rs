//! A mixed load: producers that retry, workers that fail, snooze and are killed, canceled jobs, and events that create
//! jobs. Every client records what it observes, and at the end the history checker decides.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::wire::{JobRequest, JobView, RawValue, RetrySettings, TriggerRequest};
use client::{Client, ClientError, HandlerError, JobContext, JobFilter, Worker};
use serde_json::{Value, json};
use testkit::history::{self, Event, Response, Verdict};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::{
    RETRY_MS, Recorder, TIMEOUT, eventually, is_transient, job, observed, retry_while_unavailable, try_eventually,
    value,
};

const QUEUE: &str = "storm";
/// The queue of jobs that events create.
const CREATED: &str = "made";
const TOPIC: &str = "weather";
const PRODUCERS: usize = 3;
/// Enough to offer a fixed rate while some of them wait for a response.
const PRODUCERS_AT_RATE: usize = 16;
const WORKERS: usize = 3;
const LEASE_S: i64 = 3;
/// Open jobs above which producers pause, so that the storm tests faults and not a backlog.
const MAX_OPEN: u64 = 300;

/// The end of a job, which its number determines.
#[derive(Clone, Copy)]
enum Fate {
    Finish,
    FailOnce,
    FailAlways,
    FailForGood,
    SnoozeOnce,
    Cancel,
}

impl Fate {
    fn of(number: u64) -> Self {
        match number % 20 {
            1 => Self::FailOnce,
            5 => Self::FailAlways,
            9 => Self::FailForGood,
            13 => Self::SnoozeOnce,
            17 => Self::Cancel,
            _ => Self::Finish,
        }
    }

    fn max_attempts(self) -> i64 {
        match self {
            Self::FailAlways => 2,
            // Kills use up attempts, and no job may fail because of that.
            _ => 20,
        }
    }
}

pub(super) struct Storm {
    nodes: Vec<Client>,
    recorder: Recorder,
    accepted: Arc<AtomicU64>,
    stop_producers: CancellationToken,
    producers: JoinSet<()>,
    workers: Vec<(CancellationToken, JoinSet<()>)>,
}

impl Storm {
    /// Starts a storm on the nodes of one database.
    pub(super) async fn start(nodes: Vec<Client>) -> Self {
        Self::of(nodes, Pace::ByBacklog { batch: 1 }).await
    }

    /// Starts a storm with producers that enqueue this many jobs per request.
    pub(super) async fn with_batches(nodes: Vec<Client>, batch: u64) -> Self {
        Self::of(nodes, Pace::ByBacklog { batch }).await
    }

    /// Starts a storm that offers this many jobs per second, regardless of the backlog.
    pub(super) async fn at_rate(nodes: Vec<Client>, per_s: u32) -> Self {
        Self::of(nodes, Pace::Every(Duration::from_secs(1) * PRODUCERS_AT_RATE as u32 / per_s)).await
    }

    async fn of(nodes: Vec<Client>, pace: Pace) -> Self {
        let recorder = Recorder::new(nodes[0].clone());
        let trigger = TriggerRequest {
            name: "storm".into(),
            source: "pubsub".into(),
            filter: Some(raw(&json!({ "topic": TOPIC }))),
            target: raw(&json!({ "job": { "queue": CREATED, "kind": "made" } })),
            mode: None,
            retry: None,
            enabled: None,
            handles: None,
        };
        retry_while_unavailable(|| nodes[0].create_trigger(&trigger)).await;
        let (accepted, stop_producers) = (Arc::default(), CancellationToken::new());
        let (producers, workers) = (JoinSet::new(), Vec::new());
        let mut storm = Self { nodes, recorder, accepted, stop_producers, producers, workers };
        for number in 0..pace.producers() {
            let producer = Producer {
                number: number as u64,
                pace,
                client: storm.nodes[number % storm.nodes.len()].clone(),
                recorder: storm.recorder.clone(),
                accepted: storm.accepted.clone(),
                stop: storm.stop_producers.clone(),
            };
            storm.producers.spawn(producer.run());
        }
        for number in 0..WORKERS {
            storm.add_worker(number);
        }
        storm
    }

    fn add_worker(&mut self, number: usize) {
        let recorder = self.recorder.with_client(self.nodes[number % self.nodes.len()].clone());
        let builder =
            Worker::builder(recorder).name(format!("storm-{number}")).queues([QUEUE, CREATED]).lease_s(LEASE_S);
        let worker = builder.concurrency(8).handle_any(handle).build().expect("the worker is complete");
        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let stopped = stop.clone();
        task.spawn(async move {
            let _statistics = worker.run(stopped).await.expect("the server accepts the worker");
        });
        self.workers.push((stop, task));
    }

    /// Aborts a worker with all its claims and starts another one.
    pub(super) async fn replace_a_worker(&mut self) {
        let (_, mut task) = self.workers.remove(0);
        task.abort_all();
        while task.join_next().await.is_some() {}
        self.add_worker(self.workers.len());
    }

    /// Number of outcomes that the server has applied so far.
    pub(super) fn completed(&self) -> u64 {
        self.recorder.applied() as u64
    }

    /// Waits until this many more jobs are completed.
    pub(super) async fn wait_for_jobs(&self, jobs: u64) {
        let wanted = self.completed() + jobs;
        eventually(&format!("{jobs} more jobs complete"), async || (self.completed() >= wanted).then_some(())).await;
    }

    /// Number of jobs that the server has accepted so far.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Number of jobs that have not ended, as the server counts them.
    pub(super) async fn open(&self) -> i64 {
        open(&self.nodes[0], QUEUE).await
    }

    /// Number of recorded events.
    pub(super) fn operations(&self) -> usize {
        self.recorder.read(|log| log.history.len())
    }

    /// Stops the producers, waits until every job has ended, and checks the history.
    pub(super) async fn finish(mut self) -> Verdict {
        self.stop_producers.cancel();
        while let Some(ended) = self.producers.join_next().await {
            ended.expect("no producer panics");
        }
        let client = self.nodes[0].clone();
        let deadline = Instant::now() + 2 * TIMEOUT;
        let drained = try_eventually(2 * TIMEOUT, async || {
            let open = open(&client, QUEUE).await + open(&client, CREATED).await;
            (open == 0).then_some(())
        });
        assert!(drained.await.is_some(), "jobs are still open: {:#?}", self.unfinished().await);
        self.wait_for_created_jobs(deadline.saturating_duration_since(Instant::now())).await;
        for (stop, _) in &self.workers {
            stop.cancel();
        }
        for (_, mut task) in std::mem::take(&mut self.workers) {
            while let Some(ended) = task.join_next().await {
                ended.expect("no worker panics");
            }
        }
        self.observe(QUEUE).await;
        self.observe(CREATED).await;
        let verdict = self.recorder.read(|log| history::check(&log.history));
        verdict.assert_no_violations();
        verdict
    }

    /// Waits until every published event has created a job, or until the timeout: the checker reports missing jobs as
    /// lost. An outbox row that a killed dispatcher claimed is dispatched again when its lease expires. Events are
    /// awaited by id and not counted, because a publish without a response may have created a job as well.
    async fn wait_for_created_jobs(&self, timeout: Duration) {
        let published = |event: &Event| match event {
            Event::Published { event } => Some(*event),
            _ => None,
        };
        let published: Vec<Uuid> = self.recorder.read(|log| log.history.iter().filter_map(published).collect());
        let _all_created = try_eventually(timeout, async || {
            if open(&self.nodes[0], CREATED).await > 0 {
                return None;
            }
            let created: HashSet<Uuid> = jobs(&self.nodes[0], CREATED).await.iter().map(event_of).collect();
            published.iter().all(|event| created.contains(event)).then_some(())
        })
        .await;
    }

    async fn unfinished(&self) -> Vec<String> {
        let ended = ["succeeded", "failed", "canceled"];
        let jobs = jobs(&self.nodes[0], QUEUE).await.into_iter().filter(|job| !ended.contains(&job.state.as_str()));
        jobs.take(5).map(|job| format!("{job:?}")).collect()
    }

    async fn observe(&self, queue: &str) {
        let asked = self.recorder.now();
        for job in jobs(&self.nodes[0], queue).await {
            self.recorder.record(observed(&job, asked, self.recorder.now()));
            if queue == CREATED {
                self.recorder.record(Event::JobCreated { event: event_of(&job), job: job.id });
            }
        }
    }
}

/// Returns the event that created the job.
fn event_of(job: &JobView) -> Uuid {
    let event = value(Some(&job.payload))["event"]["id"].as_str().and_then(|id| id.parse().ok());
    event.expect("the payload contains the event")
}

async fn open(client: &Client, queue: &str) -> i64 {
    match client.queue(queue).await {
        Ok(view) => view.counts.waiting + view.counts.scheduled + view.counts.queued + view.counts.running,
        // The first event may not have created the queue yet.
        Err(error) if error.status() == Some(404) => 0,
        Err(error) => {
            assert!(is_transient(&error), "{error}");
            1
        }
    }
}

async fn jobs(client: &Client, queue: &str) -> Vec<JobView> {
    let mut filter = JobFilter { queue: Some(queue.into()), limit: Some(500), ..JobFilter::default() };
    let mut jobs = Vec::new();
    loop {
        let page = retry_while_unavailable(|| client.jobs(&filter)).await;
        jobs.extend(page.items);
        filter.cursor = page.next_cursor;
        if filter.cursor.is_none() {
            return jobs;
        }
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("a value is JSON")
}

/// Ends each job with its fate.
async fn handle(job: JobContext) -> Result<i64, HandlerError> {
    let payload = value(Some(&job.job().payload));
    // Simulates work.
    tokio::time::sleep(Duration::from_millis(3)).await;
    let Some(number) = payload["number"].as_u64() else { return Ok(0) };
    let first = job.attempt() == 1;
    match Fate::of(number) {
        Fate::FailOnce if first => Err(HandlerError::retryable("storm", "the first attempt fails")),
        Fate::FailAlways => Err(HandlerError::retryable("storm", "every attempt fails")),
        Fate::FailForGood => Err(HandlerError::permanent("storm", "it can never succeed")),
        // Only once: each claim increments the epoch.
        Fate::SnoozeOnce if job.job().epoch == 1 => Err(HandlerError::snooze(Duration::from_secs(1))),
        _ => Ok(job.attempt()),
    }
}

/// When producers enqueue.
#[derive(Clone, Copy)]
enum Pace {
    /// While few jobs are open, this many per request. A single job has an idempotency key, so that it can be sent
    /// again.
    ByBacklog { batch: u64 },
    /// One job per producer in each interval.
    Every(Duration),
}

impl Pace {
    fn producers(self) -> usize {
        match self {
            Self::ByBacklog { .. } => PRODUCERS,
            Self::Every(_) => PRODUCERS_AT_RATE,
        }
    }
}

struct Producer {
    number: u64,
    pace: Pace,
    client: Client,
    recorder: Recorder,
    accepted: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Producer {
    async fn run(self) {
        let mut ticks = match self.pace {
            Pace::ByBacklog { .. } => None,
            Pace::Every(interval) => Some(tokio::time::interval(interval)),
        };
        for number in (self.number..).step_by(self.pace.producers()) {
            match &mut ticks {
                None => self.wait_while_backlogged().await,
                Some(ticks) => {
                    ticks.tick().await;
                }
            }
            if self.stop.is_cancelled() {
                return;
            }
            if let Pace::ByBacklog { batch: batch @ 2.. } = self.pace {
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
            if matches!(fate, Fate::Cancel) {
                self.cancel(id).await;
            }
        }
    }

    /// Waits while many jobs are open. Jobs completed by other processes or without a response are not recorded, so the
    /// server is asked when the recorded backlog is large.
    async fn wait_while_backlogged(&self) {
        while !self.stop.is_cancelled()
            && self.accepted.load(Ordering::Relaxed) > self.recorder.applied() as u64 * 10 / 8 + MAX_OPEN
            && open(&self.client, QUEUE).await > MAX_OPEN as i64
        {
            // Backpressure of a producer, without a deadline: it lasts as long as the storm.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn enqueue(&self, number: u64, fate: Fate) -> Uuid {
        let (key, request) = (format!("storm-{number}"), request(number));
        let accepted = retry_while_unavailable(|| self.client.enqueue_idempotent(&key, &request)).await;
        self.recorder.record(Event::Enqueued { job: accepted.id, max_attempts: fate.max_attempts() });
        self.accepted.fetch_add(1, Ordering::Relaxed);
        accepted.id
    }

    async fn enqueue_many(&self, round: u64, batch: u64) {
        let numbers = || round * batch..(round + 1) * batch;
        // Repeated on any transient error, for example when a busy machine has no connection to PostgreSQL.
        let ids = retry_while_unavailable(|| self.client.enqueue_batch(numbers().map(request).collect())).await;
        for (job, number) in ids.into_iter().zip(numbers()) {
            self.recorder.record(Event::Enqueued { job, max_attempts: Fate::of(number).max_attempts() });
        }
        self.accepted.fetch_add(batch, Ordering::Relaxed);
    }

    async fn cancel(&self, job: Uuid) {
        let asked = self.recorder.now();
        let answer = match self.client.cancel(job).await {
            Ok(_) => Response::Applied,
            Err(error) if is_transient(&error) || matches!(error, ClientError::Decode(_)) => Response::Unknown,
            Err(_) => Response::Refused,
        };
        self.recorder.record(Event::Canceled { job, answer, asked, at: self.recorder.now() });
    }

    /// Repeated until the server responds. An event whose response was lost may create an additional job.
    async fn publish(&self, number: u64) {
        let data = json!({ "event": number });
        let accepted = retry_while_unavailable(|| self.client.publish(TOPIC, &data)).await;
        self.recorder.record(Event::Published { event: accepted.event_id });
    }
}

/// Builds the job with this number, which its payload contains.
fn request(number: u64) -> JobRequest {
    let wait_s = Some(RETRY_MS / 1_000);
    let retry = RetrySettings { initial_s: wait_s, maximum_s: wait_s, exponent: Some(1.0), jitter: Some(0.0) };
    let max_attempts = Some(Fate::of(number).max_attempts());
    JobRequest { max_attempts, retry: Some(retry), ..job(QUEUE, json!({ "number": number })) }
}

//! Producers that retry until they get a response, workers, and the checks of every acknowledged job.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::wire::{JobAccepted, JobRequest, JobView, QueueCounts};
use client::{Client, HandlerError, JobContext, JobFilter, Worker};
use domain::limits::DEFAULT_MAX_ATTEMPTS;
use serde_json::json;
use testkit::history::{self, Event, Millis, State};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Recorder, TIMEOUT, eventually, job, retry_while_unavailable, try_eventually};

const QUEUE: &str = "load";
const PRODUCERS: usize = 4;
const WORKERS: usize = 3;
/// Duration of a handler. Long enough that some handler is always running when the server is killed.
const HANDLER_DURATION: Duration = Duration::from_millis(5);
/// Longer than a busy machine suspends a worker, so that no job changes its worker because of a pause.
const LEASE_S: i64 = 40;

pub(crate) struct Load {
    client: Client,
    recorder: Recorder,
    acknowledged: Arc<Mutex<HashSet<Uuid>>>,
    stop_producers: CancellationToken,
    stop_workers: CancellationToken,
    producers: JoinSet<()>,
    workers: JoinSet<()>,
}

/// Figures of a completed load.
pub(crate) struct Report {
    pub(crate) acknowledged: usize,
    pub(crate) runs: usize,
    pub(crate) applied: usize,
    /// Attempts beyond the first.
    pub(crate) extra_attempts: i64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { acknowledged, runs, applied, extra_attempts } = self;
        write!(f, "acknowledged={acknowledged} lost=0 runs={runs} applied={applied} extra_attempts={extra_attempts}")
    }
}

impl Load {
    pub(crate) fn start(client: Client) -> Self {
        let mut load = Self {
            recorder: Recorder::new(client.clone()),
            client,
            acknowledged: Arc::default(),
            stop_producers: CancellationToken::new(),
            stop_workers: CancellationToken::new(),
            producers: JoinSet::new(),
            workers: JoinSet::new(),
        };
        for producer in 0..PRODUCERS {
            load.producers.spawn(produce(
                producer,
                load.client.clone(),
                load.acknowledged.clone(),
                load.stop_producers.clone(),
            ));
        }
        for number in 0..WORKERS {
            let worker = worker(number, &load.recorder);
            let stop = load.stop_workers.clone();
            load.workers.spawn(async move {
                worker.run(stop).await.expect("the server accepts the worker");
            });
        }
        load
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.lock().expect("lock poisoned").len()
    }

    /// Waits until `jobs` more jobs are acknowledged and as many have been completed.
    pub(crate) async fn wait_for_jobs(&self, jobs: usize) {
        let (acknowledged, applied) = (self.acknowledged(), self.recorder.applied());
        eventually(&format!("{jobs} more jobs complete"), async || {
            let complete = self.acknowledged() >= acknowledged + jobs && self.recorder.applied() >= applied + jobs;
            complete.then_some(())
        })
        .await;
    }

    /// Stops the producers, waits until every job has ended, stops the workers, and asserts the guarantees.
    pub(crate) async fn finish(mut self) -> Report {
        self.stop_producers.cancel();
        while let Some(ended) = self.producers.join_next().await {
            ended.expect("no producer panics");
        }
        let acknowledged = std::mem::take(&mut *self.acknowledged.lock().expect("lock poisoned"));
        self.wait_until_drained(acknowledged.len()).await;
        self.stop_workers.cancel();
        while let Some(ended) = self.workers.join_next().await {
            ended.expect("no worker panics");
        }
        let asked = self.recorder.now();
        let jobs = self.all_jobs().await;
        self.check_history(&acknowledged, &jobs, asked);
        self.check_jobs(&acknowledged, &jobs)
    }

    async fn wait_until_drained(&self, acknowledged: usize) {
        let drained = try_eventually(TIMEOUT, async || {
            let counts = retry_while_unavailable(|| self.client.queue(QUEUE)).await.counts;
            let QueueCounts { waiting, scheduled, queued, running, succeeded, failed, canceled } = counts;
            assert_eq!((failed, canceled), (0, 0), "every job must succeed: {counts:?}");
            (waiting + scheduled + queued + running == 0).then_some(succeeded)
        });
        if let Some(succeeded) = drained.await {
            assert_eq!(succeeded as usize, acknowledged, "every acknowledged job exists exactly once");
            return;
        }
        let jobs = self.all_jobs().await;
        let open: Vec<_> = jobs.values().filter(|job| job.state != "succeeded").collect();
        let has_worker = |job: &JobView| self.recorder.read(|log| log.claimed_by.contains_key(&(job.id, job.epoch)));
        let describe =
            |job: &&JobView| format!("{} is {}, its worker received the claim: {}", job.id, job.state, has_worker(job));
        panic!("jobs are open after {TIMEOUT:?}: {:#?}", open.iter().map(describe).collect::<Vec<_>>());
    }

    async fn all_jobs(&self) -> HashMap<Uuid, JobView> {
        let mut filter = JobFilter { queue: Some(QUEUE.into()), limit: Some(500), ..JobFilter::default() };
        let mut jobs = HashMap::new();
        loop {
            let page = self.client.jobs(&filter).await.expect("jobs are listed");
            jobs.extend(page.items.into_iter().map(|job| (job.id, job)));
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() {
                return jobs;
            }
        }
    }

    /// Checks the recorded history together with the final state of every job.
    fn check_history(&self, acknowledged: &HashSet<Uuid>, jobs: &HashMap<Uuid, JobView>, asked: Millis) {
        let mut log = self.recorder.read(|log| log.history.clone());
        let max_attempts = DEFAULT_MAX_ATTEMPTS.into();
        log.extend(acknowledged.iter().map(|job| Event::Enqueued { job: *job, max_attempts }));
        log.extend(jobs.values().map(|job| observed(job, asked, self.recorder.now())));
        let verdict = history::check(&log);
        println!("{verdict}");
        verdict.assert_no_violations();
    }

    fn check_jobs(&self, acknowledged: &HashSet<Uuid>, jobs: &HashMap<Uuid, JobView>) -> Report {
        let lost: Vec<_> = acknowledged.iter().filter(|id| !jobs.contains_key(id)).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        assert_eq!(jobs.len(), acknowledged.len(), "no job exists that was not acknowledged");
        self.recorder.read(|log| {
            for (id, job) in jobs {
                assert_eq!(job.state, "succeeded", "{id}");
                let last = (*id, job.epoch);
                assert!(log.runs.contains_key(&last), "{id} succeeded in a claim that no handler ran: {}", job.epoch);
                let applied: Vec<_> = log.applied.iter().filter(|((applied, _), _)| applied == id).collect();
                match applied.as_slice() {
                    [(claim, 1)] => assert_eq!(**claim, last, "{id} was completed by another claim than the API shows"),
                    // The commit succeeded and the server was killed before it responded.
                    [] => assert!(log.unanswered.contains(&last), "{id} succeeded without a success from a worker"),
                    more => panic!("{id} was completed more than once: {more:?}"),
                }
            }
            let twice: Vec<_> = log.runs.iter().filter(|(_, runs)| **runs > 1).collect();
            assert!(twice.is_empty(), "claims that ran twice: {twice:?}");
            let shared: Vec<_> = log.claimed_by.iter().filter(|(_, workers)| workers.len() > 1).collect();
            assert!(shared.is_empty(), "claims that two workers received: {shared:?}");
            assert!(log.overlaps.is_empty(), "jobs that two handlers ran at the same time: {:?}", log.overlaps);
            Report {
                acknowledged: acknowledged.len(),
                runs: log.runs.len(),
                applied: log.applied.len(),
                extra_attempts: jobs.values().map(|job| job.attempt - 1).sum(),
            }
        })
    }
}

/// Converts a job to an observation of the history checker.
pub(crate) fn observed(job: &JobView, asked: Millis, at: Millis) -> Event {
    Event::Observed { job: job.id, state: State::parse(&job.state), attempt: job.attempt, asked, at }
}

async fn produce(producer: usize, client: Client, acknowledged: Arc<Mutex<HashSet<Uuid>>>, stop: CancellationToken) {
    for number in 0.. {
        if stop.is_cancelled() {
            return;
        }
        let key = format!("{producer}-{number}");
        let request = job(QUEUE, json!({ "producer": producer, "number": number }));
        let accepted = enqueue(&client, &key, &request).await;
        let is_new = acknowledged.lock().expect("lock poisoned").insert(accepted.id);
        assert!(is_new, "two idempotency keys created one job: {}", accepted.id);
    }
}

/// Repeats the request with the same idempotency key until the server responds.
async fn enqueue(client: &Client, key: &str, request: &JobRequest) -> JobAccepted {
    retry_while_unavailable(|| client.enqueue_idempotent(key, request)).await
}

fn worker(number: usize, recorder: &Recorder) -> Worker<Recorder> {
    let handler_recorder = recorder.clone();
    let handle = move |job: JobContext| {
        let recorder = handler_recorder.clone();
        async move {
            let _running = recorder.handler_started(&job);
            // Simulates work.
            tokio::time::sleep(HANDLER_DURATION).await;
            Ok::<_, HandlerError>(job.attempt())
        }
    };
    let builder = Worker::builder(recorder.clone()).name(format!("load-{number}")).queue(QUEUE).lease_s(LEASE_S);
    builder.concurrency(4).handle_any(handle).build().expect("the worker is complete")
}

//! The reference model: the store's semantics in memory, as simple as possible. Both databases are compared with it.
//!
//! A `Model` is one tenant. Jobs and workers are numbered in order of creation, so that results of stores with other
//! ids can be compared. Transitions are `domain::Job::apply`, and the claim order is `domain::claim::next_lanes`. The
//! model adds the rest: keys, holds, parking, leases, counters, history.

mod backoff;
mod claim;
mod settle;
mod step;

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::IDEMPOTENCY_RETENTION_S;
use domain::queue::lease::Lease;
use domain::{Affinity, Backoff, Epoch, Job, JobState, Label, Name, QueueSettings, State, Time, WorkerId};
use store::queue::counters::Counts;
use store::queue::enqueue::{Idempotency, NewJob};
use uuid::Uuid;

pub use step::{Step, StepResult, generate, settings};

/// Time between two steps, so that the ids of two steps never have the same millisecond.
pub const STEP_MS: i64 = 1;

#[derive(Debug, Default)]
pub struct Model {
    now: Time,
    service_since: Time,
    pub jobs: Vec<ModelJob>,
    pub workers: Vec<ModelWorker>,
    queues: BTreeMap<Name, ModelQueue>,
    /// (queue, key) to the job that owns the key, and until when.
    pub unique: BTreeMap<(Name, String), (usize, Option<Time>)>,
    idempotency: BTreeMap<String, IdempotentResponse>,
    /// The holders of each scope. A holder is a claim: a job and an epoch.
    pub holds: BTreeSet<(String, usize, Epoch)>,
    /// Claims that the server ended and whose worker has not responded yet.
    pub revocations: BTreeSet<(usize, usize, Epoch)>,
    /// Backoffs by (subject, process), including expired ones.
    pub backoffs: BTreeMap<(String, String), Backoff>,
    /// (job, state, previous state), as sent to a webhook.
    pub deliveries: Vec<(usize, JobState, JobState)>,
    claims: usize,
}

#[derive(Debug)]
pub struct ModelJob {
    pub new: NewJob,
    pub job: Job,
    pub parked: Option<String>,
    pub claim: Option<usize>,
    pub times_out_at: Option<Time>,
    pub parent: Option<usize>,
    pub retried_as: Option<usize>,
    /// Event, attempt, worker and cause, oldest first.
    pub history: Vec<(String, i32, Option<usize>, Option<String>)>,
}

#[derive(Debug)]
pub struct ModelWorker {
    pub queues: Vec<Name>,
    pub kinds: Option<Vec<Name>>,
    pub affinities: Option<Vec<Label>>,
    pub affinity: Affinity,
    lease: Lease,
    draining: bool,
    /// Found dead by a sweep.
    pub is_dead: bool,
    pub removed: bool,
}

#[derive(Debug, Default)]
struct ModelQueue {
    settings: QueueSettings,
    paused: bool,
    counts: Counts,
}

#[derive(Clone, Debug)]
struct IdempotentResponse {
    body: [u8; 32],
    jobs: Vec<(usize, JobState)>,
    at: Time,
}

pub(crate) fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(Uuid::from_u128(worker as u128 + 1))
}

impl Model {
    pub fn new() -> Self {
        Self { now: Time::from_seconds(1_000_000_000), ..Self::default() }
    }

    pub fn pass_ms(&mut self, millis: i64) {
        self.now = self.now.plus_ms(millis);
    }

    /// Simulates an outage of the service: every lease gets one more full term.
    pub fn outage(&mut self, millis: i64) {
        self.pass_ms(millis);
        self.service_since = self.now;
    }

    fn queue(&mut self, name: &Name) -> &mut ModelQueue {
        self.queues.entry(name.clone()).or_default()
    }

    pub fn counts(&self, name: &Name) -> Counts {
        self.queues.get(name).map(|queue| queue.counts).unwrap_or_default()
    }

    fn count(&mut self, queue: &Name, state: JobState, by: i64) {
        let counts = &mut self.queue(queue).counts;
        *match state {
            JobState::Waiting => &mut counts.waiting,
            JobState::Scheduled => &mut counts.scheduled,
            JobState::Queued => &mut counts.queued,
            JobState::Loading | JobState::Working => &mut counts.running,
            JobState::Succeeded => &mut counts.succeeded,
            JobState::Failed => &mut counts.failed,
            JobState::Canceled => &mut counts.canceled,
        } += by;
    }

    /// Changes a job's state and updates the counters.
    fn set(&mut self, number: usize, after: Job) {
        let (from, to) = (self.jobs[number].job.job_state(), after.job_state());
        let queue = self.jobs[number].new.queue.clone();
        self.count(&queue, from, -1);
        self.count(&queue, to, 1);
        self.jobs[number].job = after;
    }

    /// Returns the jobs and their states. `None` if the idempotency key was used with a different body.
    pub fn enqueue(
        &mut self,
        jobs: Vec<NewJob>,
        idempotency: Option<Idempotency>,
    ) -> Option<Vec<(usize, JobState, bool)>> {
        if let Some(key) = &idempotency {
            let used = self.idempotency.get(&key.key);
            if let Some(used) = used.filter(|used| used.at > self.now.plus_s(-IDEMPOTENCY_RETENTION_S)) {
                let cached = || used.jobs.iter().map(|(number, state)| (*number, *state, true)).collect();
                return (used.body == key.body_hash).then(cached);
            }
        }
        let results: Vec<(usize, JobState, bool)> = jobs.into_iter().map(|job| self.enqueue_one(job, None)).collect();
        if let Some(key) = idempotency {
            let jobs = results.iter().map(|(number, state, _)| (*number, *state)).collect();
            self.idempotency.insert(key.key, IdempotentResponse { body: key.body_hash, jobs, at: self.now });
        }
        Some(results)
    }

    fn enqueue_one(&mut self, new: NewJob, parent: Option<usize>) -> (usize, JobState, bool) {
        let number = self.jobs.len();
        if let Some(unique) = new.extras.as_ref().and_then(|extras| extras.unique.as_ref()) {
            let key = (new.queue.clone(), unique.key.clone());
            match self.unique.get(&key) {
                Some((owner, until)) if until.is_none_or(|until| until > self.now) => {
                    return (*owner, self.jobs[*owner].job.job_state(), true);
                }
                _ => drop(self.unique.insert(key, (number, unique.for_s.map(|seconds| self.now.plus_s(seconds))))),
            }
        }
        let run_at = new.run_at.unwrap_or(self.now);
        let state = if run_at > self.now { State::Scheduled { run_at } } else { State::Queued { since: run_at } };
        let retry = new.extras.as_ref().and_then(|extras| extras.retry);
        let job = Job {
            state,
            epoch: Epoch(0),
            attempt: 0,
            max_attempts: new.max_attempts,
            retry: retry.unwrap_or_else(|| self.queue(&new.queue).settings.retry_for(&new.kind)),
            wait_s: None,
        };
        let state = job.job_state();
        self.count(&new.queue, state, 1);
        self.jobs.push(ModelJob {
            new,
            job,
            parked: None,
            claim: None,
            times_out_at: None,
            parent,
            retried_as: None,
            history: vec![("enqueued".into(), 0, None, None)],
        });
        (number, state, false)
    }

    /// Returns the new job, or the job of an earlier retry. `Err` with the state of a job that has not ended.
    pub fn retry(&mut self, number: usize) -> Result<(usize, bool), JobState> {
        let old = &self.jobs[number];
        let state = old.job.job_state();
        if !state.is_terminal() {
            return Err(state);
        }
        if let Some(before) = old.retried_as {
            return Ok((before, true));
        }
        let mut new = NewJob { run_at: None, ..old.new.clone() };
        if let Some(extras) = &mut new.extras {
            extras.unique = None;
        }
        let (created, _, _) = self.enqueue_one(new, Some(number));
        self.jobs[number].retried_as = Some(created);
        Ok((created, false))
    }

    pub fn register(
        &mut self,
        queues: Vec<Name>,
        kinds: Option<Vec<Name>>,
        affinities: Option<Vec<Label>>,
        lease_ms: i64,
    ) {
        let lease = Lease::granted(self.now, lease_ms);
        self.workers.push(ModelWorker {
            queues,
            kinds,
            affinities,
            affinity: None,
            lease,
            draining: false,
            is_dead: false,
            removed: false,
        });
    }

    /// `None`: no such worker. `Some(false)`: its lease has expired.
    fn alive(&self, worker: usize) -> Option<bool> {
        let worker = &self.workers[worker];
        (!worker.removed).then(|| !worker.is_dead && !worker.lease.has_expired(self.service_since, self.now))
    }

    fn touch(&mut self, worker: usize) {
        if self.workers[worker].lease.needs_renewal(self.now) {
            self.renew(worker);
        }
    }

    fn renew(&mut self, worker: usize) {
        let lease = &mut self.workers[worker].lease;
        *lease = Lease::granted(self.now, lease.term_ms);
    }

    /// Returns the jobs to stop, and whether to drain.
    pub fn heartbeat(&mut self, worker: usize, affinity: Affinity) -> Option<Option<(BTreeSet<usize>, bool)>> {
        Some(match self.alive(worker)? {
            false => None,
            true => {
                self.renew(worker);
                let row = &mut self.workers[worker];
                row.affinity = affinity.or(row.affinity.take());
                let mine = self.revocations.iter().filter(|(of, _, _)| *of == worker);
                Some((mine.map(|(_, job, _)| *job).collect(), self.workers[worker].draining))
            }
        })
    }

    pub fn drain(&mut self, worker: usize) -> bool {
        let worker = &mut self.workers[worker];
        let found = !worker.removed && !worker.is_dead;
        worker.draining |= found;
        found
    }

    pub fn pause(&mut self, queue: &Name) {
        self.queue(queue).paused = true;
    }

    pub fn resume(&mut self, queue: &Name) {
        self.queue(queue).paused = false;
    }

    pub fn put_queue(&mut self, name: &Name, settings: QueueSettings) {
        let limited = settings.concurrency.is_some();
        self.queue(name).settings = settings.clone();
        let prefix = format!("key {name} ");
        for number in 0..self.jobs.len() {
            let job = &mut self.jobs[number];
            if job.parked.as_ref().is_some_and(|scope| scope.starts_with(&prefix)) {
                job.parked = None;
            }
            if job.new.queue != *name {
                continue;
            }
            if job.new.extras.as_ref().is_none_or(|extras| extras.retry.is_none()) {
                job.job.retry = settings.retry_for(&job.new.kind);
            }
            if limited && job.job.job_state().is_claimed() {
                self.holds.insert((format!("queue {name}"), number, job.job.epoch));
            }
        }
    }

    /// Releases jobs that are parked for a scope without a holder.
    pub fn repair_parked_jobs(&mut self) -> u64 {
        let mut unparked = 0;
        for job in &mut self.jobs {
            let live = !job.job.job_state().is_terminal();
            let is_missed =
                |scope: &String| !scope.starts_with("backoff ") && !self.holds.iter().any(|(held, _, _)| held == scope);
            if live && job.parked.as_ref().is_some_and(is_missed) {
                job.parked = None;
                unparked += 1;
            }
        }
        unparked
    }

    /// Releases the holds of a claim. One parked job per hold is released; for a subject, all of them.
    fn free(&mut self, number: usize, epoch: Epoch) {
        let held: Vec<String> = self
            .holds
            .iter()
            .filter(|(_, job, of)| (*job, *of) == (number, epoch))
            .map(|hold| hold.0.clone())
            .collect();
        for scope in held {
            self.holds.remove(&(scope.clone(), number, epoch));
            if scope.starts_with("subject ") {
                self.unpark(&scope);
                continue;
            }
            let waiting = self.jobs.iter().enumerate().filter(|(_, job)| job.parked.as_ref() == Some(&scope));
            let next = waiting.min_by_key(|(number, job)| (-job.new.priority, job.waiting_since(), *number));
            if let Some((next, _)) = next {
                self.jobs[next].parked = None;
            }
        }
    }
}

impl ModelJob {
    /// The time that determines the position in the queue.
    fn waiting_since(&self) -> Time {
        match &self.job.state {
            State::Waiting { run_at } | State::Scheduled { run_at } => *run_at,
            State::Queued { since } => *since,
            State::Loading(claim) | State::Working(claim) => claim.waiting_since,
            State::Ended { at, .. } => *at,
        }
    }

    fn is_guarded(&self) -> bool {
        self.new.extras.as_ref().is_some_and(|extras| extras.subject.is_some() || extras.concurrency_key.is_some())
    }

    fn record(&mut self, event: &str, worker: Option<usize>, cause: Option<&str>) {
        self.history.push((event.into(), self.job.attempt, worker, cause.map(str::to_owned)));
    }
}

//! Random sequences of operations, chosen so that most of them have an effect in the model's current state.
//!
//! All times are on a grid, so that the milliseconds that a real database takes never matter: the clock advances in
//! tens of seconds, while delays, leases and timeouts are odd multiples of five seconds.

use std::collections::BTreeSet;

use domain::{Affinity, Epoch, JobError, JobState, Label, Name, QueueSettings, RetryPolicy, Time};
use rand::RngExt;
use rand::rngs::StdRng;
use store::queue::enqueue::{Extras, Idempotency, NewJob, Unique};
use store::queue::settle::{End, SettleStatus};
use store::queue::workers::sweep::Swept;
use store::signals::refine::Signaled;

use super::Model;
use crate::{label, name};

/// An operation of the store, with jobs and workers by number.
#[derive(Clone, Debug)]
pub enum Step {
    /// Jobs and their delays.
    Enqueue {
        jobs: Vec<(NewJob, Option<i64>)>,
        key: Option<Idempotency>,
    },
    Register {
        queues: Vec<Name>,
        kinds: Option<Vec<Name>>,
        affinities: Option<Vec<Label>>,
        lease_ms: i64,
    },
    Heartbeat {
        worker: usize,
        affinity: Affinity,
    },
    Claim {
        worker: usize,
        max: usize,
        affinity: Affinity,
    },
    Settle {
        worker: usize,
        outcomes: Vec<(usize, Epoch, End)>,
    },
    Signal {
        job: usize,
        epoch: Epoch,
        state: Option<JobState>,
    },
    Cancel {
        job: usize,
    },
    CancelByKey {
        queue: Name,
        key: String,
    },
    Retry {
        job: usize,
    },
    Promote,
    Sweep,
    RepairParked,
    Fold,
    Remove {
        worker: usize,
    },
    Drain {
        worker: usize,
    },
    Pause {
        queue: Name,
    },
    Resume {
        queue: Name,
    },
    Put {
        queue: Name,
        settings: QueueSettings,
    },
    /// `None`: without end.
    LockOut {
        subject: Label,
        process: String,
        for_s: Option<i64>,
    },
    RemoveBackoff {
        subject: Label,
        process: String,
    },
    Scan,
    Pass {
        seconds: i64,
    },
    Outage {
        seconds: i64,
    },
}

/// The result of a step, with jobs and workers by number.
#[derive(Clone, Debug, PartialEq)]
pub enum StepResult {
    Accepted(Vec<(usize, JobState, bool)>),
    KeyReused,
    Registered(usize),
    Alive { cancel: BTreeSet<usize>, drain: bool },
    LeaseExpired,
    NotFound,
    Claimed(Vec<(usize, Epoch, i32)>),
    Settled(Vec<SettleStatus>),
    Signaled(Signaled),
    Canceled(usize),
    AlreadyEnded(JobState),
    Retried { job: usize, before: bool },
    NotEnded(JobState),
    Promoted(usize),
    Swept(Swept),
    Repaired(u64),
    Scanned(usize),
    Found(bool),
    Done,
}

impl Model {
    pub fn run(&mut self, step: &Step) -> StepResult {
        let or_expired = |result: Option<Option<StepResult>>| match result {
            None => StepResult::NotFound,
            Some(None) => StepResult::LeaseExpired,
            Some(Some(result)) => result,
        };
        match step.clone() {
            Step::Enqueue { jobs, key } => {
                let now = self.now;
                let at = |(job, delay): (NewJob, Option<i64>)| NewJob { run_at: delay.map(|s| now.plus_s(s)), ..job };
                let jobs = jobs.into_iter().map(at).collect();
                self.enqueue(jobs, key).map_or(StepResult::KeyReused, StepResult::Accepted)
            }
            Step::Register { queues, kinds, affinities, lease_ms } => {
                self.register(queues, kinds, affinities, lease_ms);
                StepResult::Registered(self.workers.len() - 1)
            }
            Step::Heartbeat { worker, affinity } => {
                let heartbeat = self.heartbeat(worker, affinity);
                or_expired(heartbeat.map(|alive| alive.map(|(cancel, drain)| StepResult::Alive { cancel, drain })))
            }
            Step::Claim { worker, max, affinity } => {
                or_expired(self.claim(worker, max, affinity).map(|jobs| jobs.map(StepResult::Claimed)))
            }
            Step::Settle { worker, outcomes } => {
                self.settle(worker, &outcomes).map_or(StepResult::NotFound, StepResult::Settled)
            }
            Step::Signal { job, epoch, state } => StepResult::Signaled(self.signal(job, epoch, state)),
            Step::Cancel { job } => self.cancel_result(job),
            Step::CancelByKey { queue, key } => match self.unique.get(&(queue, key)).copied() {
                Some((job, until)) if until.is_none_or(|until| until > self.now) => self.cancel_result(job),
                _ => StepResult::NotFound,
            },
            Step::Retry { job } => match self.retry(job) {
                Ok((job, before)) => StepResult::Retried { job, before },
                Err(state) => StepResult::NotEnded(state),
            },
            Step::Promote => StepResult::Promoted(self.promote()),
            Step::Sweep => StepResult::Swept(self.sweep()),
            Step::RepairParked => StepResult::Repaired(self.repair_parked_jobs()),
            Step::Remove { worker } => StepResult::Found(self.remove(worker)),
            Step::RemoveBackoff { subject, process } => {
                StepResult::Found(self.remove_backoff(subject.as_str(), &process))
            }
            Step::Scan => StepResult::Scanned(self.release_expired()),
            Step::Drain { worker } => StepResult::Found(self.drain(worker)),
            other => {
                match other {
                    Step::Pause { queue } => self.pause(&queue),
                    Step::Resume { queue } => self.resume(&queue),
                    Step::LockOut { subject, process, for_s } => self.lock_out(subject.as_str(), &process, for_s),
                    Step::Put { queue, settings } => self.put_queue(&queue, settings),
                    Step::Pass { seconds } => self.pass_ms(seconds * 1_000),
                    Step::Outage { seconds } => self.outage(seconds * 1_000),
                    _ => {}
                }
                StepResult::Done
            }
        }
    }

    fn cancel_result(&mut self, job: usize) -> StepResult {
        match self.cancel(job) {
            Ok(job) => StepResult::Canceled(job),
            Err(store::queue::cancel::Canceled::AlreadyEnded(state)) => StepResult::AlreadyEnded(state),
            Err(_) => StepResult::NotFound,
        }
    }

    pub fn time(&self) -> Time {
        self.now
    }
}

/// Delays of 5, 15 and 45 seconds, which all end in five. Without jitter, which the stores would draw themselves.
fn policy() -> RetryPolicy {
    RetryPolicy::new(Some(5), Some(45), Some(3.0), None).expect("a valid policy")
}

/// The next step for the model's state.
pub fn generate(rng: &mut StdRng, model: &Model) -> Step {
    if model.workers.iter().all(|worker| worker.removed) || rng.random_ratio(1, 40) {
        return register(rng);
    }
    let worker = pick_worker(rng, model);
    if model.jobs.is_empty() {
        return enqueue(rng);
    }
    let job = rng.random_range(0..model.jobs.len());
    let epoch = model.jobs[job].job.epoch;
    match rng.random_range(0..100) {
        0..17 => enqueue(rng),
        17..42 => Step::Claim { worker, max: rng.random_range(1..5), affinity: affinity(rng, 8) },
        42..58 => settle(rng, model, worker),
        58..66 => Step::Pass { seconds: 10 * rng.random_range(1..4) },
        66..70 => Step::Promote,
        70..74 => Step::Sweep,
        74 => lock_out(rng),
        75 => Step::Scan,
        76..80 => Step::Heartbeat { worker, affinity: affinity(rng, 4) },
        80..84 => Step::Cancel { job },
        84..87 => {
            let state = [None, Some(JobState::Loading), Some(JobState::Working)][rng.random_range(0..3)];
            Step::Signal { job, epoch: stale(rng, epoch), state }
        }
        87..90 => Step::Retry { job },
        90..92 => put(rng),
        92 => Step::Pause { queue: queue(rng) },
        93 => Step::Resume { queue: queue(rng) },
        94 => Step::Remove { worker },
        95 => Step::Drain { worker },
        96 => Step::CancelByKey { queue: queue(rng), key: unique(rng) },
        97 => Step::Outage { seconds: 60 },
        98 if rng.random_ratio(1, 2) => Step::RepairParked,
        98 => Step::Fold,
        _ => Step::RemoveBackoff { subject: subject(rng), process: process(rng) },
    }
}

fn queue(rng: &mut StdRng) -> Name {
    name(["q", "r"][rng.random_range(0..2)])
}

fn unique(rng: &mut StdRng) -> String {
    ["u", "v"][rng.random_range(0..2)].into()
}

/// Returns an affinity with a probability of one in `of`.
fn affinity(rng: &mut StdRng, of: u32) -> Affinity {
    rng.random_ratio(1, of).then(|| label(["a", "b"][rng.random_range(0..2)]))
}

fn stale(rng: &mut StdRng, epoch: Epoch) -> Epoch {
    if rng.random_ratio(1, 6) { Epoch((epoch.0 - 1).max(0)) } else { epoch }
}

/// Mostly a live worker.
fn pick_worker(rng: &mut StdRng, model: &Model) -> usize {
    let living: Vec<usize> = (0..model.workers.len()).filter(|worker| !model.workers[*worker].removed).collect();
    if living.is_empty() || rng.random_ratio(1, 30) {
        return rng.random_range(0..model.workers.len());
    }
    living[rng.random_range(0..living.len())]
}

fn register(rng: &mut StdRng) -> Step {
    let queues = [vec![name("q")], vec![name("r")], vec![name("q"), name("r")]][rng.random_range(0..3)].clone();
    let kinds = rng.random_ratio(1, 6).then(|| vec![name("k")]);
    let affinities = rng.random_ratio(1, 6).then(|| vec![label("a")]);
    Step::Register { queues, kinds, affinities, lease_ms: [25_000, 65_000][rng.random_range(0..2)] }
}

fn enqueue(rng: &mut StdRng) -> Step {
    let jobs = (0..rng.random_range(1..4)).map(|_| (new_job(rng), delay(rng))).collect();
    let key = rng.random_ratio(1, 8).then(|| Idempotency {
        key: ["x", "y"][rng.random_range(0..2)].into(),
        body_hash: [rng.random_range(0..2); 32],
    });
    Step::Enqueue { jobs, key }
}

fn delay(rng: &mut StdRng) -> Option<i64> {
    rng.random_ratio(1, 4).then(|| [15, 35][rng.random_range(0..2)])
}

fn new_job(rng: &mut StdRng) -> NewJob {
    let mut one_in = |of: u32| rng.random_ratio(1, of);
    let (on_subject, process, key, keyed, timed, retried, hooked, other_kind, urgent) =
        (one_in(4), one_in(3), one_in(3), one_in(8), one_in(3), one_in(3), one_in(6), one_in(4), one_in(5));
    let unique = keyed.then(|| Unique { key: unique(rng), for_s: rng.random_ratio(1, 2).then_some(35) });
    let extras = Extras {
        subject: on_subject.then(|| subject(rng)),
        process: process.then(|| name("p")),
        concurrency_key: key.then(|| label("c")),
        unique,
        timeout_s: timed.then(|| [15, 35][rng.random_range(0..2)]),
        retry: retried.then(policy),
        webhook: hooked.then(|| r#"{"url":"https://example.org/"}"#.into()),
        ..Extras::default()
    };
    let plain = rng.random_ratio(1, 4);
    NewJob {
        kind: name(if other_kind { "l" } else { "k" }),
        priority: i32::from(urgent),
        affinity: affinity(rng, 2),
        max_attempts: rng.random_range(1..4),
        extras: (!plain).then(|| Box::new(extras)),
        ..crate::job(queue(rng).as_str())
    }
}

/// Outcomes for jobs that the worker has or had, and occasionally for any job.
fn settle(rng: &mut StdRng, model: &Model, worker: usize) -> Step {
    let mut claimed: Vec<(usize, Epoch)> = (0..model.jobs.len())
        .filter(|job| model.worker_of(*job) == Some(worker))
        .map(|job| (job, model.jobs[job].job.epoch))
        .collect();
    claimed.extend(model.revocations.iter().filter(|(of, _, _)| *of == worker).map(|(_, job, epoch)| (*job, *epoch)));
    let mut outcomes = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let (job, epoch) = if claimed.is_empty() || rng.random_ratio(1, 8) {
            let job = rng.random_range(0..model.jobs.len());
            (job, model.jobs[job].job.epoch)
        } else {
            claimed[rng.random_range(0..claimed.len())]
        };
        outcomes.push((job, stale(rng, epoch), end(rng)));
    }
    Step::Settle { worker, outcomes }
}

fn end(rng: &mut StdRng) -> End {
    let error = |retryable| JobError { code: "boom".into(), message: "it broke".into(), retryable };
    match rng.random_range(0..10) {
        0..3 => End::Finish(Some("1".into())),
        3..6 => End::Fail(error(true)),
        6 => End::Fail(error(false)),
        7 => End::Cancel,
        8 => End::Snooze { delay_ms: [5_000, 15_000][rng.random_range(0..2)] },
        _ => End::Release,
    }
}

fn subject(rng: &mut StdRng) -> Label {
    label(["m", "n"][rng.random_range(0..2)])
}

/// `k` is the process of jobs of that kind without a process.
fn process(rng: &mut StdRng) -> String {
    ["p", "*", "k"][rng.random_range(0..3)].into()
}

fn lock_out(rng: &mut StdRng) -> Step {
    let for_s = rng.random_ratio(2, 3).then(|| [15, 35][rng.random_range(0..2)]);
    Step::LockOut { subject: subject(rng), process: process(rng), for_s }
}

fn put(rng: &mut StdRng) -> Step {
    let settings = QueueSettings {
        concurrency: rng.random_ratio(1, 2).then(|| rng.random_range(1..4)),
        per_key: rng.random_ratio(1, 2).then(|| rng.random_range(1..3)),
        ..settings()
    };
    Step::Put { queue: queue(rng), settings }
}

/// The settings that every queue of a sequence gets first.
pub fn settings() -> QueueSettings {
    QueueSettings { retry: Some(policy()), starvation_s: Some(24), ..QueueSettings::default() }
}

//! Random sequences of operations, chosen with an eye on the model so that most of them do something.
//!
//! All times are on a grid, so that the milliseconds a real database takes decide nothing: time passes in tens of
//! seconds, waits, leases and time-outs end in five.

use std::collections::BTreeSet;

use domain::{Affinity, Epoch, JobError, JobState, Label, Name, QueueSettings, RetryPolicy, Time};
use rand::RngExt;
use rand::rngs::StdRng;
use store::jobs::enqueue::{Extras, Idempotency, NewJob, Unique};
use store::jobs::settle::{End, Status};
use store::signals::refine::Signaled;
use store::workers::sweep::Swept;

use super::Model;
use crate::{label, name};

/// One call of the store, with jobs and workers by number.
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
    Unpark,
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
    /// Without end, unless for so long.
    LockOut {
        subject: Label,
        process: String,
        for_s: Option<i64>,
    },
    LetIn {
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

/// What a step answers, with jobs and workers by number.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Accepted(Vec<(usize, JobState, bool)>),
    KeyReused,
    Registered(usize),
    Alive { cancel: BTreeSet<usize>, drain: bool },
    Gone,
    NotFound,
    Claimed(Vec<(usize, Epoch, i32)>),
    Settled(Vec<Status>),
    Signaled(Signaled),
    Canceled(usize),
    AlreadyEnded(JobState),
    Retried { job: usize, before: bool },
    NotEnded(JobState),
    Promoted(usize),
    Swept(Swept),
    Unparked(u64),
    Scanned(usize),
    Found(bool),
    Done,
}

impl Model {
    pub fn run(&mut self, step: &Step) -> Answer {
        let gone_or = |answer: Option<Option<Answer>>| match answer {
            None => Answer::NotFound,
            Some(None) => Answer::Gone,
            Some(Some(answer)) => answer,
        };
        match step.clone() {
            Step::Enqueue { jobs, key } => {
                let now = self.now;
                let at = |(job, delay): (NewJob, Option<i64>)| NewJob { run_at: delay.map(|s| now.plus_s(s)), ..job };
                let jobs = jobs.into_iter().map(at).collect();
                self.enqueue(jobs, key).map_or(Answer::KeyReused, Answer::Accepted)
            }
            Step::Register { queues, kinds, affinities, lease_ms } => {
                self.register(queues, kinds, affinities, lease_ms);
                Answer::Registered(self.workers.len() - 1)
            }
            Step::Heartbeat { worker, affinity } => {
                let beat = self.heartbeat(worker, affinity);
                gone_or(beat.map(|beat| beat.map(|(cancel, drain)| Answer::Alive { cancel, drain })))
            }
            Step::Claim { worker, max, affinity } => {
                gone_or(self.claim(worker, max, affinity).map(|jobs| jobs.map(Answer::Claimed)))
            }
            Step::Settle { worker, outcomes } => {
                self.settle(worker, &outcomes).map_or(Answer::NotFound, Answer::Settled)
            }
            Step::Signal { job, epoch, state } => Answer::Signaled(self.signal(job, epoch, state)),
            Step::Cancel { job } => self.cancel_answer(job),
            Step::CancelByKey { queue, key } => match self.unique.get(&(queue, key)).copied() {
                Some((job, until)) if until.is_none_or(|until| until > self.now) => self.cancel_answer(job),
                _ => Answer::NotFound,
            },
            Step::Retry { job } => match self.retry(job) {
                Ok((job, before)) => Answer::Retried { job, before },
                Err(state) => Answer::NotEnded(state),
            },
            Step::Promote => Answer::Promoted(self.promote()),
            Step::Sweep => Answer::Swept(self.sweep()),
            Step::Unpark => Answer::Unparked(self.unpark_forgotten()),
            Step::Remove { worker } => Answer::Found(self.remove(worker)),
            Step::LetIn { subject, process } => Answer::Found(self.let_in(subject.as_str(), &process)),
            Step::Scan => Answer::Scanned(self.unpark_past()),
            Step::Drain { worker } => Answer::Found(self.drain(worker)),
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
                Answer::Done
            }
        }
    }

    fn cancel_answer(&mut self, job: usize) -> Answer {
        match self.cancel(job) {
            Ok(job) => Answer::Canceled(job),
            Err(store::jobs::cancel::Canceled::AlreadyEnded(state)) => Answer::AlreadyEnded(state),
            Err(_) => Answer::NotFound,
        }
    }

    pub fn time(&self) -> Time {
        self.now
    }
}

/// Waits of 5, 15, 45 seconds: all end in five, and jitter would be a die that the stores throw for themselves.
fn policy() -> RetryPolicy {
    RetryPolicy::new(Some(5), Some(45), Some(3.0), None).expect("a valid policy")
}

/// The next step for a model in this state.
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
        98 if rng.random_ratio(1, 2) => Step::Unpark,
        98 => Step::Fold,
        _ => Step::LetIn { subject: subject(rng), process: process(rng) },
    }
}

fn queue(rng: &mut StdRng) -> Name {
    name(["q", "r"][rng.random_range(0..2)])
}

fn unique(rng: &mut StdRng) -> String {
    ["u", "v"][rng.random_range(0..2)].into()
}

/// One in `of` has one.
fn affinity(rng: &mut StdRng, of: u32) -> Affinity {
    rng.random_ratio(1, of).then(|| label(["a", "b"][rng.random_range(0..2)]))
}

fn stale(rng: &mut StdRng, epoch: Epoch) -> Epoch {
    if rng.random_ratio(1, 6) { Epoch((epoch.0 - 1).max(0)) } else { epoch }
}

/// Mostly one that lives.
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
    let mut often = |of: u32| rng.random_ratio(1, of);
    let (on_subject, process, key, keyed, timed, retried, hooked, other_kind, urgent) =
        (often(4), often(3), often(3), often(8), often(3), often(3), often(6), often(4), often(5));
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

/// Outcomes for what the worker has, for what was taken from it, and now and then for anything.
fn settle(rng: &mut StdRng, model: &Model, worker: usize) -> Step {
    let mut known: Vec<(usize, Epoch)> = (0..model.jobs.len())
        .filter(|job| model.worker_of(*job) == Some(worker))
        .map(|job| (job, model.jobs[job].job.epoch))
        .collect();
    known.extend(model.revocations.iter().filter(|(of, _, _)| *of == worker).map(|(_, job, epoch)| (*job, *epoch)));
    let mut outcomes = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let (job, epoch) = if known.is_empty() || rng.random_ratio(1, 8) {
            let job = rng.random_range(0..model.jobs.len());
            (job, model.jobs[job].job.epoch)
        } else {
            known[rng.random_range(0..known.len())]
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

/// `k` stands for jobs of that kind that have no process.
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

/// What every queue of a sequence is told first.
pub fn settings() -> QueueSettings {
    QueueSettings { retry: Some(policy()), starvation_s: Some(24), ..QueueSettings::default() }
}

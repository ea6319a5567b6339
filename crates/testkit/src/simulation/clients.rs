//! Producers and workers of the simulation: a small version of the client library.

use std::collections::BTreeMap;

use domain::{Epoch, JobError, RetryPolicy};
use rand::RngExt;
use store::queue::enqueue::{Extras, Idempotency, NewJob};
use store::queue::settle::{End, SettleStatus};

use super::{Client, Message, World, id};
use crate::history::{self, Event, Millis, Outcome};
use crate::model::{Step, StepResult};
use crate::{job, label, name};

const LEASE_MS: Millis = 5_000;
const HEARTBEAT_EVERY_MS: Millis = 1_500;
/// Interval between a worker's checks.
const POLL_MS: Millis = 200;
/// Timeout of a request.
const TIMEOUT_MS: Millis = 1_500;
const RETRY_MS: Millis = 5_000;

/// Enqueues one job, and retries until it gets a response.
#[derive(Debug)]
pub(super) struct Producer {
    number: usize,
    accepted: Option<usize>,
    cancels: bool,
}

impl Producer {
    pub(super) fn new(number: usize) -> Self {
        Self { number, accepted: None, cancels: number % 8 == 7 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.accepted.is_some()
    }

    fn step(&self) -> Step {
        let retry = RetryPolicy::new(Some(RETRY_MS / 1_000), Some(RETRY_MS / 1_000), Some(1.0), None);
        let extras = Extras {
            retry: Some(retry.expect("a valid policy")),
            subject: (self.number % 4 == 3).then(|| label("m")),
            process: (self.number % 4 == 3).then(|| name("p")),
            concurrency_key: (self.number % 5 == 4).then(|| label("c")),
            ..Extras::default()
        };
        let new = NewJob { max_attempts: self.max_attempts(), extras: Some(Box::new(extras)), ..job("q") };
        let key = Idempotency { key: format!("k{}", self.number), body_hash: [0; 32] };
        Step::Enqueue { jobs: vec![(new, None)], key: Some(key) }
    }

    fn max_attempts(&self) -> i32 {
        if self.number % 4 == 1 { 2 } else { 50 }
    }
}

/// A claimed job.
struct HeldJob {
    epoch: Epoch,
    done_at: Millis,
    end: End,
    /// When the outcome was last sent.
    sent_at: Option<Millis>,
}

pub(super) struct Worker {
    /// Its number in the store, once registered.
    session: Option<usize>,
    held: BTreeMap<usize, HeldJob>,
    /// Requests without a response, with the time of each.
    waiting: BTreeMap<u64, (Call, Millis)>,
    calls: u64,
    last_heartbeat: Millis,
    frozen_until: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Register,
    Heartbeat { session: usize },
    Claim { session: usize },
    Settle { session: usize, job: usize, epoch: Epoch, outcome: Outcome },
}

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            session: None,
            held: BTreeMap::new(),
            waiting: BTreeMap::new(),
            calls: 0,
            last_heartbeat: 0,
            frozen_until: 0,
        }
    }

    fn is_waiting_for(&self, call: &Call) -> bool {
        self.waiting.values().any(|(waiting, _)| waiting == call)
    }
}

impl World {
    pub(super) fn woken(&mut self, who: Client) {
        match who {
            Client::Producer(number) => self.produce(number),
            Client::Worker(number) => self.work(number),
        }
    }

    pub(super) fn answered(&mut self, to: Client, number: u64, answer: StepResult) {
        match to {
            Client::Producer(producer) => self.produced(producer, answer),
            Client::Worker(worker) => {
                // A frozen client receives the response when it continues.
                let frozen_until = self.workers[worker].frozen_until;
                if frozen_until > self.now {
                    return self.in_ms(frozen_until - self.now, Message::Response { to, number, answer });
                }
                self.worker_answered(worker, number, answer);
            }
        }
    }

    fn produce(&mut self, number: usize) {
        let producer = &self.producers[number];
        if producer.is_done() {
            return;
        }
        let step = producer.step();
        self.call(Client::Producer(number), 0, step);
        self.in_ms(TIMEOUT_MS, Message::Wake { who: Client::Producer(number) });
    }

    fn produced(&mut self, number: usize, answer: StepResult) {
        match answer {
            StepResult::Accepted(jobs) => {
                let job = jobs[0].0;
                let producer = &mut self.producers[number];
                let again = producer.accepted.replace(job);
                assert!(again.is_none_or(|before| before == job), "one idempotency key created two jobs");
                let (max_attempts, cancels) = (producer.max_attempts().into(), producer.cancels);
                if again.is_none() {
                    self.log.push(Event::Enqueued { job: id(job), max_attempts });
                }
                if cancels && again.is_none() {
                    let (asked, at) = (self.now, self.now);
                    self.log.push(Event::Canceled { job: id(job), answer: history::Response::Unknown, asked, at });
                    self.call(Client::Producer(number), 1, Step::Cancel { job });
                }
            }
            StepResult::Canceled(job) => {
                let (asked, at) = (self.now, self.now);
                self.log.push(Event::Canceled { job: id(job), answer: history::Response::Applied, asked, at });
            }
            StepResult::AlreadyEnded(_) => {}
            other => unreachable!("a producer received {other:?}"),
        }
    }

    fn send(&mut self, worker: usize, call: Call, step: Step) {
        let now = self.now;
        let caller = &mut self.workers[worker];
        caller.calls += 1;
        let number = caller.calls;
        caller.waiting.insert(number, (call, now));
        self.call(Client::Worker(worker), number, step);
    }

    /// Does everything that is due, and sets the timer.
    fn work(&mut self, number: usize) {
        self.in_ms(POLL_MS, Message::Wake { who: Client::Worker(number) });
        if self.workers[number].frozen_until > self.now {
            return;
        }
        if self.fault_occurs(120) {
            self.workers[number].frozen_until = self.now + self.rng.random_range(1_000..3 * LEASE_MS);
            return;
        }
        if self.fault_occurs(200) {
            // The worker crashes. Another one without its state starts.
            let calls = self.workers[number].calls + 1_000;
            self.workers[number] = Worker { calls, ..Worker::new() };
        }
        self.time_out_calls(number);
        let Some(session) = self.workers[number].session else {
            if !self.workers[number].is_waiting_for(&Call::Register) {
                let lease_ms = LEASE_MS as i64;
                let queues = vec![name("q")];
                self.send(number, Call::Register, Step::Register { queues, kinds: None, affinities: None, lease_ms });
            }
            return;
        };
        let worker = &self.workers[number];
        if self.now >= worker.last_heartbeat + HEARTBEAT_EVERY_MS
            && !worker.is_waiting_for(&Call::Heartbeat { session })
        {
            self.send(number, Call::Heartbeat { session }, Step::Heartbeat { worker: session, affinity: None });
        }
        let worker = &self.workers[number];
        if worker.held.len() < 2 && !worker.is_waiting_for(&Call::Claim { session }) && self.rng.random_ratio(1, 2) {
            self.send(number, Call::Claim { session }, Step::Claim { worker: session, max: 2, affinity: None });
        }
        self.settle_what_is_done(number, session);
    }

    fn settle_what_is_done(&mut self, number: usize, session: usize) {
        let now = self.now;
        let due =
            |held: &HeldJob| held.done_at <= now && held.sent_at.is_none_or(|sent_at| sent_at + TIMEOUT_MS <= now);
        let done: Vec<(usize, Epoch, End)> = self.workers[number]
            .held
            .iter_mut()
            .filter(|(_, held)| due(held))
            .map(|(job, held)| {
                held.sent_at = Some(now);
                (*job, held.epoch, held.end.clone())
            })
            .collect();
        for (job, epoch, end) in done {
            let call = Call::Settle { session, job, epoch, outcome: outcome_of(&end) };
            self.log_settled(call, history::Response::Unknown, now);
            self.send(number, call, Step::Settle { worker: session, outcomes: vec![(job, epoch, end)] });
        }
    }

    fn time_out_calls(&mut self, number: usize) {
        let now = self.now;
        let overdue: Vec<u64> = self.workers[number]
            .waiting
            .iter()
            .filter(|(_, (_, since))| since + TIMEOUT_MS <= now)
            .map(|(call, _)| *call)
            .collect();
        for call in overdue {
            let (call, _) = self.workers[number].waiting.remove(&call).expect("it is waiting");
            match call {
                // The claim may have returned jobs that the worker does not know of, so it removes itself.
                Call::Claim { session } if self.workers[number].session == Some(session) => self.remove(number),
                _ => {}
            }
        }
    }

    fn remove(&mut self, number: usize) {
        let Some(session) = self.workers[number].session.take() else { return };
        self.workers[number].held.clear();
        self.log.push(Event::WorkerRemoved { worker: id(session), asked: self.now });
        // Repeated, because a message can be lost.
        for _ in 0..3 {
            self.call(Client::Worker(number), 0, Step::Remove { worker: session });
        }
    }

    fn log_settled(&mut self, call: Call, answer: history::Response, asked: Millis) {
        let Call::Settle { session, job, epoch, outcome } = call else { unreachable!("{call:?} is not a settle") };
        let (job, epoch, worker, at) = (id(job), epoch.0, id(session), self.now);
        self.log.push(Event::Settled { job, epoch, worker, outcome, answer, asked, at });
    }

    fn worker_answered(&mut self, number: usize, call: u64, answer: StepResult) {
        // A response to a request that timed out, or to the previous worker.
        let Some((call, asked)) = self.workers[number].waiting.remove(&call) else { return };
        let (at, lease_ms) = (self.now, LEASE_MS);
        match (call, answer) {
            (Call::Register, StepResult::Registered(session)) => {
                self.workers[number].session = Some(session);
                self.workers[number].last_heartbeat = asked;
                self.log.push(Event::Heartbeat { worker: id(session), asked, lease_ms });
            }
            // A response for an earlier session.
            (Call::Heartbeat { session } | Call::Claim { session }, _)
                if self.workers[number].session != Some(session) => {}
            (Call::Heartbeat { session }, StepResult::Alive { cancel, .. }) => {
                let worker = &mut self.workers[number];
                worker.last_heartbeat = asked;
                for job in cancel {
                    if let Some(held) = worker.held.get_mut(&job) {
                        (held.end, held.done_at) = (End::Cancel, at);
                    }
                }
                self.log.push(Event::Heartbeat { worker: id(session), asked, lease_ms });
            }
            (Call::Claim { session }, StepResult::Claimed(jobs)) => {
                for (job, epoch, attempt) in jobs {
                    let claimed = Event::Claimed {
                        job: id(job),
                        epoch: epoch.0,
                        attempt: attempt.into(),
                        worker: id(session),
                        asked,
                        at,
                    };
                    self.log.push(claimed);
                    let (done_at, end) = (at + self.rng.random_range(50..4_000), self.end(job, attempt));
                    self.workers[number].held.insert(job, HeldJob { epoch, done_at, end, sent_at: None });
                }
            }
            (Call::Settle { job, epoch, .. }, StepResult::Settled(statuses)) => {
                let applied = statuses == [SettleStatus::Applied];
                let answer = if applied { history::Response::Applied } else { history::Response::Refused };
                self.log_settled(call, answer, asked);
                let held = &mut self.workers[number].held;
                if held.get(&job).is_some_and(|held| held.epoch == epoch) {
                    held.remove(&job);
                }
            }
            // Its lease has expired, or it was removed. It registers again.
            (Call::Settle { .. }, StepResult::NotFound) => {}
            (_, StepResult::LeaseExpired | StepResult::NotFound) => {
                self.workers[number].session = None;
                self.workers[number].held.clear();
            }
            (call, answer) => unreachable!("{call:?} received {answer:?}"),
        }
    }

    fn end(&mut self, job: usize, attempt: i32) -> End {
        let error = |retryable| JobError { code: "boom".into(), message: "it broke".into(), retryable };
        match job % 6 {
            1 if attempt < 3 => End::Fail(error(true)),
            2 => End::Fail(error(false)),
            3 if self.rng.random_ratio(1, 2) => End::Snooze { delay_ms: 2_000 },
            _ => End::Finish(None),
        }
    }
}

fn outcome_of(end: &End) -> Outcome {
    match end {
        End::Finish(_) | End::FinishWith { .. } => Outcome::Finish,
        End::Fail(error) | End::FailUntil { error, .. } => {
            Outcome::Fail { wait_ms: error.retryable.then_some(RETRY_MS) }
        }
        End::Cancel => Outcome::Cancel,
        End::Snooze { delay_ms } => Outcome::Snooze { wait_ms: *delay_ms as Millis },
        End::Release => Outcome::Release,
        End::Suspend(_) | End::ContinueAs { .. } => unreachable!("the simulated workers do not suspend"),
    }
}

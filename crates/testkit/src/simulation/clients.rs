//! Producers and workers of the simulation: what the client library does, in small.

use std::collections::BTreeMap;

use domain::{Epoch, JobError, RetryPolicy};
use rand::RngExt;
use store::jobs::enqueue::{Extras, Idempotency, NewJob};
use store::jobs::settle::{End, Status};

use super::{Client, Parcel, World, id};
use crate::history::{self, At, Event, Outcome};
use crate::model::{Answer, Step};
use crate::{job, label, name};

const LEASE_MS: At = 5_000;
const BEAT_EVERY_MS: At = 1_500;
/// How often a worker looks what there is to do.
const LOOK_EVERY_MS: At = 200;
/// No answer by then is no answer.
const PATIENCE_MS: At = 1_500;
const RETRY_MS: At = 5_000;

/// Puts in one job, again and again until it is answered.
#[derive(Debug)]
pub(super) struct Producer {
    number: usize,
    accepted: Option<usize>,
    calls_it_off: bool,
}

impl Producer {
    pub(super) fn new(number: usize) -> Self {
        Self { number, accepted: None, calls_it_off: number % 8 == 7 }
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

/// What a worker knows of a job it has.
struct Held {
    epoch: Epoch,
    done_at: At,
    end: End,
    /// When the outcome was last sent.
    told: Option<At>,
}

pub(super) struct Worker {
    /// Its number with the store, once it has one.
    session: Option<usize>,
    held: BTreeMap<usize, Held>,
    /// Calls that wait for an answer: what and since when.
    waiting: BTreeMap<u64, (Call, At)>,
    calls: u64,
    last_beat: At,
    frozen_until: At,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Register,
    Beat { session: usize },
    Claim { session: usize },
    Settle { session: usize, job: usize, epoch: Epoch, outcome: Outcome },
}

impl Worker {
    pub(super) fn new() -> Self {
        Self { session: None, held: BTreeMap::new(), waiting: BTreeMap::new(), calls: 0, last_beat: 0, frozen_until: 0 }
    }

    fn asks(&self, call: &Call) -> bool {
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

    pub(super) fn answered(&mut self, to: Client, number: u64, answer: Answer) {
        match to {
            Client::Producer(producer) => self.produced(producer, answer),
            Client::Worker(worker) => {
                // Whoever is frozen reads its mail when it thaws.
                let frozen_until = self.workers[worker].frozen_until;
                if frozen_until > self.now {
                    return self.in_ms(frozen_until - self.now, Parcel::Answer { to, number, answer });
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
        self.in_ms(PATIENCE_MS, Parcel::Wake { who: Client::Producer(number) });
    }

    fn produced(&mut self, number: usize, answer: Answer) {
        match answer {
            Answer::Accepted(jobs) => {
                let job = jobs[0].0;
                let producer = &mut self.producers[number];
                let again = producer.accepted.replace(job);
                assert!(again.is_none_or(|before| before == job), "one key gave two jobs");
                let (max_attempts, calls_it_off) = (producer.max_attempts().into(), producer.calls_it_off);
                if again.is_none() {
                    self.log.push(Event::Enqueued { job: id(job), max_attempts });
                }
                if calls_it_off && again.is_none() {
                    let (asked, at) = (self.now, self.now);
                    self.log.push(Event::Canceled { job: id(job), answer: history::Answer::None, asked, at });
                    self.call(Client::Producer(number), 1, Step::Cancel { job });
                }
            }
            Answer::Canceled(job) => {
                let (asked, at) = (self.now, self.now);
                self.log.push(Event::Canceled { job: id(job), answer: history::Answer::Applied, asked, at });
            }
            Answer::AlreadyEnded(_) => {}
            other => unreachable!("a producer was answered {other:?}"),
        }
    }

    fn ask(&mut self, worker: usize, call: Call, step: Step) {
        let now = self.now;
        let asking = &mut self.workers[worker];
        asking.calls += 1;
        let number = asking.calls;
        asking.waiting.insert(number, (call, now));
        self.call(Client::Worker(worker), number, step);
    }

    /// Looks at everything there is to do, and sets the alarm clock.
    fn work(&mut self, number: usize) {
        self.in_ms(LOOK_EVERY_MS, Parcel::Wake { who: Client::Worker(number) });
        if self.workers[number].frozen_until > self.now {
            return;
        }
        if self.misfortune(120) {
            self.workers[number].frozen_until = self.now + self.rng.random_range(1_000..3 * LEASE_MS);
            return;
        }
        if self.misfortune(200) {
            // It dies; another starts in its place and knows nothing.
            let calls = self.workers[number].calls + 1_000;
            self.workers[number] = Worker { calls, ..Worker::new() };
        }
        self.give_up_waiting(number);
        let Some(session) = self.workers[number].session else {
            if !self.workers[number].asks(&Call::Register) {
                let lease_ms = LEASE_MS as i64;
                let queues = vec![name("q")];
                self.ask(number, Call::Register, Step::Register { queues, kinds: None, affinities: None, lease_ms });
            }
            return;
        };
        let worker = &self.workers[number];
        if self.now >= worker.last_beat + BEAT_EVERY_MS && !worker.asks(&Call::Beat { session }) {
            self.ask(number, Call::Beat { session }, Step::Heartbeat { worker: session, affinity: None });
        }
        let worker = &self.workers[number];
        if worker.held.len() < 2 && !worker.asks(&Call::Claim { session }) && self.rng.random_ratio(1, 2) {
            self.ask(number, Call::Claim { session }, Step::Claim { worker: session, max: 2, affinity: None });
        }
        self.settle_what_is_done(number, session);
    }

    fn settle_what_is_done(&mut self, number: usize, session: usize) {
        let now = self.now;
        let due = |held: &Held| held.done_at <= now && held.told.is_none_or(|told| told + PATIENCE_MS <= now);
        let done: Vec<(usize, Epoch, End)> = self.workers[number]
            .held
            .iter_mut()
            .filter(|(_, held)| due(held))
            .map(|(job, held)| {
                held.told = Some(now);
                (*job, held.epoch, held.end.clone())
            })
            .collect();
        for (job, epoch, end) in done {
            let call = Call::Settle { session, job, epoch, outcome: meaning(&end) };
            self.tell_settled(call, history::Answer::None, now);
            self.ask(number, call, Step::Settle { worker: session, outcomes: vec![(job, epoch, end)] });
        }
    }

    fn give_up_waiting(&mut self, number: usize) {
        let now = self.now;
        let overdue: Vec<u64> = self.workers[number]
            .waiting
            .iter()
            .filter(|(_, (_, since))| since + PATIENCE_MS <= now)
            .map(|(call, _)| *call)
            .collect();
        for call in overdue {
            let (call, _) = self.workers[number].waiting.remove(&call).expect("it waits");
            match call {
                // What it may have been given it does not know of: it says so by leaving.
                Call::Claim { session } if self.workers[number].session == Some(session) => self.leave(number),
                _ => {}
            }
        }
    }

    fn leave(&mut self, number: usize) {
        let Some(session) = self.workers[number].session.take() else { return };
        self.workers[number].held.clear();
        self.log.push(Event::Left { worker: id(session), asked: self.now });
        // Until it is heard: twice, with luck.
        for _ in 0..3 {
            self.call(Client::Worker(number), 0, Step::Remove { worker: session });
        }
    }

    fn tell_settled(&mut self, call: Call, answer: history::Answer, asked: At) {
        let Call::Settle { session, job, epoch, outcome } = call else { unreachable!("{call:?} settles nothing") };
        let (job, epoch, worker, at) = (id(job), epoch.0, id(session), self.now);
        self.log.push(Event::Settled { job, epoch, worker, outcome, answer, asked, at });
    }

    fn worker_answered(&mut self, number: usize, call: u64, answer: Answer) {
        // An answer to what it has given up, or to the one before it in its place.
        let Some((call, asked)) = self.workers[number].waiting.remove(&call) else { return };
        let (at, lease_ms) = (self.now, LEASE_MS);
        match (call, answer) {
            (Call::Register, Answer::Registered(session)) => {
                self.workers[number].session = Some(session);
                self.workers[number].last_beat = asked;
                self.log.push(Event::Beat { worker: id(session), asked, lease_ms });
            }
            // A word to a session that is over.
            (Call::Beat { session } | Call::Claim { session }, _) if self.workers[number].session != Some(session) => {}
            (Call::Beat { session }, Answer::Alive { cancel, .. }) => {
                let worker = &mut self.workers[number];
                worker.last_beat = asked;
                for job in cancel {
                    if let Some(held) = worker.held.get_mut(&job) {
                        (held.end, held.done_at) = (End::Cancel, at);
                    }
                }
                self.log.push(Event::Beat { worker: id(session), asked, lease_ms });
            }
            (Call::Claim { session }, Answer::Claimed(jobs)) => {
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
                    self.workers[number].held.insert(job, Held { epoch, done_at, end, told: None });
                }
            }
            (Call::Settle { job, epoch, .. }, Answer::Settled(statuses)) => {
                let applied = statuses == [Status::Applied];
                let answer = if applied { history::Answer::Applied } else { history::Answer::Refused };
                self.tell_settled(call, answer, asked);
                let held = &mut self.workers[number].held;
                if held.get(&job).is_some_and(|held| held.epoch == epoch) {
                    held.remove(&job);
                }
            }
            // Its lease has passed, or nobody knows it: it begins anew.
            (Call::Settle { .. }, Answer::NotFound) => {}
            (_, Answer::Gone | Answer::NotFound) => {
                self.workers[number].session = None;
                self.workers[number].held.clear();
            }
            (call, answer) => unreachable!("{call:?} was answered {answer:?}"),
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

fn meaning(end: &End) -> Outcome {
    match end {
        End::Finish(_) | End::FinishWith { .. } => Outcome::Finish,
        End::Fail(error) => Outcome::Fail { wait_ms: error.retryable.then_some(RETRY_MS) },
        End::Cancel => Outcome::Cancel,
        End::Snooze { delay_ms } => Outcome::Snooze { wait_ms: *delay_ms as At },
        End::Release => Outcome::Release,
    }
}

//! Logs of any size in which everything is well, and errors planted into them: what the checker is itself checked with.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::{Answer, At, Event, Fault, Outcome, State};

const WORKERS: u128 = 16;
const LEASE_MS: At = 5_000;
const WAIT_MS: At = 1_000;
const MAX_ATTEMPTS: i64 = 9;
/// Among so many jobs one breaks a promise.
const ONE_FAULT_IN: usize = 200;

/// A log and what was planted in it: the fault, and the job or event that it was done to.
pub struct Generated {
    pub log: Vec<Event>,
    pub planted: Vec<(Fault, Uuid)>,
}

/// At least `events` events. The same seed gives the same log.
pub fn generate(seed: u64, events: usize) -> Generated {
    let mut writer =
        Writer { rng: StdRng::seed_from_u64(seed), log: Vec::with_capacity(events), now: 1_000, number: 0 };
    let mut planted = Vec::new();
    while writer.log.len() < events {
        let fault = writer.rng.random_ratio(1, ONE_FAULT_IN as u32).then(|| {
            let fault = writer.rng.random_range(0..Fault::ALL.len());
            Fault::ALL[fault]
        });
        let of = match fault {
            Some(Fault::OutboxLost | Fault::OutboxTwice) => writer.event(fault),
            None if writer.rng.random_ratio(1, 5) => writer.event(None),
            fault => writer.job(fault),
        };
        planted.extend(fault.map(|fault| (fault, of)));
    }
    planted.sort();
    Generated { log: writer.log, planted }
}

struct Writer {
    rng: StdRng,
    log: Vec<Event>,
    now: At,
    number: u128,
}

impl Writer {
    fn id(&mut self) -> Uuid {
        self.number += 1;
        Uuid::from_u128(1_000 + self.number)
    }

    /// Time passes for everyone.
    fn pass(&mut self) -> At {
        self.now += self.rng.random_range(1..40);
        self.now
    }

    fn worker(&mut self) -> Uuid {
        Uuid::from_u128(self.rng.random_range(1..=WORKERS))
    }

    fn other_than(&mut self, worker: Uuid) -> Uuid {
        Uuid::from_u128(worker.as_u128() % WORKERS + 1)
    }

    fn event(&mut self, fault: Option<Fault>) -> Uuid {
        let event = self.id();
        self.log.push(Event::Published { event });
        let jobs = match fault {
            Some(Fault::OutboxLost) => 0,
            Some(_) => 2,
            None => 1,
        };
        for _ in 0..jobs {
            let job = self.job(None);
            self.log.push(Event::Made { event, job });
        }
        event
    }

    /// A life of a job: attempts that fail, expire, are given back or answered by nobody, and an end.
    fn job(&mut self, fault: Option<Fault>) -> Uuid {
        let job = self.id();
        let mut life = Life { job, epoch: 0, attempt: 0, worker: Uuid::nil() };
        self.log.push(Event::Enqueued { job, max_attempts: MAX_ATTEMPTS });
        for _ in 0..self.rng.random_range(0..4) {
            self.claim(&mut life);
            self.end_an_attempt(&mut life);
        }
        match fault {
            Some(Fault::HeldByTwo) if self.rng.random_ratio(1, 2) => {
                self.claim(&mut life);
                self.beat(life.worker);
                self.claim(&mut life);
            }
            Some(Fault::HeldByTwo) => {
                self.claim(&mut life);
                let other = self.other_than(life.worker);
                let (asked, at) = (self.pass(), self.pass());
                let Life { job, epoch, attempt, .. } = life;
                self.log.push(Event::Claimed { job, epoch, attempt, worker: other, asked, at });
            }
            Some(Fault::StaleAccepted) => {
                self.claim(&mut life);
                let stale = Life { ..life };
                self.take_over(&mut life);
                self.settle(&stale, Outcome::Release, Answer::Applied);
                self.settle(&life, Outcome::Release, Answer::Applied);
            }
            Some(Fault::AttemptsOverMaximum) => life.attempt = MAX_ATTEMPTS,
            Some(Fault::BackoffEarly) => {
                self.claim(&mut life);
                self.settle(&life, Outcome::Snooze { wait_ms: WAIT_MS }, Answer::Applied);
            }
            _ => {}
        }
        self.claim(&mut life);
        let state = self.end(&life);
        match fault {
            Some(Fault::Lost) => return job,
            Some(Fault::TerminalChanged) if self.rng.random_ratio(1, 2) => {
                self.pass();
                self.claim(&mut life);
            }
            Some(Fault::TerminalChanged) => {
                let other = if state == State::Failed { State::Succeeded } else { State::Failed };
                self.see(&life, other);
            }
            _ => {}
        }
        self.see(&life, state);
        job
    }

    fn beat(&mut self, worker: Uuid) {
        let asked = self.pass();
        self.log.push(Event::Beat { worker, asked, lease_ms: LEASE_MS });
    }

    fn claim(&mut self, life: &mut Life) {
        let worker = self.worker();
        self.claim_by(worker, life);
    }

    /// The worker was silent for longer than its lease, and another has the job.
    fn take_over(&mut self, life: &mut Life) {
        self.now += 2 * LEASE_MS;
        let other = self.other_than(life.worker);
        self.claim_by(other, life);
    }

    fn claim_by(&mut self, worker: Uuid, life: &mut Life) {
        life.epoch += 1;
        life.attempt += 1;
        life.worker = worker;
        if self.rng.random_ratio(1, 3) {
            self.beat(life.worker);
        }
        let (asked, at) = (self.pass(), self.pass());
        let Life { job, epoch, attempt, worker } = *life;
        self.log.push(Event::Claimed { job, epoch, attempt, worker, asked, at });
    }

    fn settle(&mut self, life: &Life, outcome: Outcome, answer: Answer) {
        let (asked, at) = (self.pass(), self.pass());
        let Life { job, epoch, worker, .. } = *life;
        self.log.push(Event::Settled { job, epoch, worker, outcome, answer, asked, at });
    }

    fn end_an_attempt(&mut self, life: &mut Life) {
        match self.rng.random_range(0..5) {
            0 => {
                self.settle(life, Outcome::Fail { wait_ms: Some(WAIT_MS) }, Answer::Applied);
                self.now += WAIT_MS;
            }
            1 => {
                self.settle(life, Outcome::Release, Answer::Applied);
                life.attempt -= 1;
            }
            // It is applied and the answer is lost: the job goes on at once.
            2 => self.settle(life, Outcome::Fail { wait_ms: Some(1) }, Answer::None),
            3 => {
                self.settle(life, Outcome::Snooze { wait_ms: WAIT_MS }, Answer::Applied);
                self.now += WAIT_MS;
                life.attempt -= 1;
            }
            // The worker freezes past its lease and is refused when it thaws.
            _ => {
                let stale = Life { ..*life };
                self.take_over(life);
                self.settle(&stale, Outcome::Finish, Answer::Refused);
                self.settle(life, Outcome::Release, Answer::Applied);
                life.attempt -= 1;
            }
        }
    }

    fn end(&mut self, life: &Life) -> State {
        match self.rng.random_range(0..8) {
            0 => {
                self.settle(life, Outcome::Fail { wait_ms: None }, Answer::Applied);
                State::Failed
            }
            1 => {
                let (asked, at) = (self.pass(), self.pass());
                self.log.push(Event::Canceled { job: life.job, answer: Answer::Applied, asked, at });
                self.settle(life, Outcome::Cancel, Answer::Applied);
                State::Canceled
            }
            _ => {
                self.settle(life, Outcome::Finish, Answer::Applied);
                State::Succeeded
            }
        }
    }

    fn see(&mut self, life: &Life, state: State) {
        let (asked, at) = (self.pass(), self.pass());
        self.log.push(Event::Seen { job: life.job, state, attempt: life.attempt, asked, at });
    }
}

struct Life {
    job: Uuid,
    epoch: i64,
    attempt: i64,
    worker: Uuid,
}

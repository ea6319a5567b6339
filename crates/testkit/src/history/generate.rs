//! Generates correct logs of any size with planted violations, to test the checker.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use super::{Event, Fault, Millis, Outcome, Response, State};

const WORKERS: u128 = 16;
const LEASE_MS: Millis = 5_000;
const WAIT_MS: Millis = 1_000;
const MAX_ATTEMPTS: i64 = 9;
/// One in this many jobs violates a guarantee.
const ONE_FAULT_IN: usize = 200;

/// A log, and the planted violations with their job or event.
pub struct Generated {
    pub log: Vec<Event>,
    pub planted: Vec<(Fault, Uuid)>,
}

/// Generates at least `events` events. Deterministic for a seed.
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
    now: Millis,
    number: u128,
}

impl Writer {
    fn id(&mut self) -> Uuid {
        self.number += 1;
        Uuid::from_u128(1_000 + self.number)
    }

    /// Advances the clock.
    fn advance(&mut self) -> Millis {
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
            self.log.push(Event::JobCreated { event, job });
        }
        event
    }

    /// A job's life: attempts that fail, expire, are released or get no response, and an end.
    fn job(&mut self, fault: Option<Fault>) -> Uuid {
        let job = self.id();
        let mut life = JobLife { job, epoch: 0, attempt: 0, worker: Uuid::nil() };
        self.log.push(Event::Enqueued { job, max_attempts: MAX_ATTEMPTS });
        for _ in 0..self.rng.random_range(0..4) {
            self.claim(&mut life);
            self.end_an_attempt(&mut life);
        }
        match fault {
            Some(Fault::HeldByTwo) if self.rng.random_ratio(1, 2) => {
                self.claim(&mut life);
                self.heartbeat(life.worker);
                self.claim(&mut life);
            }
            Some(Fault::HeldByTwo) => {
                self.claim(&mut life);
                let other = self.other_than(life.worker);
                let (asked, at) = (self.advance(), self.advance());
                let JobLife { job, epoch, attempt, .. } = life;
                self.log.push(Event::Claimed { job, epoch, attempt, worker: other, asked, at });
            }
            Some(Fault::StaleAccepted) => {
                self.claim(&mut life);
                let stale = JobLife { ..life };
                self.take_over(&mut life);
                self.settle(&stale, Outcome::Release, Response::Applied);
                self.settle(&life, Outcome::Release, Response::Applied);
            }
            Some(Fault::AttemptsOverMaximum) => life.attempt = MAX_ATTEMPTS,
            Some(Fault::BackoffEarly) => {
                self.claim(&mut life);
                self.settle(&life, Outcome::Snooze { wait_ms: WAIT_MS }, Response::Applied);
            }
            _ => {}
        }
        self.claim(&mut life);
        let state = self.end(&life);
        match fault {
            Some(Fault::Lost) => return job,
            Some(Fault::TerminalChanged) if self.rng.random_ratio(1, 2) => {
                self.advance();
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

    fn heartbeat(&mut self, worker: Uuid) {
        let asked = self.advance();
        self.log.push(Event::Heartbeat { worker, asked, lease_ms: LEASE_MS });
    }

    fn claim(&mut self, life: &mut JobLife) {
        let worker = self.worker();
        self.claim_by(worker, life);
    }

    /// The worker is silent for longer than its lease, and another worker claims the job.
    fn take_over(&mut self, life: &mut JobLife) {
        self.now += 2 * LEASE_MS;
        let other = self.other_than(life.worker);
        self.claim_by(other, life);
    }

    fn claim_by(&mut self, worker: Uuid, life: &mut JobLife) {
        life.epoch += 1;
        life.attempt += 1;
        life.worker = worker;
        if self.rng.random_ratio(1, 3) {
            self.heartbeat(life.worker);
        }
        let (asked, at) = (self.advance(), self.advance());
        let JobLife { job, epoch, attempt, worker } = *life;
        self.log.push(Event::Claimed { job, epoch, attempt, worker, asked, at });
    }

    fn settle(&mut self, life: &JobLife, outcome: Outcome, answer: Response) {
        let (asked, at) = (self.advance(), self.advance());
        let JobLife { job, epoch, worker, .. } = *life;
        self.log.push(Event::Settled { job, epoch, worker, outcome, answer, asked, at });
    }

    fn end_an_attempt(&mut self, life: &mut JobLife) {
        match self.rng.random_range(0..5) {
            0 => {
                self.settle(life, Outcome::Fail { wait_ms: Some(WAIT_MS) }, Response::Applied);
                self.now += WAIT_MS;
            }
            1 => {
                self.settle(life, Outcome::Release, Response::Applied);
                life.attempt -= 1;
            }
            // Applied, but the response is lost. The job continues at once.
            2 => self.settle(life, Outcome::Fail { wait_ms: Some(1) }, Response::Unknown),
            3 => {
                self.settle(life, Outcome::Snooze { wait_ms: WAIT_MS }, Response::Applied);
                self.now += WAIT_MS;
                life.attempt -= 1;
            }
            // The worker freezes past its lease, and is refused afterwards.
            _ => {
                let stale = JobLife { ..*life };
                self.take_over(life);
                self.settle(&stale, Outcome::Finish, Response::Refused);
                self.settle(life, Outcome::Release, Response::Applied);
                life.attempt -= 1;
            }
        }
    }

    fn end(&mut self, life: &JobLife) -> State {
        match self.rng.random_range(0..8) {
            0 => {
                self.settle(life, Outcome::Fail { wait_ms: None }, Response::Applied);
                State::Failed
            }
            1 => {
                let (asked, at) = (self.advance(), self.advance());
                self.log.push(Event::Canceled { job: life.job, answer: Response::Applied, asked, at });
                self.settle(life, Outcome::Cancel, Response::Applied);
                State::Canceled
            }
            _ => {
                self.settle(life, Outcome::Finish, Response::Applied);
                State::Succeeded
            }
        }
    }

    fn see(&mut self, life: &JobLife, state: State) {
        let (asked, at) = (self.advance(), self.advance());
        self.log.push(Event::Observed { job: life.job, state, attempt: life.attempt, asked, at });
    }
}

struct JobLife {
    job: Uuid,
    epoch: i64,
    attempt: i64,
    worker: Uuid,
}

//! A deterministic simulation of an installation in one thread with virtual time: producers, workers, nodes with their
//! tasks, and a network that delays, loses, duplicates and reorders messages. It runs on the reference model, from one
//! seed.
//!
//! `history` checks what the clients observed. After the faults stop, all jobs must end.

mod clients;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use domain::limits::{OUTAGE_AT_START_MS, OUTAGE_MS, SERVICE_HEARTBEAT_MS};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::history::{Event, Millis, State, Verdict, check};
use crate::model::{Model, Step, StepResult, settings};
use crate::name;

use clients::{Producer, Worker};

/// When faults stop. All remaining jobs must then end.
const STORM_MS: Millis = 18_000;
/// When all jobs must have ended.
const END_MS: Millis = 400_000;
const JOBS: usize = 12;
const WORKERS: usize = 3;
const LATENCY_MS: std::ops::Range<Millis> = 1..300;

/// A scheduled event.
#[derive(Debug)]
enum Message {
    /// A request to a node.
    Call {
        from: Client,
        number: u64,
        step: Step,
    },
    /// The response to a request.
    Response {
        to: Client,
        number: u64,
        answer: StepResult,
    },
    /// A client's timer.
    Wake {
        who: Client,
    },
    Heartbeat {
        node: usize,
    },
    /// A node runs one of its tasks.
    Task {
        node: usize,
    },
    NodeStops {
        node: usize,
    },
    NodeStarts {
        node: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Client {
    Producer(usize),
    Worker(usize),
}

/// The result of one seed.
pub struct SimulationResult {
    pub verdict: Verdict,
    pub steps: usize,
    /// Jobs that had not ended at the end. Must be empty.
    pub unfinished: Vec<String>,
}

/// Runs one seed to its end.
pub fn simulate(seed: u64) -> SimulationResult {
    let mut world = World::new(seed);
    while let Some(Reverse((at, _, message))) = world.queue.pop() {
        if at > END_MS || world.is_over() {
            break;
        }
        world.pass_to(at);
        world.steps += 1;
        let message = world.sent.remove_at(message);
        world.arrive(message);
    }
    world.close()
}

/// Messages by number, because the heap orders by time alone.
#[derive(Default)]
struct MessageStore {
    messages: Vec<Option<Message>>,
}

impl MessageStore {
    fn add(&mut self, message: Message) -> usize {
        self.messages.push(Some(message));
        self.messages.len() - 1
    }

    fn remove_at(&mut self, number: usize) -> Message {
        self.messages[number].take().expect("a message is delivered once")
    }
}

struct World {
    rng: StdRng,
    model: Model,
    now: Millis,
    steps: usize,
    queue: BinaryHeap<Reverse<(Millis, u64, usize)>>,
    sent: MessageStore,
    /// Keeps messages for the same time in order.
    order: u64,
    nodes: Vec<bool>,
    last_heartbeat: Millis,
    producers: Vec<Producer>,
    workers: Vec<Worker>,
    log: Vec<Event>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let nodes = vec![true; rng.random_range(1..4)];
        let mut world = Self {
            model: Model::new(),
            now: 0,
            steps: 0,
            queue: BinaryHeap::new(),
            sent: MessageStore::default(),
            order: 0,
            last_heartbeat: 0,
            producers: (0..JOBS).map(Producer::new).collect(),
            workers: (0..WORKERS).map(|_| Worker::new()).collect(),
            log: Vec::new(),
            nodes,
            rng,
        };
        world.model.run(&Step::Put { queue: name("q"), settings: settings() });
        for node in 0..world.nodes.len() {
            world.in_ms(1, Message::Heartbeat { node });
            world.in_ms(1, Message::Task { node });
            if world.rng.random_ratio(2, 3) {
                let at = world.rng.random_range(1..STORM_MS / 2);
                world.in_ms(at, Message::NodeStops { node });
            }
        }
        for producer in 0..JOBS {
            let at = world.rng.random_range(1..STORM_MS / 2);
            world.in_ms(at, Message::Wake { who: Client::Producer(producer) });
        }
        for worker in 0..WORKERS {
            world.in_ms(1, Message::Wake { who: Client::Worker(worker) });
        }
        world
    }

    fn in_ms(&mut self, millis: Millis, message: Message) {
        self.order += 1;
        let number = self.sent.add(message);
        self.queue.push(Reverse((self.now + millis, self.order, number)));
    }

    fn pass_to(&mut self, at: Millis) {
        self.model.pass_ms((at - self.now) as i64);
        self.now = at;
    }

    fn is_stormy(&self) -> bool {
        self.now < STORM_MS
    }

    /// True if the faults have stopped and all jobs have ended.
    fn is_over(&self) -> bool {
        !self.is_stormy()
            && self.producers.iter().all(Producer::is_done)
            && self.model.jobs.iter().all(|job| job.job.job_state().is_terminal())
    }

    /// Returns true with a probability of one in `one_in`, while faults occur.
    fn fault_occurs(&mut self, one_in: u32) -> bool {
        self.is_stormy() && self.rng.random_ratio(1, one_in)
    }

    fn latency(&mut self) -> Millis {
        self.rng.random_range(LATENCY_MS)
    }

    fn call(&mut self, from: Client, number: u64, step: Step) {
        // A duplicate claim or registration is a second one. All other requests must be idempotent.
        if !matches!(step, Step::Claim { .. } | Step::Register { .. }) && self.fault_occurs(12) {
            let later = 5 * self.latency();
            self.in_ms(later, Message::Call { from, number, step: step.clone() });
        }
        let latency = self.latency();
        self.in_ms(latency, Message::Call { from, number, step });
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Call { from, number, step } => self.serve(from, number, &step),
            Message::Response { to, number, answer } => self.answered(to, number, answer),
            Message::Wake { who } => self.woken(who),
            Message::Heartbeat { node } => {
                if self.nodes[node] {
                    self.heartbeat(OUTAGE_MS as Millis);
                }
                self.in_ms(SERVICE_HEARTBEAT_MS as Millis, Message::Heartbeat { node });
            }
            Message::Task { node } => {
                if self.nodes[node] {
                    let task = match self.rng.random_range(0..5) {
                        0 => Step::RepairParked,
                        1 => Step::Fold,
                        2 => Step::Sweep,
                        3 => Step::Scan,
                        _ => Step::Promote,
                    };
                    self.model.run(&task);
                }
                let pause = self.rng.random_range(100..700);
                self.in_ms(pause, Message::Task { node });
            }
            Message::NodeStops { node } => {
                self.nodes[node] = false;
                let down = self.rng.random_range(100..8_000);
                self.in_ms(down, Message::NodeStarts { node });
            }
            Message::NodeStarts { node } => {
                self.nodes[node] = true;
                self.heartbeat(OUTAGE_AT_START_MS as Millis);
                if self.fault_occurs(2) {
                    let later = self.rng.random_range(1_000..10_000);
                    self.in_ms(later, Message::NodeStops { node });
                }
            }
        }
    }

    /// If all nodes were silent, the service was down, and no worker's lease expires for it.
    fn heartbeat(&mut self, silence: Millis) {
        if self.now - self.last_heartbeat > silence {
            self.model.outage(0);
        }
        self.last_heartbeat = self.now;
    }

    fn serve(&mut self, from: Client, number: u64, step: &Step) {
        let node = self.rng.random_range(0..self.nodes.len());
        if !self.nodes[node] || self.fault_occurs(20) {
            return;
        }
        let answer = self.model.run(step);
        // The commit succeeded, but the node or the response is lost.
        if self.fault_occurs(20) {
            return;
        }
        let latency = self.latency();
        self.in_ms(latency, Message::Response { to: from, number, answer });
    }

    fn close(mut self) -> SimulationResult {
        let at = self.now;
        let mut unfinished = Vec::new();
        for (number, job) in self.model.jobs.iter().enumerate() {
            let state = State::parse(&job.job.job_state().to_string());
            if state == State::Live {
                unfinished.push(format!("{number}: {job:?}"));
            }
            self.log.push(Event::Observed { job: id(number), state, attempt: job.job.attempt.into(), asked: at, at });
        }
        let waiting = self.producers.iter().filter(|producer| !producer.is_done());
        unfinished.extend(waiting.map(|producer| format!("{producer:?}")));
        SimulationResult { verdict: check(&self.log), steps: self.steps, unfinished }
    }
}

/// The log's id for a number of the model.
fn id(number: usize) -> Uuid {
    Uuid::from_u128(number as u128 + 1)
}

//! A whole installation in one thread with time of its own: producers, workers, nodes with their tasks, and a network that
//! delays, loses, doubles and reorders, all on the reference model and all from one seed.
//!
//! What the clients saw is judged by `history`; and once the faults have ceased, everything must come to its end.

mod clients;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use domain::limits::{OUTAGE_AT_START_MS, OUTAGE_MS, SERVICE_BEAT_MS};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

use crate::history::{At, Event, State, Verdict, check};
use crate::model::{Answer, Model, Step, settings};
use crate::name;

use clients::{Producer, Worker};

/// Faults cease here; what is left must then come to its end.
const STORM_MS: At = 18_000;
/// By now it has.
const END_MS: At = 400_000;
const JOBS: usize = 12;
const WORKERS: usize = 3;
const LATENCY_MS: std::ops::Range<At> = 1..300;

/// What is on its way.
#[derive(Debug)]
enum Parcel {
    /// A call, to a node.
    Call {
        from: Client,
        number: u64,
        step: Step,
    },
    /// Its answer.
    Answer {
        to: Client,
        number: u64,
        answer: Answer,
    },
    /// Somebody's alarm clock.
    Wake {
        who: Client,
    },
    Beat {
        node: usize,
    },
    /// A task of a node runs.
    Task {
        node: usize,
    },
    NodeDies {
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

/// What a seed came to.
pub struct Run {
    pub verdict: Verdict,
    pub steps: usize,
    /// Jobs that had not ended when all was over: there must be none.
    pub unfinished: Vec<String>,
}

/// Plays one seed to its end.
pub fn simulate(seed: u64) -> Run {
    let mut world = World::new(seed);
    while let Some(Reverse((at, _, parcel))) = world.parcels.pop() {
        if at > END_MS || world.is_over() {
            break;
        }
        world.pass_to(at);
        world.steps += 1;
        let parcel = world.sent.remove_at(parcel);
        world.arrive(parcel);
    }
    world.close()
}

/// Parcels by number: a heap orders by time alone.
#[derive(Default)]
struct Sent {
    parcels: Vec<Option<Parcel>>,
}

impl Sent {
    fn add(&mut self, parcel: Parcel) -> usize {
        self.parcels.push(Some(parcel));
        self.parcels.len() - 1
    }

    fn remove_at(&mut self, number: usize) -> Parcel {
        self.parcels[number].take().expect("a parcel arrives once")
    }
}

struct World {
    rng: StdRng,
    model: Model,
    now: At,
    steps: usize,
    parcels: BinaryHeap<Reverse<(At, u64, usize)>>,
    sent: Sent,
    /// So that what is due at the same moment keeps its order.
    order: u64,
    nodes: Vec<bool>,
    last_beat: At,
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
            parcels: BinaryHeap::new(),
            sent: Sent::default(),
            order: 0,
            last_beat: 0,
            producers: (0..JOBS).map(Producer::new).collect(),
            workers: (0..WORKERS).map(|_| Worker::new()).collect(),
            log: Vec::new(),
            nodes,
            rng,
        };
        world.model.run(&Step::Put { queue: name("q"), settings: settings() });
        for node in 0..world.nodes.len() {
            world.in_ms(1, Parcel::Beat { node });
            world.in_ms(1, Parcel::Task { node });
            if world.rng.random_ratio(2, 3) {
                let at = world.rng.random_range(1..STORM_MS / 2);
                world.in_ms(at, Parcel::NodeDies { node });
            }
        }
        for producer in 0..JOBS {
            let at = world.rng.random_range(1..STORM_MS / 2);
            world.in_ms(at, Parcel::Wake { who: Client::Producer(producer) });
        }
        for worker in 0..WORKERS {
            world.in_ms(1, Parcel::Wake { who: Client::Worker(worker) });
        }
        world
    }

    fn in_ms(&mut self, millis: At, parcel: Parcel) {
        self.order += 1;
        let number = self.sent.add(parcel);
        self.parcels.push(Reverse((self.now + millis, self.order, number)));
    }

    fn pass_to(&mut self, at: At) {
        self.model.pass_ms((at - self.now) as i64);
        self.now = at;
    }

    fn is_stormy(&self) -> bool {
        self.now < STORM_MS
    }

    /// No more faults, and nothing left to do.
    fn is_over(&self) -> bool {
        !self.is_stormy()
            && self.producers.iter().all(Producer::is_done)
            && self.model.jobs.iter().all(|job| job.job.job_state().is_terminal())
    }

    /// One in so many, while there are faults at all.
    fn misfortune(&mut self, one_in: u32) -> bool {
        self.is_stormy() && self.rng.random_ratio(1, one_in)
    }

    fn latency(&mut self) -> At {
        self.rng.random_range(LATENCY_MS)
    }

    fn call(&mut self, from: Client, number: u64, step: Step) {
        // A claim that comes twice is two claims; everything else may come twice and must mean the same.
        if !matches!(step, Step::Claim { .. } | Step::Register { .. }) && self.misfortune(12) {
            let later = 5 * self.latency();
            self.in_ms(later, Parcel::Call { from, number, step: step.clone() });
        }
        let latency = self.latency();
        self.in_ms(latency, Parcel::Call { from, number, step });
    }

    fn arrive(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Call { from, number, step } => self.serve(from, number, &step),
            Parcel::Answer { to, number, answer } => self.answered(to, number, answer),
            Parcel::Wake { who } => self.woken(who),
            Parcel::Beat { node } => {
                if self.nodes[node] {
                    self.beat(OUTAGE_MS as At);
                }
                self.in_ms(SERVICE_BEAT_MS as At, Parcel::Beat { node });
            }
            Parcel::Task { node } => {
                if self.nodes[node] {
                    let task = match self.rng.random_range(0..5) {
                        0 => Step::Unpark,
                        1 => Step::Fold,
                        2 => Step::Sweep,
                        3 => Step::Scan,
                        _ => Step::Promote,
                    };
                    self.model.run(&task);
                }
                let pause = self.rng.random_range(100..700);
                self.in_ms(pause, Parcel::Task { node });
            }
            Parcel::NodeDies { node } => {
                self.nodes[node] = false;
                let down = self.rng.random_range(100..8_000);
                self.in_ms(down, Parcel::NodeStarts { node });
            }
            Parcel::NodeStarts { node } => {
                self.nodes[node] = true;
                self.beat(OUTAGE_AT_START_MS as At);
                if self.misfortune(2) {
                    let later = self.rng.random_range(1_000..10_000);
                    self.in_ms(later, Parcel::NodeDies { node });
                }
            }
        }
    }

    /// Silence of all nodes is an outage of ours, for which no worker pays.
    fn beat(&mut self, silence: At) {
        if self.now - self.last_beat > silence {
            self.model.outage(0);
        }
        self.last_beat = self.now;
    }

    fn serve(&mut self, from: Client, number: u64, step: &Step) {
        let node = self.rng.random_range(0..self.nodes.len());
        if !self.nodes[node] || self.misfortune(20) {
            return;
        }
        let answer = self.model.run(step);
        // The commit held and the node is gone, or the answer is.
        if self.misfortune(20) {
            return;
        }
        let latency = self.latency();
        self.in_ms(latency, Parcel::Answer { to: from, number, answer });
    }

    fn close(mut self) -> Run {
        let at = self.now;
        let mut unfinished = Vec::new();
        for (number, job) in self.model.jobs.iter().enumerate() {
            let state = State::named(&job.job.job_state().to_string());
            if state == State::Live {
                unfinished.push(format!("{number}: {job:?}"));
            }
            self.log.push(Event::Seen { job: id(number), state, attempt: job.job.attempt.into(), asked: at, at });
        }
        let waiting = self.producers.iter().filter(|producer| !producer.is_done());
        unfinished.extend(waiting.map(|producer| format!("{producer:?}")));
        Run { verdict: check(&self.log), steps: self.steps, unfinished }
    }
}

/// Jobs and workers of the model go by number; a log has ids.
fn id(number: usize) -> Uuid {
    Uuid::from_u128(number as u128 + 1)
}

//! The world: an event queue over virtual seconds, workers that claim by `queue::claim::next_lanes`, and answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::name::Label;
use crate::queue::claim::{LaneHead, next_lanes};
use crate::queue::retry::RetryPolicy;
use crate::signals::eta::arrivals::{ArrivalRate, Arrivals, TOGETHER_MS, of_unfinished};
use crate::signals::eta::calibration::Answer;
use crate::signals::eta::durations::Durations;
use crate::signals::eta::line::{
    Forecast, LINE_ENTRIES, Line, LineEntry, LineLane, LineRate, LineWorker, OwnJob, RUNS, RunningWork,
    running_forecast,
};
use crate::signals::eta::progress::Progress;
use crate::signals::eta::random::{RandomSource, normal_quantile};
use crate::signals::eta::retries::{ATTEMPTS, AttemptShares, RetryForecast};
use crate::signals::eta::statistics::{EndedWork, Statistics, WorkHistory};
use crate::time::Time;

/// Jobs in line beyond which no further ones arrive, so that an overloaded world stays finite.
const BACKLOG_MAX: usize = 400;
/// Answers per job.
const ASKS: usize = 4;
/// The oracle answers for one of so many jobs. It takes most of the time, and a median needs few answers.
const ORACLE_EVERY: usize = 4;

#[derive(Clone, Copy, Debug)]
pub struct LogNormal {
    pub median_s: f64,
    pub deviation: f64,
}

impl LogNormal {
    fn draw(&self, random: &mut RandomSource) -> f64 {
        self.median_s * (self.deviation * random.normal()).exp()
    }

    /// The true distribution.
    fn exact(&self) -> Durations {
        const ENTRIES: usize = 1_000;
        let at = |n: usize| normal_quantile((n as f64 + 0.5) / ENTRIES as f64);
        let table = (0..ENTRIES).map(|n| self.median_s * (self.deviation * at(n)).exp()).collect();
        Durations::from_table(table, 1e6)
    }

    fn scaled(self, factor: f64) -> Self {
        Self { median_s: self.median_s * factor, ..self }
    }
}

/// Jobs that arrive: their kind, priority and affinity.
#[derive(Clone, Debug)]
pub struct WorkKind {
    /// Statistics are kept by kind. Several entries may have the same.
    pub kind: usize,
    pub priority: i32,
    pub affinity: Option<&'static str>,
    pub run: LogNormal,
    pub load: LogNormal,
    /// Mean time between arrivals of a burst, and the greatest number of jobs in one.
    pub every_s: f64,
    pub burst: usize,
    /// Share of the attempts that fail.
    pub failing: f64,
    /// Progress is reported in twentieths. The median of its exponent (1 is linear in time) and how much the jobs differ.
    pub progress: Option<LogNormal>,
    /// The jobs do not say which of this many models they need, so the worker loads it while they run.
    pub hidden_models: usize,
}

/// A sudden change.
#[derive(Clone, Copy, Debug)]
pub struct Shift {
    /// After this number of jobs.
    pub after: usize,
    pub factor: f64,
    pub workers_lost: usize,
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub kinds: Vec<WorkKind>,
    pub workers: usize,
    pub concurrency: usize,
    pub limit: Option<usize>,
    pub rate_per_s: Option<f64>,
    pub starvation_s: f64,
    pub retry: RetryPolicy,
    pub max_attempts: u32,
    pub jobs: usize,
    pub shift: Option<Shift>,
    /// All jobs are pushed at the start, in random order.
    pub is_backlog: bool,
    /// Every job is asked for its ETA at this interval, and all answers are measured. Otherwise a job is asked a few times,
    /// and the first answer of each horizon is measured.
    pub ask_every_s: Option<f64>,
    /// Time between the end of a job and the next claim of its worker.
    pub turnaround_s: f64,
    /// How much the run times of the kinds differ from their medians in each world: deviation of the logarithm.
    pub kind_spread: f64,
}

/// An answer, what the oracle answered, and what happened.
#[derive(Clone, Debug)]
pub(super) struct Scored {
    pub at_s: f64,
    pub ended_s: f64,
    pub answer: Answer,
    pub oracle: Option<Forecast>,
    pub progress: Option<f64>,
}

impl Scored {
    pub(super) fn took_s(&self) -> f64 {
        self.ended_s - self.at_s
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Running { worker: usize, started_s: f64, begun_s: f64, ends_s: f64, fails: bool },
    BackedOff { until_s: f64 },
    Ended,
}

/// An answer with its time, the oracle's answer and the progress at that time.
#[derive(Clone, Copy, Debug)]
struct Asked {
    at_s: f64,
    answer: Answer,
    oracle: Option<Forecast>,
    progress: Option<f64>,
    /// The first answer of its horizon: it corrects later ones.
    is_first: bool,
}

#[derive(Debug)]
struct SimulatedJob {
    kind: usize,
    arrived_s: f64,
    ready_s: f64,
    state: State,
    attempt: u32,
    last_wait_s: Option<u64>,
    answers: Vec<Asked>,
    /// The exponent of its progress.
    exponent: Option<f64>,
    turnaround_s: Option<f64>,
}

impl SimulatedJob {
    fn entry(&self, number: usize, now_s: f64) -> LineEntry {
        LineEntry { ready_s: self.ready_s - now_s, order: number as u128 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WorldEvent {
    Arrive(usize),
    Ready(usize),
    End(usize, u32),
    Ask(usize),
    /// The rate limit permits another start, or a worker claims again.
    Wake,
    AskAll,
}

struct Worker {
    is_lost: bool,
    loaded: Option<Label>,
    /// The model that was loaded for jobs which do not say what they need.
    hidden_model: usize,
    claims_again_s: f64,
    /// When its last job ended.
    ended_s: Option<f64>,
    running: Vec<usize>,
}

pub(super) struct World {
    workload: Workload,
    random: RandomSource,
    /// Separate, so that the questions do not change the world.
    asking: RandomSource,
    now_s: f64,
    events: BinaryHeap<Reverse<(u64, u64, WorldEvent)>>,
    sequence: u64,
    jobs: Vec<SimulatedJob>,
    lanes: Vec<VecDeque<usize>>,
    workers: Vec<Worker>,
    tokens: (f64, f64),
    histories: Vec<WorkHistory>,
    /// What the estimator and the oracle know, by kind.
    statistics: Vec<Statistics>,
    exact: Vec<Statistics>,
    rates: Vec<ArrivalRate>,
    /// By lane: when the job arrived that ended last.
    last_arrived_s: Vec<f64>,
    shifted_s: Option<f64>,
    scored: Vec<Scored>,
}

impl World {
    pub(super) fn new(mut workload: Workload, seed: u64) -> Self {
        let mut random = RandomSource::new(seed);
        if workload.kind_spread > 0.0 {
            for kind in &mut workload.kinds {
                kind.run = kind.run.scaled((workload.kind_spread * random.normal()).exp());
            }
        }
        let kinds = workload.kinds.iter().map(|kind| kind.kind).max().unwrap_or(0) + 1;
        let worker = || Worker {
            is_lost: false,
            loaded: None,
            hidden_model: usize::MAX,
            claims_again_s: 0.0,
            ended_s: None,
            running: Vec::new(),
        };
        let mut world = Self {
            random,
            asking: RandomSource::new(seed ^ 0x5EED),
            now_s: 0.0,
            events: BinaryHeap::new(),
            sequence: 0,
            jobs: Vec::new(),
            lanes: workload.kinds.iter().map(|_| VecDeque::new()).collect(),
            workers: (0..workload.workers).map(|_| worker()).collect(),
            tokens: (workload.rate_per_s.unwrap_or(0.0).max(1.0), 0.0),
            histories: vec![WorkHistory::default(); kinds],
            rates: vec![ArrivalRate::default(); workload.kinds.len()],
            last_arrived_s: vec![f64::NEG_INFINITY; workload.kinds.len()],
            shifted_s: None,
            scored: Vec::new(),
            statistics: vec![Statistics::default(); kinds],
            exact: Vec::new(),
            workload,
        };
        world.exact = world.true_distributions();
        world
    }

    /// Runs until all jobs have ended, and returns the scored answers in the order of their questions,
    /// with the time of the shift.
    pub(super) fn run(mut self) -> (Vec<Scored>, Option<f64>) {
        for kind in 0..self.workload.kinds.len() {
            let first_s = self.random.exponential(self.workload.kinds[kind].every_s);
            self.at(first_s, WorldEvent::Arrive(kind));
        }
        if self.workload.is_backlog {
            self.events.clear();
            for _ in 0..self.workload.jobs {
                let kind = self.random.below(self.workload.kinds.len());
                self.push(kind);
            }
            self.claim();
        }
        if let Some(interval_s) = self.workload.ask_every_s {
            self.at(interval_s, WorldEvent::AskAll);
        }
        while let Some(Reverse((at_us, _, event))) = self.events.pop() {
            self.now_s = at_us as f64 / 1e6;
            match event {
                WorldEvent::Arrive(kind) => self.arrive(kind),
                WorldEvent::Ready(job) => self.ready(job),
                WorldEvent::End(job, attempt) => self.end(job, attempt),
                WorldEvent::Ask(job) => self.ask(job),
                WorldEvent::AskAll => self.ask_all(),
                WorldEvent::Wake => {}
            }
            self.claim();
        }
        self.scored.sort_by(|one, other| one.at_s.total_cmp(&other.at_s));
        (self.scored, self.shifted_s)
    }

    fn at(&mut self, at_s: f64, event: WorldEvent) {
        self.sequence += 1;
        self.events.push(Reverse(((at_s.max(self.now_s) * 1e6).ceil() as u64, self.sequence, event)));
    }

    fn arrive(&mut self, kind: usize) {
        if self.jobs.len() >= self.workload.jobs {
            return;
        }
        if let Some(Shift { factor, workers_lost, .. }) =
            self.workload.shift.filter(|shift| self.shifted_s.is_none() && self.jobs.len() >= shift.after)
        {
            self.shifted_s = Some(self.now_s);
            for kind in &mut self.workload.kinds {
                kind.run = kind.run.scaled(factor);
                kind.every_s *= factor * self.workload.workers as f64 / (self.workload.workers - workers_lost) as f64;
            }
            for worker in self.workers.iter_mut().take(workers_lost) {
                worker.is_lost = true;
            }
            self.exact = self.true_distributions();
        }
        let WorkKind { every_s, burst, .. } = self.workload.kinds[kind];
        let count = 1 + self.random.below(burst.max(1));
        for _ in 0..count {
            if self.lanes.iter().map(VecDeque::len).sum::<usize>() >= BACKLOG_MAX {
                break;
            }
            let job = self.push(kind);
            if self.workload.ask_every_s.is_some() {
                continue;
            }
            self.ask(job);
            let mut ask_s = self.now_s;
            for _ in 1..ASKS {
                ask_s += self.asking.exponential(self.workload.kinds[kind].run.median_s);
                self.at(ask_s, WorldEvent::Ask(job));
            }
        }
        let next_s = self.now_s + self.random.exponential(every_s);
        self.at(next_s, WorldEvent::Arrive(kind));
    }

    fn push(&mut self, kind: usize) -> usize {
        let job = self.jobs.len();
        let exponent = self.workload.kinds[kind].progress.map(|exponent| exponent.draw(&mut self.asking));
        self.jobs.push(SimulatedJob {
            kind,
            arrived_s: self.now_s,
            ready_s: self.now_s,
            state: State::Waiting,
            attempt: 0,
            last_wait_s: None,
            answers: Vec::new(),
            exponent,
            turnaround_s: None,
        });
        self.lanes[kind].push_back(job);
        job
    }

    fn ask_all(&mut self) {
        let mut has_open = self.jobs.len() < self.workload.jobs;
        for job in 0..self.jobs.len() {
            has_open |= self.jobs[job].state != State::Ended;
            self.ask(job);
        }
        if let Some(interval_s) = self.workload.ask_every_s.filter(|_| has_open) {
            self.at(self.now_s + interval_s, WorldEvent::AskAll);
        }
    }

    fn ready(&mut self, job: usize) {
        self.jobs[job].state = State::Waiting;
        self.lanes[self.jobs[job].kind].push_back(job);
    }

    fn end(&mut self, number: usize, attempt: u32) {
        let job = &self.jobs[number];
        let State::Running { worker, started_s, begun_s, fails, .. } = job.state else { return };
        if job.attempt != attempt {
            return;
        }
        self.workers[worker].running.retain(|running| *running != number);
        self.workers[worker].ended_s = Some(self.now_s);
        if self.workload.turnaround_s > 0.0 {
            self.workers[worker].claims_again_s = self.now_s + self.workload.turnaround_s;
            self.at(self.now_s + self.workload.turnaround_s, WorldEvent::Wake);
        }
        let job = &self.jobs[number];
        let kind = self.workload.kinds[job.kind].clone();
        if fails && job.attempt < self.workload.max_attempts {
            let wait_s = self.workload.retry.next_wait_s(job.last_wait_s);
            let jitter_s = self.workload.retry.jitter_ms(wait_s, self.random.unit()) as f64 / 1e3;
            let until_s = self.now_s + wait_s as f64 + jitter_s;
            let job = &mut self.jobs[number];
            job.last_wait_s = Some(wait_s);
            job.ready_s = until_s;
            job.state = State::BackedOff { until_s };
            return self.at(until_s, WorldEvent::Ready(number));
        }
        let (now_s, max_attempts) = (self.now_s, self.workload.max_attempts);
        let job = &mut self.jobs[number];
        job.state = State::Ended;
        let answers = std::mem::take(&mut job.answers);
        let reports = job.exponent.map(|exponent| {
            (1..20).map(move |twentieth| {
                let share = f64::from(twentieth) / 20.0;
                Progress { share, elapsed_s: share.powf(exponent) * (now_s - begun_s) }
            })
        });
        let ended = EndedWork {
            run_s: now_s - begun_s,
            load_s: Some(begun_s - started_s),
            wait_s: started_s - job.ready_s,
            turnaround_s: job.turnaround_s,
            begins_burst: (job.arrived_s - self.last_arrived_s[job.kind]).abs() > TOGETHER_MS as f64 / 1e3,
            attempt: job.attempt,
            was_last_permitted: job.attempt >= max_attempts,
            was_canceled: false,
            progress: reports.into_iter().flatten().collect(),
            answers: answers.iter().filter(|one| one.is_first).map(|one| (one.answer, now_s - one.at_s)).collect(),
        };
        let (lane, age_s) = (job.kind, now_s - job.arrived_s);
        self.last_arrived_s[lane] = job.arrived_s;
        self.histories[kind.kind].observe(&ended);
        self.refresh_statistics();
        self.exact[kind.kind].wait.clone_from(&self.statistics[kind.kind].wait);
        self.rates[lane].observe(now_s, age_s, 1.0);
        for Asked { at_s, answer, oracle, progress, .. } in answers {
            self.scored.push(Scored { at_s, ended_s: now_s, answer, oracle, progress });
        }
    }

    /// Affinities are other affinities of the same kind of work.
    fn refresh_statistics(&mut self) {
        let has_affinity =
            |number: usize| self.workload.kinds.iter().any(|kind| kind.kind == number && kind.affinity.is_some());
        for number in 0..self.histories.len() {
            let own = &self.histories[number];
            let others = (0..self.histories.len()).filter(|other| *other != number && has_affinity(*other));
            self.statistics[number] = match has_affinity(number) && own.needs_kin() {
                true => own.statistics_with(&others.map(|other| self.histories[other].clone()).collect::<Vec<_>>()),
                false => own.statistics(),
            };
        }
    }

    /// Lets every worker with free capacity claim, by the rules of the store.
    fn claim(&mut self) {
        loop {
            let mut claimed = false;
            for number in 0..self.workers.len() {
                claimed |= self.claim_one(number);
            }
            if !claimed {
                return;
            }
        }
    }

    fn running(&self) -> usize {
        self.workers.iter().map(|worker| worker.running.len()).sum()
    }

    fn claim_one(&mut self, number: usize) -> bool {
        let worker = &self.workers[number];
        if worker.is_lost
            || worker.running.len() >= self.workload.concurrency
            || self.now_s + 1e-6 < worker.claims_again_s
        {
            return false;
        }
        if self.workload.limit.is_some_and(|limit| self.running() >= limit) {
            return false;
        }
        let now = Time::from_micros((self.now_s * 1e6) as i64);
        let head = |lane: usize| {
            let job = *self.lanes[lane].front()?;
            let kind = &self.workload.kinds[lane];
            Some(LaneHead {
                lane: lane as i64,
                priority: kind.priority,
                affinity: kind.affinity.map(Label::stored),
                waiting_since: Time::from_micros((self.jobs[job].ready_s * 1e6) as i64),
                order: job as u128,
                starvation_ms: (self.workload.starvation_s * 1e3) as i64,
            })
        };
        let heads: Vec<LaneHead> = (0..self.lanes.len()).filter_map(head).collect();
        let Some(choice) = next_lanes(&heads, &worker.loaded, now) else { return false };
        // A worker loads another model when its running jobs have ended.
        if choice.swap && !worker.running.is_empty() {
            return false;
        }
        if let Some(rate) = self.workload.rate_per_s {
            let (left, at_s) = self.tokens;
            let left = (left + (self.now_s - at_s) * rate).min(rate.max(1.0));
            self.tokens = (left, self.now_s);
            if left < 1.0 - 1e-9 {
                self.at(self.now_s + (1.0 - left) / rate, WorldEvent::Wake);
                return false;
            }
            self.tokens.0 -= 1.0;
        }
        let chosen = heads.iter().filter(|head| choice.lanes.contains(&head.lane));
        let Some(lane) = chosen.min_by_key(|head| (head.waiting_since, head.order)).map(|head| head.lane as usize)
        else {
            return false;
        };
        let Some(job) = self.lanes[lane].pop_front() else { return false };
        let kind = self.workload.kinds[lane].clone();
        let load_s = if choice.swap && kind.affinity.is_some() { kind.load.draw(&mut self.random) } else { 0.0 };
        let mut run_s = kind.run.draw(&mut self.random);
        if kind.hidden_models > 0 {
            let model = self.random.below(kind.hidden_models);
            if std::mem::replace(&mut self.workers[number].hidden_model, model) != model {
                run_s += kind.load.draw(&mut self.random);
            }
        }
        let fails = self.random.unit() < kind.failing;
        let begun_s = self.now_s + load_s;
        let (started_s, ends_s) = (self.now_s, begun_s + run_s);
        let worker = &mut self.workers[number];
        worker.loaded = choice.affinity;
        worker.running.push(job);
        let last_ended_s = worker.ended_s.take();
        let claimed = &mut self.jobs[job];
        let has_waited = |ended_s: &f64| claimed.ready_s <= *ended_s;
        claimed.turnaround_s = last_ended_s.filter(has_waited).map(|ended_s| started_s - ended_s);
        claimed.attempt += 1;
        claimed.state = State::Running { worker: number, started_s, begun_s, ends_s, fails };
        let attempt = claimed.attempt;
        self.at(ends_s, WorldEvent::End(job, attempt));
        true
    }

    /// Asks for the ETA of a job, unless it has ended. The first answer of each horizon is scored.
    fn ask(&mut self, number: usize) {
        if self.jobs[number].state == State::Ended {
            return;
        }
        let seed = number as u64 * 31 + self.jobs[number].answers.len() as u64;
        let Some((answer, progress)) = self.answer(number, &self.statistics, seed) else { return };
        let is_first = self.jobs[number].answers.iter().all(|given| given.answer.horizon != answer.horizon);
        if !is_first && self.workload.ask_every_s.is_none() {
            return;
        }
        // Without a history the width says how much is known. There is no oracle for that.
        let oracle = match self.workload.ask_every_s {
            None if number.is_multiple_of(ORACLE_EVERY) => self.forecast(number, &self.exact, seed + 1, true),
            _ => None,
        };
        self.jobs[number].answers.push(Asked { at_s: self.now_s, answer, oracle, progress, is_first });
    }

    /// The true distributions, in the form that the estimator has.
    fn true_distributions(&self) -> Vec<Statistics> {
        let mut exact = vec![Statistics::default(); self.histories.len()];
        for kind in &self.workload.kinds {
            let attempts = AttemptShares { ended: [1e6; ATTEMPTS], retried: [1e6 * kind.failing; ATTEMPTS] };
            let (run, load) = (Some(kind.run.exact()), Some(kind.load.exact()));
            exact[kind.kind] = Statistics { run, load, attempts, ..Statistics::default() };
        }
        exact
    }

    fn answer(&self, number: usize, statistics: &[Statistics], seed: u64) -> Option<(Answer, Option<f64>)> {
        let job = &self.jobs[number];
        let own = &statistics[self.workload.kinds[job.kind].kind];
        match job.state {
            State::Waiting => Some((own.answer_waiting(self.forecast(number, statistics, seed, false)?)?, None)),
            State::Running { begun_s, started_s, .. } => {
                let is_loading = self.now_s < begun_s;
                let elapsed_s = self.now_s - if is_loading { started_s } else { begun_s };
                let progress = self.progress(number);
                let retries = self.retries(job, own);
                let answer = own.answer_running(elapsed_s, is_loading, progress, &retries, seed)?;
                Some((answer, progress.map(|progress| progress.share)))
            }
            State::BackedOff { until_s } => {
                Some((own.answer_scheduled(until_s - self.now_s, &self.retries(job, own), seed)?, None))
            }
            State::Ended => None,
        }
    }

    fn retries(&self, job: &SimulatedJob, own: &Statistics) -> RetryForecast {
        let is_running = matches!(job.state, State::Running { .. });
        RetryForecast {
            attempt: job.attempt + u32::from(!is_running),
            max_attempts: self.workload.max_attempts,
            shares: own.attempts,
            policy: self.workload.retry,
            last_wait_s: job.last_wait_s,
        }
    }

    /// The last report of a running job.
    fn progress(&self, number: usize) -> Option<Progress> {
        let job = &self.jobs[number];
        let State::Running { begun_s, ends_s, .. } = job.state else { return None };
        let exponent = job.exponent?;
        let run_s = ends_s - begun_s;
        let time_share = (self.now_s - begun_s) / run_s;
        let twentieth = (time_share.max(0.0).powf(1.0 / exponent) * 20.0).floor();
        let share = twentieth / 20.0;
        (twentieth >= 1.0).then(|| Progress { share, elapsed_s: share.powf(exponent) * run_s })
    }

    /// Forecasts by these statistics. The oracle has no use for progress: it knows the distribution.
    fn forecast(&self, number: usize, statistics: &[Statistics], seed: u64, is_oracle: bool) -> Option<Forecast> {
        let job = &self.jobs[number];
        let own_kind = &self.workload.kinds[job.kind];
        let own = &statistics[own_kind.kind];
        let runs = if is_oracle { RUNS * 2 } else { RUNS };
        match job.state {
            State::Waiting => {}
            State::Running { begun_s, started_s, .. } => {
                let is_loading = self.now_s < begun_s;
                let elapsed_s = self.now_s - if is_loading { started_s } else { begun_s };
                let work = own.running(elapsed_s, is_loading, None)?;
                return Some(running_forecast(&work, &self.retries(job, own), own.wait.as_ref(), seed, runs));
            }
            _ => return None,
        }
        let affinities: BTreeMap<&str, usize> =
            self.workload.kinds.iter().filter_map(|kind| kind.affinity).enumerate().map(|(n, a)| (a, n)).collect();
        let total: usize = self.lanes.iter().map(VecDeque::len).sum();
        let block = total.div_ceil(LINE_ENTRIES).max(1);
        let mut lanes = Vec::with_capacity(self.lanes.len());
        for (lane, kind) in self.workload.kinds.iter().enumerate() {
            let of_kind = &statistics[kind.kind];
            let is_own = lane == job.kind;
            let waiting = self.lanes[lane].iter().take_while(|waiting| !is_own || **waiting != number);
            let waiting: Vec<LineEntry> =
                waiting.map(|waiting| self.jobs[*waiting].entry(*waiting, self.now_s)).collect();
            let ages_s: Vec<f64> = waiting.iter().map(|entry| -entry.ready_s).collect();
            let arrivals = match (is_own || kind.priority < own_kind.priority, is_oracle) {
                (true, _) => Arrivals::default(),
                (false, true) => {
                    Arrivals { bursts_per_s: 1.0 / kind.every_s, size: (1.0 + kind.burst.max(1) as f64) / 2.0 }
                }
                (false, false) => {
                    let jobs_per_s = self.rates[lane].at(self.now_s) + of_unfinished(ages_s.iter().copied());
                    Arrivals::of(jobs_per_s, of_kind.bursts.with_unfinished(&ages_s))
                }
            };
            lanes.push(LineLane {
                priority: kind.priority,
                affinity: kind.affinity.map(|affinity| affinities[affinity]),
                run: of_kind.run.as_ref()?,
                load: of_kind.load.as_ref(),
                waiting: waiting.into_iter().step_by(block).collect(),
                block: block as f64,
                starvation_s: self.workload.starvation_s,
                arrivals,
            });
        }
        let mut workers = Vec::new();
        for worker in self.workers.iter().filter(|worker| !worker.is_lost || !worker.running.is_empty()) {
            let mut running: Vec<RunningWork<'_>> = Vec::new();
            for number in &worker.running {
                let State::Running { started_s, begun_s, .. } = self.jobs[*number].state else { continue };
                let is_loading = self.now_s < begun_s;
                let elapsed_s = self.now_s - if is_loading { started_s } else { begun_s };
                let of_kind = &statistics[self.workload.kinds[self.jobs[*number].kind].kind];
                let progress = self.progress(*number).filter(|_| !is_oracle);
                running.push(of_kind.running(elapsed_s, is_loading, progress)?);
            }
            workers.push(LineWorker {
                serves: vec![!worker.is_lost; lanes.len()],
                loaded: worker.loaded.as_ref().and_then(|loaded| affinities.get(loaded.as_str()).copied()),
                concurrency: self.workload.concurrency,
                running,
            });
        }
        let rate = self.workload.rate_per_s.map(|per_s| {
            let (left, at_s) = self.tokens;
            LineRate { tokens: (left + (self.now_s - at_s) * per_s).min(per_s.max(1.0)), per_s }
        });
        let turnaround_s = if is_oracle { self.workload.turnaround_s } else { own.turnaround_s };
        let own = OwnJob {
            lane: job.kind,
            entry: job.entry(number, self.now_s),
            retries: self.retries(job, own),
            wait: own.wait.as_ref(),
        };
        Some(Line { lanes, workers, limit: self.workload.limit, rate, turnaround_s, own }.forecast(seed, runs))
    }
}

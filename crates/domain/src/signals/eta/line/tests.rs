use proptest::prelude::*;

use super::*;
use crate::name::Label;
use crate::queue::claim::{LaneHead, next_lanes};
use crate::queue::retry::RetryPolicy;
use crate::signals::eta::retries::AttemptShares;
use crate::time::Time;

/// A duration that is almost constant.
fn about(seconds: f64) -> Durations {
    Durations::from_table((0..100).map(|n| seconds * (0.99 + 0.0002 * f64::from(n))).collect(), 1e6)
}

fn lane<'a>(affinity: Option<usize>, run: &'a Durations, load: &'a Durations, waiting: usize) -> LineLane<'a> {
    LineLane {
        priority: 0,
        affinity,
        run,
        load: Some(load),
        waiting: (0..waiting).map(|n| LineEntry { ready_s: n as f64 - 10.0, order: n as u128 }).collect(),
        block: 1.0,
        starvation_s: 300.0,
        arrivals: Arrivals::default(),
    }
}

fn worker<'a>(lanes: usize, loaded: Option<usize>, concurrency: usize) -> LineWorker<'a> {
    LineWorker { serves: vec![true; lanes], loaded, concurrency, running: Vec::new() }
}

fn line<'a>(lanes: Vec<LineLane<'a>>, workers: Vec<LineWorker<'a>>) -> Line<'a> {
    let entry = LineEntry { ready_s: 0.0, order: u128::MAX };
    let own = OwnJob { lane: 0, entry, retries: RetryForecast::NONE, wait: None };
    Line { lanes, workers, limit: None, rate: None, turnaround_s: 0.0, own }
}

fn check(line: &Line<'_>, p50_s: f64, swaps: u32) {
    let forecast = line.forecast(7, RUNS);
    let actual = forecast.p50_s();
    assert!((actual / p50_s - 1.0).abs() < 0.05, "{actual} s, expected {p50_s} s");
    assert_eq!(forecast.swaps, swaps);
}

/// Requirement S9.
#[test]
fn jobs_ahead_run_in_as_many_slots_as_the_workers_have() {
    let (run, load) = (about(10.0), about(1.0));
    let with = |workers, concurrency, ahead| {
        line(vec![lane(None, &run, &load, ahead)], (0..workers).map(|_| worker(1, None, concurrency)).collect())
    };
    check(&with(1, 1, 0), 10.0, 0);
    check(&with(1, 1, 3), 40.0, 0);
    check(&with(1, 4, 3), 10.0, 0);
    check(&with(2, 2, 8), 30.0, 0);
}

/// Requirement S9.
#[test]
fn a_swap_waits_for_running_jobs_and_takes_the_load_time() {
    let (run, load) = (about(1.0), about(12.0));
    let lanes = || vec![lane(Some(0), &run, &load, 0), lane(Some(1), &run, &load, 5)];
    // The five jobs of the loaded model run first, then the model is swapped.
    check(&line(lanes(), vec![worker(2, Some(1), 1)]), 5.0 + 12.0 + 1.0, 1);
    // Past the starvation bound the job comes first, although its model is not loaded.
    let mut starved = line(lanes(), vec![worker(2, Some(1), 1)]);
    starved.own.entry.ready_s = -400.0;
    check(&starved, 12.0 + 1.0, 1);
    let mut busy = line(vec![lane(Some(0), &run, &load, 0)], vec![worker(1, Some(1), 2)]);
    let long = about(30.0);
    busy.workers[0].running.push(RunningWork { run: &long, elapsed_s: 10.0, loading: None, progress: None });
    check(&busy, 20.0 + 12.0 + 1.0, 1);
}

/// Requirement S9.
#[test]
fn the_models_of_one_batch_are_loaded_in_the_order_of_their_first_jobs() {
    let (run, load) = (about(1.0), about(5.0));
    let batch = |orders: std::ops::Range<u128>| -> Vec<LineEntry> {
        orders.map(|order| LineEntry { ready_s: -1.0, order }).collect()
    };
    let model = |affinity, orders| LineLane { waiting: batch(orders), ..lane(Some(affinity), &run, &load, 0) };
    // The first job of the other model is older than all jobs of the own model, or younger.
    for (other, p50_s, swaps) in [(0..10, 10.0 + 5.0 + 4.0, 1), (90..99, 5.0 + 4.0, 1)] {
        let mut line = line(vec![model(0, 50..53), model(1, other)], vec![worker(2, Some(2), 1)]);
        line.own.entry = LineEntry { ready_s: -1.0, order: 60 };
        let first_load = if p50_s > 10.0 { 5.0 } else { 0.0 };
        check(&line, p50_s + first_load, swaps + u32::from(first_load > 0.0));
    }
}

/// Requirement S9.
#[test]
fn every_job_ahead_costs_its_turnaround() {
    let (run, load) = (about(10.0), about(1.0));
    let mut slow = line(vec![lane(None, &run, &load, 4)], vec![worker(1, None, 1)]);
    slow.turnaround_s = 2.0;
    check(&slow, 58.0, 0);
    slow.lanes[0].block = 10.0;
    check(&slow, 40.0 * 12.0 + 10.0, 0);
    slow.workers[0].running.push(RunningWork { run: &run, elapsed_s: 5.0, loading: None, progress: None });
    check(&slow, 5.0 + 2.0 + 40.0 * 12.0 + 10.0, 0);
}

/// Requirement S9.
#[test]
fn limits_delay_the_start() {
    let (run, load) = (about(10.0), about(1.0));
    let free = line(vec![lane(None, &run, &load, 4)], vec![worker(1, None, 8)]);
    check(&free, 10.0, 0);
    check(&Line { limit: Some(2), ..free.clone() }, 30.0, 0);
    check(&Line { rate: Some(LineRate { tokens: 0.0, per_s: 0.1 }), ..free }, 60.0, 0);
}

/// Requirement S9.
#[test]
fn urgent_jobs_that_arrive_later_are_included() {
    let (run, load) = (about(10.0), about(1.0));
    let urgent =
        LineLane { priority: 5, arrivals: Arrivals { bursts_per_s: 0.05, size: 1.0 }, ..lane(None, &run, &load, 0) };
    let calm = line(vec![lane(None, &run, &load, 4)], vec![worker(1, None, 1)]);
    let busy = line(vec![lane(None, &run, &load, 4), urgent], vec![worker(2, None, 1)]);
    assert!(busy.forecast(1, RUNS).p50_s() > 1.5 * calm.forecast(1, RUNS).p50_s());
}

/// Requirement S9.
#[test]
fn retries_with_their_backoff_are_included() {
    let (run, load) = (about(10.0), about(1.0));
    let mut shares = AttemptShares::default();
    (0..100).for_each(|_| shares.observe(2, false));
    let policy = RetryPolicy::new(Some(60), None, None, None).expect("a valid policy");
    let mut failing = line(vec![lane(None, &run, &load, 0)], vec![worker(1, None, 1)]);
    failing.own.retries = RetryForecast { max_attempts: 3, shares, policy, ..RetryForecast::NONE };
    check(&failing, 10.0 + 60.0 + 10.0, 0);
    failing.own.retries.max_attempts = 1;
    check(&failing, 10.0, 0);
}

/// Requirement S9.
#[test]
fn a_long_line_is_simulated_in_blocks() {
    let (run, load) = (about(1.0), about(1.0));
    let mut long = line(vec![lane(None, &run, &load, 50)], vec![worker(1, None, 1), worker(1, None, 1)]);
    long.lanes[0].block = 1_000.0;
    check(&long, 25_000.0, 0);
}

proptest! {
    /// Requirement S9.
    #[test]
    fn the_simulated_order_is_that_of_the_claim(
        lanes in proptest::collection::vec((0i32..3, 0usize..4, 0i64..200, 0i64..250), 1..12), held in 0usize..4,
        now in 200i64..300
    ) {
        let names = ["", "llama", "mistral", "phi"];
        let label = |number: usize| (number > 0).then(|| Label::stored(names[number]));
        let heads: Vec<LaneHead> = lanes.iter().enumerate().map(|(n, (priority, affinity, since, bound))| LaneHead {
            lane: n as i64,
            priority: *priority,
            affinity: label(*affinity),
            waiting_since: Time::from_seconds(*since),
            order: n as u128,
            starvation_ms: bound * 1_000,
        }).collect();
        let choice = next_lanes(&heads, &label(held), Time::from_seconds(now)).expect("something waits");
        let run = about(1.0);
        let number = |affinity: usize| (affinity > 0).then(|| affinity - 1);
        let simulated: Vec<LineLane<'_>> = lanes.iter().map(|(priority, affinity, _, bound)| LineLane {
            priority: *priority,
            starvation_s: *bound as f64,
            ..lane(number(*affinity), &run, &run, 0)
        }).collect();
        let simulated = line(simulated, Vec::new());
        let entry = |order: usize, since: i64| LineEntry { ready_s: (since - now) as f64, order: order as u128 };
        let heads: Vec<Head> =
            lanes.iter().enumerate().map(|(lane, (_, _, since, _))| Head { lane, entry: entry(lane, *since) }).collect();
        let (affinity, swap) = next_affinity(&heads, &simulated, number(held), 0.0).expect("something waits");
        let expected = choice.affinity.as_ref().and_then(|own| names.iter().position(|name| *name == own.as_str()));
        prop_assert_eq!((affinity.map(|number| number + 1), swap), (expected, choice.swap));
    }
}

use super::*;

/// The seeds of `windlass bench --only eta` are others.
const SEEDS: std::ops::Range<u64> = 101..104;

/// Runs one workload with several seeds, and checks their mean against its bars.
fn check(name: &str) {
    let scenarios = scenarios();
    let scenario = scenarios.iter().find(|scenario| scenario.name == name).expect("a workload has this name");
    let seeds: Vec<Measured> = SEEDS.map(|seed| scenario.measure(seed)).collect();
    let mean = Measured::mean_of(&seeds).expect("there are seeds");
    assert!(mean.meets(&scenario.bars), "mean {mean:?} of {seeds:?}, bars {:?}", scenario.bars);
    let bars = scenario.bars.of_one_seed();
    assert!(seeds.iter().all(|one| one.meets(&bars)), "{seeds:?}, bars of one seed {bars:?}");
}

/// Requirement S9.
#[test]
fn estimates_hold_with_one_worker() {
    check("one kind, 1 worker");
}

/// Requirement S9.
#[test]
fn estimates_hold_with_four_workers() {
    check("one kind, 4 workers");
}

/// Requirement S9.
#[test]
fn estimates_hold_with_sixteen_workers() {
    check("one kind, 16 workers");
}

/// Requirement S9.
#[test]
fn estimates_hold_with_bursts_priorities_and_limits() {
    check("two kinds, bursts, priorities, limits");
}

/// Requirement S9.
#[test]
fn estimates_hold_in_a_pool_of_three_models_with_one_slot() {
    check("pool: 3 models, 1 slot");
}

/// Requirement S9.
#[test]
fn estimates_hold_for_a_kind_that_fails_and_is_retried() {
    check("failing kind (30 %) with backoff");
}

/// Requirement S9.
#[test]
fn estimates_hold_again_after_a_sudden_shift() {
    check("sudden shift (×5, a worker lost)");
}

/// Requirement S9.
#[test]
fn reported_progress_predicts_the_remaining_time() {
    check("progress reported");
}

/// Requirement S9.
#[test]
fn estimates_hold_in_a_backlog_by_affinity_without_history() {
    check("backlog of 3 models, by affinity");
}

/// Requirement S9.
#[test]
fn estimates_hold_in_a_backlog_by_arrival_without_history() {
    check("backlog of 3 models, by arrival");
}

use super::*;

/// Runs one workload and checks it against its bars.
fn check(name: &str) {
    let scenarios = scenarios();
    let scenario = scenarios.iter().find(|scenario| scenario.name == name).expect("a workload has this name");
    for seed in [1, 2] {
        let measured = scenario.measure(seed);
        println!(
            "{name:<40} seed {seed}: n {:>5} p90 {:.3} p50 {:.3} width {:.2?} progress {:?}",
            measured.answers,
            measured.p90,
            measured.p50,
            measured.width_ratio(),
            measured.progress_error
        );
        assert!(measured.meets(&scenario.bars), "seed {seed}: {measured:?}, bars {:?}", scenario.bars);
    }
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

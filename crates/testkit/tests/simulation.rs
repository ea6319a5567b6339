//! Thousands of seeds of the simulation. A failure reports its seed and the command that repeats it.

use testkit::simulation::simulate;

const SEEDS: std::ops::Range<u64> = 0..5_000;

/// Requirement X1.
#[test]
fn no_order_of_crashes_delays_and_duplicates_breaks_a_guarantee() {
    let seeds = match seed() {
        Some(seed) => seed..seed + 1,
        None => SEEDS,
    };
    let (mut steps, mut events) = (0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let run = simulate(seed);
        let repeat = format!(
            "seed {seed}; repeat: WINDLASS_SIMULATION_SEED={seed} cargo test -p windlass-testkit --test simulation"
        );
        assert!(run.verdict.findings.is_empty(), "{repeat}\n{}\n{:#?}", run.verdict, run.verdict.findings);
        assert!(run.unfinished.is_empty(), "{repeat}\n{:#?}", run.unfinished);
        steps += run.steps;
        events += run.verdict.events;
    }
    println!("seeds={count} steps={steps} operations={events}");
}

#[expect(clippy::disallowed_methods, reason = "a single seed is selected on the command line")]
fn seed() -> Option<u64> {
    Some(std::env::var("WINDLASS_SIMULATION_SEED").ok()?.parse().expect("a seed is a number"))
}

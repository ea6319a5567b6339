//! The history checker finds every planted violation in a million events, and nothing else.

use std::collections::BTreeSet;
use std::time::Instant;

use testkit::history::{Fault, check, generate};

const EVENTS: usize = 1_000_000;

#[test]
fn the_history_checker_finds_exactly_the_planted_errors() {
    let generated = generate(1, EVENTS);
    let started = Instant::now();
    let verdict = check(&generated.log);
    println!("{verdict} in {:?}", started.elapsed());
    let planted: BTreeSet<_> = generated.planted.into_iter().collect();
    let found: BTreeSet<_> = verdict.findings.iter().map(|finding| (finding.fault, finding.of)).collect();
    for fault in Fault::ALL {
        assert!(planted.iter().filter(|(of, _)| *of == fault).count() > 50, "too few of {fault:?} were planted");
    }
    let missed: Vec<_> = planted.difference(&found).take(10).collect();
    assert!(missed.is_empty(), "planted and not found: {missed:?}");
    let wrong: Vec<_> = verdict.findings.iter().filter(|it| !planted.contains(&(it.fault, it.of))).take(10).collect();
    assert!(wrong.is_empty(), "found and not planted: {wrong:#?}");
}

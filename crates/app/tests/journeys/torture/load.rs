//! A load at a fixed rate: with a server killed every twenty seconds, after a crash of PostgreSQL, during a long
//! transaction that prevents vacuuming, and without faults for a long time. Run manually on a quiet machine.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Cluster, Fixture};

const JOBS_PER_S: u32 = 500;
const FAULT_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of open jobs when the load keeps up: some jobs fail once or snooze, and wait for a second.
const MAX_OPEN: i64 = JOBS_PER_S as i64;

const PINNED_JOBS_PER_S: u32 = 800;
const PINNED_FOR: Duration = Duration::from_secs(60);
/// Minimum throughput with the transaction or after the crash, relative to the throughput before.
const MIN_SHARE: f64 = 0.95;

const DOWNTIME: Duration = Duration::from_secs(2);
const RECOVERY: Duration = Duration::from_secs(5);
const SAMPLE: Duration = Duration::from_millis(500);

const STEP: Duration = Duration::from_secs(20);
const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum share of the offered jobs that must be accepted. One in 25 operations of a producer is an event and not a
/// job; the rest allows for the first and the last second.
const MIN_ACCEPTED: f64 = 0.9;

async fn under_faults(fixture: Fixture, node_count: usize) {
    let plan = Plan::read();
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::start(&fixture, vec![fixture.url.clone(); node_count]).await;
    let storm = Storm::at_rate(nodes.clients(), JOBS_PER_S).await;
    for fault in 1..=plan.faults {
        let (started, accepted) = (Instant::now(), storm.accepted());
        nodes.kill(rng.random_range(0..nodes.count())).await;
        // The rate is measured over real time.
        tokio::time::sleep(FAULT_INTERVAL.saturating_sub(started.elapsed())).await;
        let rate = (storm.accepted() - accepted) as f64 / started.elapsed().as_secs_f64();
        let open = storm.open().await;
        println!("fault {fault}: {rate:.0} jobs/s accepted of {JOBS_PER_S}, {open} open before the next fault");
        assert!(open < MAX_OPEN, "the backlog is not drained before the next fault: {open}");
    }
    let verdict = storm.finish().await;
    println!("load on {node_count} nodes, a kill every {FAULT_INTERVAL:?}: kills={} {verdict}", plan.faults);
    drop(nodes);
    fixture.verify().await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn throughput_holds_while_servers_are_killed_on_sqlite() {
    under_faults(Fixture::sqlite(), 1).await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn throughput_holds_while_servers_are_killed_on_postgres() {
    under_faults(Fixture::postgres().await, 2).await;
}

/// Measures the completed jobs per second during this time.
async fn measure_rate(storm: &Storm, time: Duration) -> f64 {
    let (started, completed) = (Instant::now(), storm.completed());
    // The rate is measured over real time.
    tokio::time::sleep(time).await;
    (storm.completed() - completed) as f64 / started.elapsed().as_secs_f64()
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn throughput_recovers_within_seconds_of_a_postgres_crash() {
    let mut cluster = Cluster::start().await;
    let fixture = Fixture::on_server(&cluster.url()).await;
    let nodes = Nodes::start(&fixture, vec![fixture.url.clone(); 2]).await;
    let storm = Storm::at_rate(nodes.clients(), JOBS_PER_S).await;
    let clean = measure_rate(&storm, FAULT_INTERVAL).await;
    let faults = Plan::read().faults;
    for fault in 1..=faults {
        cluster.crash().await;
        // The fault lasts for some time.
        tokio::time::sleep(DOWNTIME).await;
        cluster.run().await;
        let back = Instant::now();
        while measure_rate(&storm, SAMPLE).await < clean * MIN_SHARE {
            assert!(back.elapsed() < RECOVERY, "the rate did not recover within {RECOVERY:?}");
        }
        println!("crash {fault}: {clean:.0} jobs/s before, recovered {:?} after the restart", back.elapsed());
        // The next crash must meet a steady load.
        tokio::time::sleep(FAULT_INTERVAL.saturating_sub(back.elapsed())).await;
    }
    println!("crashes of PostgreSQL under load: {faults} {}", storm.finish().await);
    drop(nodes);
    fixture.verify().await;
}

/// True if the rate is sustained for this time: the offered jobs are accepted, and no more than those of one second are
/// open at any moment.
async fn is_sustained(fixture: &Fixture, per_s: u32, time: Duration) -> bool {
    let nodes = Nodes::start(fixture, vec![fixture.url.clone()]).await;
    let storm = Storm::at_rate(nodes.clients(), per_s).await;
    let (started, mut max_open) = (Instant::now(), 0);
    while started.elapsed() < time && max_open < i64::from(per_s) {
        // The interval of the samples.
        tokio::time::sleep(SAMPLE_INTERVAL).await;
        max_open = max_open.max(storm.open().await);
    }
    let accepted = storm.accepted() as f64 / started.elapsed().as_secs_f64();
    let sustained = max_open < i64::from(per_s) && accepted > f64::from(per_s) * MIN_ACCEPTED;
    println!("{per_s} jobs/s for {:?}: {accepted:.0} accepted, at most {max_open} open", started.elapsed());
    println!("{}", storm.finish().await);
    drop(nodes);
    fixture.verify().await;
    sustained
}

/// Finds the highest rate that is sustained for a short time, then lowers it until it is sustained for a long time.
async fn highest_rate(fixture: impl AsyncFn() -> Fixture) {
    let mut rate = JOBS_PER_S;
    while is_sustained(&fixture().await, rate * 5 / 4, STEP).await {
        rate = rate * 5 / 4;
    }
    while !is_sustained(&fixture().await, rate, Duration::from_secs(Plan::read().sustain_s)).await {
        rate = rate * 9 / 10;
    }
    println!("the highest sustained rate: {rate} jobs/s");
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn the_highest_sustained_rate_is_measured_on_sqlite() {
    highest_rate(async || Fixture::sqlite()).await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn the_highest_sustained_rate_is_measured_on_postgres() {
    highest_rate(Fixture::postgres).await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_transaction_of_another_client_barely_reduces_throughput() {
    let fixture = Fixture::postgres().await;
    let nodes = Nodes::start(&fixture, vec![fixture.url.clone()]).await;
    let storm = Storm::at_rate(nodes.clients(), PINNED_JOBS_PER_S).await;
    let clean = measure_rate(&storm, PINNED_FOR).await;
    let (client, connection) =
        tokio_postgres::connect(&fixture.url, tokio_postgres::NoTls).await.expect("the server is reachable");
    let mut beside = tokio::task::JoinSet::new();
    beside.spawn(connection);
    let pin = "begin isolation level repeatable read; create temporary table pins (n int); select count(*) from windlass.jobs";
    client.batch_execute(pin).await.expect("the snapshot is taken");
    let pinned = measure_rate(&storm, PINNED_FOR).await;
    client.batch_execute("rollback").await.expect("the transaction ends");
    let share = pinned / clean;
    println!("completed per second: {clean:.0} without, {pinned:.0} with a pinned snapshot ({:.1} %)", share * 100.0);
    println!("{}", storm.finish().await);
    assert!(share >= MIN_SHARE, "{share}");
    drop(nodes);
    fixture.verify().await;
}

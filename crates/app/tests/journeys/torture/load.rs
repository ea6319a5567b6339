//! A load at a set rate: what is held while servers die every twenty seconds, when PostgreSQL comes back from a crash, while
//! a transaction elsewhere keeps every dead row of PostgreSQL from being cleaned away, and without any fault for long (X2,
//! X12). By hand, on a quiet machine.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Cluster, Place};

const JOBS_PER_S: u32 = 500;
const BETWEEN: Duration = Duration::from_secs(20);
/// What may be open at any moment of a load that is kept up with: some fail once or are put off, and wait a second.
const KEPT_UP: i64 = JOBS_PER_S as i64;

const PINNED_JOBS_PER_S: u32 = 800;
const PINNED_FOR: Duration = Duration::from_secs(60);
/// What is held with the transaction, or after the crash, against what was held before.
const LEAST_SHARE: f64 = 0.95;

const DOWN_FOR: Duration = Duration::from_secs(2);
const BACK_WITHIN: Duration = Duration::from_secs(5);
const SHORTLY: Duration = Duration::from_millis(500);

const STEP: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// One turn in 25 of a producer is an event, not a job; the rest is for the first second and the last.
const EVENTS_ASIDE: f64 = 0.9;

async fn under_faults(place: Place, node_count: usize) {
    let plan = Plan::read();
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::start(&place, vec![place.url.clone(); node_count]).await;
    let storm = Storm::at_rate(nodes.clients(), JOBS_PER_S).await;
    for fault in 1..=plan.faults {
        let (begun, accepted) = (Instant::now(), storm.accepted());
        nodes.kill(rng.random_range(0..nodes.count())).await;
        tokio::time::sleep(BETWEEN.saturating_sub(begun.elapsed())).await;
        let (rate, open) = ((storm.accepted() - accepted) as f64 / begun.elapsed().as_secs_f64(), storm.open().await);
        println!("fault {fault}: {rate:.0} jobs/s taken on of {JOBS_PER_S}, {open} open when the next fault comes");
        assert!(open < KEPT_UP, "the backlog is not drained before the next fault: {open}");
    }
    let verdict = storm.judge().await;
    println!("load on {node_count} nodes, a kill every {BETWEEN:?}: kills={} {verdict}", plan.faults);
    drop(nodes);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_load_is_kept_up_with_while_servers_die_on_sqlite() {
    under_faults(Place::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_load_is_kept_up_with_while_servers_die_on_postgres() {
    under_faults(Place::postgres().await, 2).await;
}

/// Jobs done in each second of this time.
async fn rate_over(storm: &Storm, time: Duration) -> f64 {
    let (begun, done) = (Instant::now(), storm.done());
    tokio::time::sleep(time).await;
    (storm.done() - done) as f64 / begun.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_the_rate_is_back_within_seconds_of_a_crash_of_postgres() {
    let mut cluster = Cluster::start().await;
    let place = Place::on_server(&cluster.url()).await;
    let nodes = Nodes::start(&place, vec![place.url.clone(); 2]).await;
    let storm = Storm::at_rate(nodes.clients(), JOBS_PER_S).await;
    let clean = rate_over(&storm, BETWEEN).await;
    let faults = Plan::read().faults;
    for fault in 1..=faults {
        cluster.crash().await;
        tokio::time::sleep(DOWN_FOR).await;
        cluster.run().await;
        let back = Instant::now();
        while rate_over(&storm, SHORTLY).await < clean * LEAST_SHARE {
            assert!(back.elapsed() < BACK_WITHIN, "not within {BACK_WITHIN:?}");
        }
        println!("crash {fault}: {clean:.0} jobs/s before, as many within {:?} of its return", back.elapsed());
        tokio::time::sleep(BETWEEN.saturating_sub(back.elapsed())).await;
    }
    println!("crashes of PostgreSQL under load: {faults} {}", storm.judge().await);
    drop(nodes);
    place.verify().await;
}

/// Whether a rate is held for this long: what is offered is taken on, and no more than a second of it is ever open.
async fn holds(place: &Place, per_s: u32, time: Duration) -> bool {
    let nodes = Nodes::start(place, vec![place.url.clone()]).await;
    let storm = Storm::at_rate(nodes.clients(), per_s).await;
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < time && most < i64::from(per_s) {
        tokio::time::sleep(LOOK_EVERY).await;
        most = most.max(storm.open().await);
    }
    let taken = storm.accepted() as f64 / begun.elapsed().as_secs_f64();
    let held = most < i64::from(per_s) && taken > f64::from(per_s) * EVENTS_ASIDE;
    println!("{per_s} jobs/s for {:?}: {taken:.0} taken on, {most} open at most", begun.elapsed());
    println!("{}", storm.judge().await);
    drop(nodes);
    place.verify().await;
    held
}

/// The highest rate that is held shortly, step by step, and then a little less of it for long.
async fn highest(place: impl AsyncFn() -> Place) {
    let mut rate = JOBS_PER_S;
    while holds(&place().await, rate * 5 / 4, STEP).await {
        rate = rate * 5 / 4;
    }
    while !holds(&place().await, rate, Duration::from_secs(Plan::read().hold_s)).await {
        rate = rate * 9 / 10;
    }
    println!("the highest rate held: {rate} jobs/s");
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_the_highest_rate_that_is_held_on_sqlite() {
    highest(async || Place::sqlite()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_the_highest_rate_that_is_held_on_postgres() {
    highest(Place::postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_long_transaction_elsewhere_costs_next_to_nothing() {
    let place = Place::postgres().await;
    let nodes = Nodes::start(&place, vec![place.url.clone()]).await;
    let storm = Storm::at_rate(nodes.clients(), PINNED_JOBS_PER_S).await;
    let clean = rate_over(&storm, PINNED_FOR).await;
    let (client, connection) = tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await.expect("it connects");
    let mut beside = tokio::task::JoinSet::new();
    beside.spawn(connection);
    let pin = "begin isolation level repeatable read; create temporary table pins (n int); select count(*) from windlass.jobs";
    client.batch_execute(pin).await.expect("the snapshot is taken");
    let pinned = rate_over(&storm, PINNED_FOR).await;
    client.batch_execute("rollback").await.expect("it lets go");
    let share = pinned / clean;
    println!("done per second: {clean:.0} without, {pinned:.0} with a pinned snapshot ({:.1} %)", share * 100.0);
    println!("{}", storm.judge().await);
    assert!(share >= LEAST_SHARE, "{share}");
    drop(nodes);
    place.verify().await;
}

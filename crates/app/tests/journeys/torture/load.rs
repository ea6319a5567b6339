//! A load at a set rate: what is held while servers die every twenty seconds, and while a transaction elsewhere keeps every
//! dead row of PostgreSQL from being cleaned away (X2, X12). By hand, on a quiet machine.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::Place;

const JOBS_PER_S: u32 = 500;
const BETWEEN: Duration = Duration::from_secs(20);
/// What may be open at any moment of a load that is kept up with: some fail once or are put off, and wait a second.
const KEPT_UP: i64 = JOBS_PER_S as i64;

const PINNED_JOBS_PER_S: u32 = 800;
const PINNED_FOR: Duration = Duration::from_secs(60);
/// What is held with the transaction, against what is held without.
const LEAST_SHARE: f64 = 0.95;

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

async fn rate_of(storm: &Storm) -> f64 {
    let (begun, done) = (Instant::now(), storm.done());
    tokio::time::sleep(PINNED_FOR).await;
    (storm.done() - done) as f64 / begun.elapsed().as_secs_f64()
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_long_transaction_elsewhere_costs_next_to_nothing() {
    let place = Place::postgres().await;
    let nodes = Nodes::start(&place, vec![place.url.clone()]).await;
    let storm = Storm::at_rate(nodes.clients(), PINNED_JOBS_PER_S).await;
    let clean = rate_of(&storm).await;
    let (client, connection) = tokio_postgres::connect(&place.url, tokio_postgres::NoTls).await.expect("it connects");
    let mut beside = tokio::task::JoinSet::new();
    beside.spawn(connection);
    let pin = "begin isolation level repeatable read; create temporary table pins (n int); select count(*) from windlass.jobs";
    client.batch_execute(pin).await.expect("the snapshot is taken");
    let pinned = rate_of(&storm).await;
    client.batch_execute("rollback").await.expect("it lets go");
    let share = pinned / clean;
    println!("done per second: {clean:.0} without, {pinned:.0} with a pinned snapshot ({:.1} %)", share * 100.0);
    println!("{}", storm.judge().await);
    assert!(share >= LEAST_SHARE, "{share}");
    drop(nodes);
    place.verify().await;
}

//! kill -9 of servers and workers, and servers and workers that freeze for longer than a lease (X2, X3, X4).

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Place, Program, Server, Work};

const JOBS_BETWEEN: u64 = 25;
/// Longer than the lease of every worker of a storm.
const FROZEN: Duration = Duration::from_secs(4);
/// One fault in so many freezes something instead of killing it.
const ONE_FREEZE_IN: usize = 10;

/// `windlass work`, as a user runs it.
fn worker_process(place: &Place, server: &Server) -> Program {
    Work::start(place, server, "storm", &["--lease-s", "2", "--concurrency", "2"], "cat > /dev/null; echo 1")
}

async fn campaign(place: Place, node_count: usize) {
    let plan = Plan::read();
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::start(&place, vec![place.url.clone(); node_count]).await;
    let mut storm = Storm::start(nodes.clients()).await;
    // It speaks to a server that nobody kills, where there is more than one.
    let mut process = worker_process(&place, nodes.last());
    let (mut servers, mut workers, mut freezes) = (0, 0, 0);
    for fault in 1..=plan.kills {
        storm.more(JOBS_BETWEEN).await;
        if fault % ONE_FREEZE_IN == 0 {
            freezes += 1;
            let node = rng.random_range(0..nodes.count());
            process.signal(Signal::STOP);
            nodes.freeze(node);
            tokio::time::sleep(FROZEN).await;
            nodes.thaw(node);
            process.signal(Signal::CONT);
        }
        match rng.random_range(0..4) {
            0 => storm.lose_a_worker().await,
            1 => {
                process.kill().await;
                process = worker_process(&place, nodes.last());
            }
            _ => {
                nodes.kill(rng.random_range(0..nodes.count())).await;
                servers += 1;
                continue;
            }
        }
        workers += 1;
    }
    storm.more(JOBS_BETWEEN).await;
    drop(process);
    let verdict = storm.judge().await;
    let seed = plan.seed;
    println!(
        "kills on {node_count} nodes, seed {seed}: servers={servers} workers={workers} freezes={freezes} {verdict}"
    );
    drop(nodes);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_kills_and_freezes_in_mid_load_break_no_promise_on_sqlite() {
    campaign(Place::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_kills_and_freezes_in_mid_load_break_no_promise_on_postgres() {
    campaign(Place::postgres().await, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_kills_and_freezes_in_mid_load_break_no_promise_on_three_nodes() {
    campaign(Place::postgres().await, 3).await;
}

//! SIGKILL of servers and workers, and servers and workers that freeze for longer than a lease.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Fixture, Program, Server, Work};

const JOBS_BETWEEN: u64 = 25;
/// Longer than the lease of every worker.
const FREEZE: Duration = Duration::from_secs(4);
/// Every n-th fault is a freeze before the kill.
const FREEZE_EVERY: usize = 10;

/// `windlass work`, as a user runs it.
fn worker_process(fixture: &Fixture, server: &Server) -> Program {
    Work::start(fixture, server, "storm", &["--lease-s", "2", "--concurrency", "2"], "cat > /dev/null; echo 1")
}

async fn campaign(fixture: Fixture, node_count: usize) {
    let plan = Plan::read();
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::start(&fixture, vec![fixture.url.clone(); node_count]).await;
    let mut storm = Storm::start(nodes.clients()).await;
    // Its server is the last node, which is killed like the others.
    let mut process = worker_process(&fixture, nodes.last());
    let (mut servers, mut workers, mut freezes) = (0, 0, 0);
    for fault in 1..=plan.kills {
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        if fault % FREEZE_EVERY == 0 {
            freezes += 1;
            let node = rng.random_range(0..nodes.count());
            process.signal(Signal::STOP);
            nodes.freeze(node);
            // Leases are measured in real time.
            tokio::time::sleep(FREEZE).await;
            nodes.thaw(node);
            process.signal(Signal::CONT);
        }
        match rng.random_range(0..4) {
            0 => storm.replace_a_worker().await,
            1 => {
                process.kill().await;
                process = worker_process(&fixture, nodes.last());
            }
            _ => {
                nodes.kill(rng.random_range(0..nodes.count())).await;
                servers += 1;
                continue;
            }
        }
        workers += 1;
    }
    storm.wait_for_jobs(JOBS_BETWEEN).await;
    drop(process);
    let verdict = storm.finish().await;
    let seed = plan.seed;
    println!(
        "kills on {node_count} nodes, seed {seed}: servers={servers} workers={workers} freezes={freezes} {verdict}"
    );
    drop(nodes);
    fixture.verify().await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn kills_and_freezes_under_load_break_no_guarantee_on_sqlite() {
    campaign(Fixture::sqlite(), 1).await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn kills_and_freezes_under_load_break_no_guarantee_on_postgres() {
    campaign(Fixture::postgres().await, 2).await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn kills_and_freezes_under_load_break_no_guarantee_on_three_nodes() {
    campaign(Fixture::postgres().await, 3).await;
}

//! A rolling upgrade: nodes of an older version are replaced one by one under load and kills, while a worker of the
//! older version runs. Run manually, because it needs an older build of the program.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Fixture, Work};

const JOBS_BETWEEN: u64 = 200;

async fn campaign(fixture: Fixture, node_count: usize) {
    let plan = Plan::read();
    let older = plan.older.expect("WINDLASS_TORTURE_OLDER must be the older program; scripts/torture --older sets it");
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::older(&fixture, node_count, older.clone()).await;
    let storm = Storm::start(nodes.clients()).await;
    let options = ["--lease-s", "2", "--concurrency", "2"];
    let _worker = Work::version(&older, &fixture, nodes.last(), "storm", &options, "cat > /dev/null; echo 1");
    for upgraded in 1..=node_count {
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        nodes.upgrade().await;
        // Only upgraded nodes are killed: an old node that restarts refuses the newer schema.
        for _ in 0..plan.kills.div_ceil(node_count) {
            storm.wait_for_jobs(JOBS_BETWEEN).await;
            nodes.kill(rng.random_range(0..upgraded)).await;
        }
    }
    storm.wait_for_jobs(JOBS_BETWEEN).await;
    let verdict = storm.finish().await;
    println!("an upgrade of {node_count} nodes, seed {}: kills={} {verdict}", plan.seed, plan.kills);
    drop(nodes);
    fixture.verify().await;
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_is_upgraded_under_load_on_sqlite() {
    campaign(Fixture::sqlite(), 1).await;
}

/// Requirement X9.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_is_upgraded_under_load_on_three_nodes() {
    campaign(Fixture::postgres().await, 3).await;
}

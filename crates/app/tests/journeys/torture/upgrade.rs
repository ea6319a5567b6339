//! A rolling upgrade (X9): nodes of an older version give way to this one, one after the other, under load and kills, with
//! a worker of the older version beside. By hand, because it needs a program that was built before.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Place, Work};

const JOBS_BETWEEN: u64 = 200;

async fn campaign(place: Place, node_count: usize) {
    let plan = Plan::read();
    let older = plan.older.expect("WINDLASS_TORTURE_OLDER names the older program; scripts/torture --older sets it");
    let mut rng = StdRng::seed_from_u64(plan.seed);
    let mut nodes = Nodes::older(&place, node_count, older.clone()).await;
    let storm = Storm::start(nodes.clients()).await;
    let options = ["--lease-s", "2", "--concurrency", "2"];
    let _worker = Work::version(&older, &place, nodes.last(), "storm", &options, "cat > /dev/null; echo 1");
    for upgraded in 1..=node_count {
        storm.more(JOBS_BETWEEN).await;
        nodes.upgrade().await;
        // One of the older version that dies from now on is not to come back: its schema is a thing of the past.
        for _ in 0..plan.kills.div_ceil(node_count) {
            storm.more(JOBS_BETWEEN).await;
            nodes.kill(rng.random_range(0..upgraded)).await;
        }
    }
    storm.more(JOBS_BETWEEN).await;
    let verdict = storm.judge().await;
    println!("an upgrade of {node_count} nodes, seed {}: kills={} {verdict}", plan.seed, plan.kills);
    drop(nodes);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_an_older_version_gives_way_under_load_on_sqlite() {
    campaign(Place::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x9_an_older_version_gives_way_under_load_on_three_nodes() {
    campaign(Place::postgres().await, 3).await;
}

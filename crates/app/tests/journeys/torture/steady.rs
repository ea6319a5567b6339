//! A long history without faults. It must pass the checker, or findings under faults prove nothing.

use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::Fixture;

/// Recorded events on each database.
const OPERATIONS: usize = 25_000;
const BATCH: u64 = 25;

async fn campaign(fixture: Fixture, node_count: usize) {
    let nodes = Nodes::start(&fixture, vec![fixture.url.clone(); node_count]).await;
    let storm = Storm::with_batches(nodes.clients(), BATCH).await;
    while storm.operations() < OPERATIONS {
        storm.wait_for_jobs(100).await;
    }
    let verdict = storm.finish().await;
    println!("steady on {node_count} nodes: {verdict}");
    drop(nodes);
    fixture.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_many_operations_is_consistent_on_sqlite() {
    campaign(Fixture::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_many_operations_is_consistent_on_postgres() {
    campaign(Fixture::postgres().await, 2).await;
}

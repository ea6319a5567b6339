//! A long history without faults: what the checker says of it must hold before anything else means something.

use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::Place;

/// Operations on each database, fifty thousand on both.
const OPERATIONS: usize = 25_000;
const BATCH: u64 = 25;

async fn campaign(place: Place, node_count: usize) {
    let nodes = Nodes::start(&place, vec![place.url.clone(); node_count]).await;
    let storm = Storm::with_batches(nodes.clients(), BATCH).await;
    while storm.operations() < OPERATIONS {
        storm.more(100).await;
    }
    let verdict = storm.judge().await;
    println!("steady on {node_count} nodes: {verdict}");
    drop(nodes);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_many_operations_has_no_flaw_on_sqlite() {
    campaign(Place::sqlite(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_of_many_operations_has_no_flaw_on_postgres() {
    campaign(Place::postgres().await, 2).await;
}

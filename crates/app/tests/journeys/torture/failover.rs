//! Failover of PostgreSQL: the primary is killed, its synchronous standby is promoted, and the old primary returns as the
//! standby of the new one. Nodes find the primary with a URL of both hosts and `target_session_attrs=read-write`.

use std::time::{Duration, Instant};

use client::wire::JobRequest;
use serde_json::json;

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Cluster, Fixture, count, eventually, job};

const NODES: usize = 3;
const JOBS_BETWEEN: u64 = 40;
/// Maximum time from the promotion until every node acknowledges a write, on a machine that runs other tests. The campaign
/// prints the time: alone it is below 5 s.
const RECOVERY: Duration = Duration::from_secs(60);
/// Kills of servers per failover in the size of the campaigns.
const KILLS_PER_FAILOVER: usize = 10;

/// Two PostgreSQL servers, of which one replicates the other.
struct Pair {
    servers: [Cluster; 2],
    primary: usize,
}

impl Pair {
    async fn start() -> Self {
        let primary = Cluster::start().await;
        let standby = Cluster::standby_of(&primary).await;
        let pair = Self { servers: [primary, standby], primary: 0 };
        pair.require_standby().await;
        pair
    }

    fn primary(&self) -> &Cluster {
        &self.servers[self.primary]
    }

    /// A commit is acknowledged when the standby has it, too.
    async fn require_standby(&self) {
        let (primary, synchronous) =
            (self.primary(), "select count(*) from pg_stat_replication where sync_state = 'sync'");
        primary.set("synchronous_standby_names", "*").await;
        eventually("the standby is synchronous", async || {
            (count(&primary.url(), synchronous).await == 1).then_some(())
        })
        .await;
    }

    /// Kills the primary and promotes the standby. Returns when the promotion has completed.
    async fn fail_over(&mut self) -> Instant {
        self.servers[self.primary].kill().await;
        self.primary = 1 - self.primary;
        // The new primary has no standby yet, so it must not wait for one.
        self.primary().set("synchronous_standby_names", "").await;
        self.primary().promote().await;
        Instant::now()
    }

    /// The old primary may have commits that no standby has, so it starts from a copy.
    async fn return_old_primary(&mut self) {
        let [first, second] = &mut self.servers;
        let (primary, standby) = if self.primary == 0 { (first, second) } else { (second, first) };
        standby.follow(primary).await;
        self.require_standby().await;
    }

    /// The URL with which a program finds the primary, whichever server that is.
    fn url(&self, database: &str) -> String {
        let [first, second] = self.servers.each_ref().map(Cluster::port);
        format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/{database}?target_session_attrs=read-write")
    }
}

/// Nothing acknowledged is lost, and no job is held twice.
/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn failovers_to_a_synchronous_standby_lose_nothing() {
    let mut pair = Pair::start().await;
    let mut fixture = Fixture::on_server(&pair.primary().url()).await;
    let (_, database) = fixture.url.rsplit_once('/').expect("the URL contains a database name");
    fixture.url = pair.url(database);
    let nodes = Nodes::start(&fixture, vec![fixture.url.clone(); NODES]).await;
    let storm = Storm::start(nodes.clients()).await;
    let failovers = (Plan::read().kills / KILLS_PER_FAILOVER).max(1);
    let mut slowest = Duration::ZERO;
    for _ in 0..failovers {
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        let promoted = pair.fail_over().await;
        for client in nodes.clients() {
            let probe = JobRequest { run_at: None, ..job("probe", json!(null)) };
            eventually("the node acknowledges a write", async || client.enqueue(&probe).await.ok()).await;
        }
        slowest = slowest.max(promoted.elapsed());
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        pair.return_old_primary().await;
    }
    storm.wait_for_jobs(JOBS_BETWEEN).await;
    let verdict = storm.finish().await;
    println!("failovers={failovers} slowest recovery of a node after the promotion={slowest:?} {verdict}");
    assert!(slowest < RECOVERY, "a node was back only after {slowest:?}");
    drop(nodes);
    fixture.verify().await;
}

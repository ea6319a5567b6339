//! Container runtimes on this node's Docker engine. `work` runs operations, `watch` and `events` monitor containers,
//! and `reconcile` compares them with their records. `logs` can be read from any node.
//!
//! Each node drives only its own Docker engine, through the trait in `driver`. Nodes communicate through the database.

pub mod container;
pub mod docker;
pub mod driver;
mod events;
pub mod logs;
pub mod openai;
mod operate;
pub(crate) mod pool;
mod reconcile;
pub(crate) mod run_batches;
mod state_path;
mod watch;
mod work;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::limits::{INSPECT_EVERY_S, MOVE_AFTER_S, PROBE_EVERY_S, RECONCILE_EVERY_S};
use futures_util::{StreamExt, TryStreamExt};
use store::runtimes::Runtime;
use store::runtimes::nodes::NodeOffer;
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use docker::Docker;
use driver::{Driver, Follow};
use logs::{LogStream, LogsError};
pub(crate) use watch::WatchRuntimes;
pub(crate) use work::OperateRuntimes;

/// The configuration of a node that drives a Docker engine.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// `unix://` and the path of Docker's socket.
    pub docker_host: String,
    /// The node's name. It must stay the same across restarts, because runtimes are bound to it.
    pub node: String,
    /// The labels and slots that the node offers.
    pub offer: NodeOffer,
    /// The directory that contains the state path of every runtime.
    pub state_root: PathBuf,
    pub probe_every: Duration,
    pub inspect_every: Duration,
    pub reconcile_every: Duration,
    /// How long a node must be lost before its movable runtimes start elsewhere.
    pub move_after_s: i64,
}

impl RuntimeOptions {
    pub fn new(node: &str, docker_host: &str, state_root: PathBuf) -> Self {
        Self {
            docker_host: docker_host.to_owned(),
            node: node.to_owned(),
            offer: NodeOffer::default(),
            state_root,
            probe_every: Duration::from_secs(PROBE_EVERY_S),
            inspect_every: Duration::from_secs(INSPECT_EVERY_S),
            reconcile_every: Duration::from_secs(RECONCILE_EVERY_S),
            move_after_s: MOVE_AFTER_S,
        }
    }
}

/// Identifies this node and its state directory to operations.
#[derive(Clone, Debug)]
pub(crate) struct NodeContext {
    pub(crate) instance: String,
    pub(crate) node: String,
    pub(crate) state_root: PathBuf,
}

/// This node's Docker engine, and the state that is kept between two checks. Cheap to clone.
#[derive(Clone)]
pub struct RuntimeNode {
    shared: Arc<NodeShared>,
}

struct NodeShared {
    docker: Box<dyn Driver>,
    context: NodeContext,
    options: RuntimeOptions,
    tracker: TaskTracker,
    stop: CancellationToken,
    watched: Mutex<HashMap<String, watch::Watched>>,
    /// Containers that ran out of memory. Docker reports this just before their end.
    starved: Mutex<HashSet<String>>,
    /// Requests a reconciliation at the next check.
    reconcile: tokio::sync::Notify,
    /// The last reconciliation skipped something that must be retried.
    retry_reconcile: AtomicBool,
    /// The runtimes that were on this node at the last check.
    last_runtimes: Mutex<HashSet<String>>,
}

impl RuntimeNode {
    /// Registers this node, before anyone can request an operation.
    pub(crate) async fn open(
        store: &Store,
        options: RuntimeOptions,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, StoreError> {
        let context = NodeContext {
            instance: store.instance().await?,
            node: options.node.clone(),
            state_root: options.state_root.clone(),
        };
        let docker: Box<dyn Driver> = Box::new(Docker::new(&options.docker_host));
        let fault = docker.ping().await.err().map(|error| error.to_string());
        store.beat_engine_node(&options.node, options.offer.clone(), fault).await?;
        // A SQLite database has one server, so what its node left behind belongs to a process that ended. On PostgreSQL
        // another server may run with the same node name: its jobs must wait for their lease.
        if !store.is_postgres() {
            let left = store.release_node_workers(&options.node).await?;
            if left > 0 {
                tracing::info!(node = options.node, workers = left, "released the jobs of the previous process");
            }
        }
        let shared = NodeShared {
            docker,
            context,
            options,
            tracker,
            stop,
            watched: Mutex::default(),
            starved: Mutex::default(),
            reconcile: tokio::sync::Notify::new(),
            retry_reconcile: AtomicBool::new(false),
            last_runtimes: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn name(&self) -> &str {
        &self.shared.context.node
    }

    pub fn offer(&self) -> &NodeOffer {
        &self.shared.options.offer
    }

    /// The log of the runtime's container, from the last `tail` lines on.
    pub(crate) async fn logs(&self, runtime: &Runtime, tail: i64, follow: Follow) -> Result<LogStream, LogsError> {
        let log = self.shared.docker.logs(logs::container(runtime)?, tail, follow).await?;
        Ok(log.map_err(LogsError::from).boxed())
    }

    /// Follows Docker's events until the node stops.
    pub(crate) async fn follow_events(self, store: Store) {
        events::follow(&self.shared, &store).await;
    }
}

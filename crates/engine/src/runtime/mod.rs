//! Runtimes on this node's own Docker engine: operations are done (`work`), containers watched (`watch`, `events`) and
//! compared with what is written down (`reconcile`). `logs` are read from any node.
//!
//! Each node drives the engine beside it and nothing else, by the calls of `driver`; what the nodes know of each other is in
//! the database.

pub mod container;
pub mod docker;
pub mod driver;
mod events;
pub mod logs;
mod operate;
mod reconcile;
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
use logs::{LogFlow, LogsError};
pub(crate) use watch::WatchRuntimes;
pub(crate) use work::OperateRuntimes;

/// How this node drives its engine.
#[derive(Clone, Debug)]
pub struct RuntimeOptions {
    /// `unix://` and the path of the engine's socket.
    pub docker_host: String,
    /// What this node is called, the same after a restart: runtimes are bound to it.
    pub node: String,
    /// What it has for runtimes.
    pub offer: NodeOffer,
    /// Under which every runtime has its state path.
    pub state_root: PathBuf,
    pub probe_every: Duration,
    pub inspect_every: Duration,
    pub reconcile_every: Duration,
    /// How long a node has been silent when what is movable is taken off it.
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

/// Where operations are done.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) instance: String,
    pub(crate) node: String,
    pub(crate) state_root: PathBuf,
}

/// This node's engine and what is remembered of it between two looks. Cheap to clone.
#[derive(Clone)]
pub struct RuntimeNode {
    shared: Arc<Shared>,
}

struct Shared {
    docker: Box<dyn Driver>,
    place: Place,
    options: RuntimeOptions,
    tracker: TaskTracker,
    stop: CancellationToken,
    watched: Mutex<HashMap<String, watch::Watched>>,
    /// Containers that ran out of memory: the engine says so just before it tells of their end.
    starved: Mutex<HashSet<String>>,
    /// Containers and records are to be compared at the next look.
    reconcile: tokio::sync::Notify,
    /// Something was left for later when they were compared.
    left_over: AtomicBool,
    /// What was on this node when it was last looked at.
    seen_here: Mutex<HashSet<String>>,
}

impl RuntimeNode {
    /// Says that this node is there, before anybody can ask for an operation.
    pub(crate) async fn open(
        store: &Store,
        options: RuntimeOptions,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Result<Self, StoreError> {
        let place = Place {
            instance: store.instance().await?,
            node: options.node.clone(),
            state_root: options.state_root.clone(),
        };
        let docker: Box<dyn Driver> = Box::new(Docker::new(&options.docker_host));
        let fault = docker.ping().await.err().map(|error| error.to_string());
        store.beat_engine_node(&options.node, options.offer.clone(), fault).await?;
        let shared = Shared {
            docker,
            place,
            options,
            tracker,
            stop,
            watched: Mutex::default(),
            starved: Mutex::default(),
            reconcile: tokio::sync::Notify::new(),
            left_over: AtomicBool::new(false),
            seen_here: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn name(&self) -> &str {
        &self.shared.place.node
    }

    pub fn offer(&self) -> &NodeOffer {
        &self.shared.options.offer
    }

    /// What the runtime's container wrote, from the last `tail` lines on.
    pub(crate) async fn logs(&self, runtime: &Runtime, tail: i64, follow: Follow) -> Result<LogFlow, LogsError> {
        let log = self.shared.docker.logs(logs::container(runtime)?, tail, follow).await?;
        Ok(log.map_err(LogsError::from).boxed())
    }

    /// Follows the engine's events for as long as the node runs.
    pub(crate) async fn follow_events(self, store: Store) {
        events::follow(&self.shared, &store).await;
    }
}

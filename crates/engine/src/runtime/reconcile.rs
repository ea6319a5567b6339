//! Compares this node's containers with what is written down (R5): at start, every five minutes, and when a container has
//! disappeared. Only what carries this installation's label is looked at, and nothing that is in flight is touched.

use std::collections::{HashMap, HashSet};

use domain::limits::STOPPED_CONTAINER_KEPT_S;
use domain::runtime::{OperationKind, OperationSource, RuntimeStatus};
use store::runtimes::Runtime;
use store::runtimes::reconcile::{Adopted, Found};
use store::runtimes::request::NewOperation;
use store::{Store, StoreError};

use super::container::{INSTANCE, Identity, NODE};
use super::driver::{Container, DriverError};
use super::{Shared, state_path};

#[derive(Debug)]
pub(super) enum ReconcileError {
    Engine(DriverError),
    Store(StoreError),
}

impl From<DriverError> for ReconcileError {
    fn from(error: DriverError) -> Self {
        Self::Engine(error)
    }
}

impl From<StoreError> for ReconcileError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What was done, in words.
pub(super) async fn run(shared: &Shared, store: &Store) -> Result<Option<String>, ReconcileError> {
    let label = format!("{INSTANCE}={}", shared.place.instance);
    let mut containers: HashMap<String, (Identity, Container)> = HashMap::new();
    for id in shared.docker.labelled(&label).await? {
        if let Some(found) = shared.docker.inspect(&id).await?
            && let Some(identity) = Identity::of(&shared.place.instance, &found.labels)
        {
            containers.insert(found.id.clone(), (identity, found));
        }
    }
    // Read after the containers: one that was made in between has its record in flight.
    let runtimes = store.runtimes_of_node(&shared.place.node).await?;
    let bound: HashSet<&str> = runtimes.iter().filter_map(|runtime| runtime.container_id.as_deref()).collect();
    let mut done = Vec::new();
    for runtime in runtimes.iter().filter(|runtime| runtime.in_flight.is_none()) {
        let gone = runtime.container_id.as_deref().filter(|id| !containers.contains_key(*id));
        // Asked for once more: an operation that ended since the containers were listed may have made it.
        if let Some(id) = gone
            && shared.docker.inspect(id).await?.is_none()
        {
            let why = "the record's container is gone";
            if store.dispose_of_record(runtime.tenant, &runtime.name, id, why).await? {
                tracing::info!(runtime = %runtime.name, container = id, why, "a record was disposed of");
                store.hints().runtimes_changed();
                done.push(format!("{} disposed of", runtime.name));
            }
        }
        clean(store, runtime).await?;
    }
    for (id, (identity, found)) in &containers {
        if bound.contains(id.as_str()) {
            continue;
        }
        done.extend(unbound(shared, store, identity, found).await?);
    }
    Ok((!done.is_empty()).then(|| done.join(", ")))
}

/// A container of ours that no record names.
async fn unbound(
    shared: &Shared,
    store: &Store,
    identity: &Identity,
    found: &Container,
) -> Result<Option<String>, ReconcileError> {
    let Identity { tenant, runtime: name, .. } = identity;
    let record = store.runtime(*tenant, name).await?;
    let other = record.as_ref().and_then(|record| record.container_id.clone());
    if other.as_ref() == Some(&found.id) {
        return Ok(None);
    }
    // What happens to the runtime on another node does not concern the container that it left behind here.
    let moved_to = record.as_ref().and_then(|record| record.node.clone()).filter(|node| *node != shared.place.node);
    let left_behind = moved_to.filter(|_| found.labels.get(NODE) == Some(&shared.place.node));
    if record.as_ref().is_some_and(|record| record.in_flight.is_some()) && left_behind.is_none() {
        shared.look_again_soon();
        return Ok(None);
    }
    if other.is_some() || found.fresh || left_behind.is_some() {
        let why = match (&left_behind, &other) {
            (Some(node), _) => format!("its runtime was moved to {node}"),
            (None, Some(_)) => "its runtime has another container".into(),
            (None, None) => "it was made and never started".into(),
        };
        shared.docker.remove(&found.id).await?;
        store.log_disposed(*tenant, name, &found.id, &why).await?;
        tracing::info!(runtime = %name, container = found.id, why, "a container was disposed of");
        return Ok(Some(format!("a container of {name} disposed of")));
    }
    let port = record.as_ref().and_then(|record| record.spec.ports.first()).map(|port| port.container);
    let port = port.or_else(|| found.ports.first().map(|(inside, _, _)| *inside));
    let root = shared.place.state_root.canonicalize().unwrap_or_else(|_| shared.place.state_root.clone());
    let why = if record.is_some() { "its record names no container" } else { "it has no record" };
    let adopted = Found {
        tenant: *tenant,
        name: name.clone(),
        container_id: found.id.clone(),
        image: found.image.clone(),
        running: found.running,
        endpoint: port.and_then(|port| found.address_of(port)).map(|address| format!("http://{address}")),
        state_path: state_path::of(&root, *tenant, name).display().to_string(),
    };
    match store.adopt_container(&shared.place.node, adopted, why).await? {
        Adopted::Adopted => {
            tracing::info!(runtime = %name, container = found.id, why, "a container was adopted");
            Ok(Some(format!("{name} adopted")))
        }
        Adopted::LeftAlone => {
            tracing::info!(runtime = %name, container = found.id, "a container was left alone: its tenant is unknown");
            Ok(None)
        }
    }
}

/// A container that has been stopped for a month is removed. The state path stays.
async fn clean(store: &Store, runtime: &Runtime) -> Result<(), StoreError> {
    let old = runtime.stopped_at.is_some_and(|at| store.clock().now() >= at.plus_s(STOPPED_CONTAINER_KEPT_S));
    if runtime.status != RuntimeStatus::Stopped || runtime.container_id.is_none() || !old {
        return Ok(());
    }
    tracing::info!(runtime = %runtime.name, "a container has been stopped for long: it is removed");
    let cleanup = NewOperation {
        kind: OperationKind::CleanupContainer,
        source: OperationSource::AutoReconcile,
        source_ref: Some("stopped for 30 days".into()),
        image: None,
        actor: "reconcile".into(),
        depth: 0,
        on: None,
    };
    store.request_operation(runtime.tenant, &runtime.name, cleanup).await.map(drop)
}

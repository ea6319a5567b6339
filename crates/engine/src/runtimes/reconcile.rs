//! Reconciles this node's containers with their records: at the start, every five minutes, and when a container has
//! disappeared. Considers only containers with this installation's label, and skips runtimes with an operation in
//! progress.

use std::collections::{HashMap, HashSet};

use domain::limits::STOPPED_CONTAINER_RETENTION_S;
use domain::runtimes::{OperationKind, OperationSource, RuntimeStatus};
use store::runtimes::Runtime;
use store::runtimes::reconcile::{Adopted, FoundContainer};
use store::runtimes::request::NewOperation;
use store::{Store, StoreError};

use super::container::{INSTANCE, Identity, NODE};
use super::driver::{Container, DriverError};
use super::{NodeShared, state_path};

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

/// Returns a description of the changes, if any.
pub(super) async fn run(shared: &NodeShared, store: &Store) -> Result<Option<String>, ReconcileError> {
    let label = format!("{INSTANCE}={}", shared.context.instance);
    let mut containers: HashMap<String, (Identity, Container)> = HashMap::new();
    for id in shared.docker.labelled(&label).await? {
        if let Some(found) = shared.docker.inspect(&id).await?
            && let Some(identity) = Identity::of(&shared.context.instance, &found.labels)
        {
            containers.insert(found.id.clone(), (identity, found));
        }
    }
    // Read after the containers: the record of a container that was created in between has an operation in progress.
    let runtimes = store.runtimes_of_node(&shared.context.node).await?;
    let bound: HashSet<&str> = runtimes.iter().filter_map(|runtime| runtime.container_id.as_deref()).collect();
    let mut done = Vec::new();
    for runtime in runtimes.iter().filter(|runtime| runtime.in_flight.is_none()) {
        let missing = runtime.container_id.as_deref().filter(|id| !containers.contains_key(*id));
        // Check again: an operation that ended since the listing may have created the container.
        if let Some(id) = missing
            && shared.docker.inspect(id).await?.is_none()
        {
            let why = "the record's container no longer exists";
            if store.dispose_of_record(runtime.tenant, &runtime.name, id, why).await? {
                tracing::info!(runtime = %runtime.name, container = id, why, "disposed of a record");
                store.notifier().runtimes_changed();
                done.push(format!("{} disposed of", runtime.name));
            }
        }
        clean(store, runtime).await?;
    }
    for (id, (identity, found)) in &containers {
        if bound.contains(id.as_str()) {
            continue;
        }
        done.extend(handle_unbound(shared, store, identity, found).await?);
    }
    Ok((!done.is_empty()).then(|| done.join(", ")))
}

/// Handles a container of this installation that no record refers to.
async fn handle_unbound(
    shared: &NodeShared,
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
    // An operation on the runtime's new node does not concern the container that was left behind on this one.
    let moved_to = record.as_ref().and_then(|record| record.node.clone()).filter(|node| *node != shared.context.node);
    let left_behind = moved_to.filter(|_| found.labels.get(NODE) == Some(&shared.context.node));
    if record.as_ref().is_some_and(|record| record.in_flight.is_some()) && left_behind.is_none() {
        shared.retry_reconcile_soon();
        return Ok(None);
    }
    if other.is_some() || found.fresh || left_behind.is_some() {
        let why = match (&left_behind, &other) {
            (Some(node), _) => format!("the runtime was moved to {node}"),
            (None, Some(_)) => "the runtime has another container".into(),
            (None, None) => "it was created and never started".into(),
        };
        shared.docker.remove(&found.id).await?;
        store.log_disposed(*tenant, name, &found.id, &why).await?;
        tracing::info!(runtime = %name, container = found.id, why, "disposed of a container");
        return Ok(Some(format!("a container of {name} disposed of")));
    }
    let port = record.as_ref().and_then(|record| record.spec.ports.first()).map(|port| port.container);
    let port = port.or_else(|| found.ports.first().map(|(inside, _, _)| *inside));
    let root = shared.context.state_root.canonicalize().unwrap_or_else(|_| shared.context.state_root.clone());
    let why = if record.is_some() { "the record has no container" } else { "there is no record" };
    let adopted = FoundContainer {
        tenant: *tenant,
        name: name.clone(),
        container_id: found.id.clone(),
        image: found.image.clone(),
        running: found.running,
        endpoint: port.and_then(|port| found.address_of(port)).map(|address| format!("http://{address}")),
        state_path: state_path::of(&root, *tenant, name).display().to_string(),
    };
    match store.adopt_container(&shared.context.node, adopted, why).await? {
        Adopted::Adopted => {
            tracing::info!(runtime = %name, container = found.id, why, "adopted a container");
            Ok(Some(format!("{name} adopted")))
        }
        Adopted::Untouched => {
            tracing::info!(runtime = %name, container = found.id, "ignored a container of an unknown tenant");
            Ok(None)
        }
    }
}

/// Requests the removal of a container that has been stopped for a month. Its state path stays.
async fn clean(store: &Store, runtime: &Runtime) -> Result<(), StoreError> {
    let old = runtime.stopped_at.is_some_and(|at| store.clock().now() >= at.plus_s(STOPPED_CONTAINER_RETENTION_S));
    if runtime.status != RuntimeStatus::Stopped
        || runtime.container_id.is_none()
        || !old
        || store.retention_held_until().await?.is_some()
    {
        return Ok(());
    }
    tracing::info!(runtime = %runtime.name, "removing a container that has been stopped for a month");
    let cleanup = NewOperation {
        kind: OperationKind::CleanupContainer,
        source: OperationSource::AutoTtl,
        source_ref: Some("stopped for 30 days".into()),
        image: None,
        actor: "reconcile".into(),
        depth: 0,
        on: None,
    };
    store.request_operation(runtime.tenant, &runtime.name, cleanup).await.map(drop)
}

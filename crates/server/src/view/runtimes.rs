//! Views of runtimes, operations, nodes and health.

use domain::runtimes::{Observation, OperationCode, OperationKind, Placement, RuntimeStatus};
use store::runtimes::nodes::EngineNode;
use store::runtimes::{OperationOutcome, OperationRecord, Runtime};
use wire::{
    NodeView, OperationView, PlacementSettings, PortSettings, ProbeSettings, RuntimeHealth, RuntimeView, VolumeSettings,
};

use super::time;
use crate::validate::runtimes::runtime::REDACTED_VALUE;

pub(crate) fn runtime(runtime: Runtime, nodes: &[EngineNode], now: domain::Time) -> RuntimeView {
    let spec = runtime.spec;
    let lost = runtime.node.as_ref().and_then(|name| {
        let known = nodes.iter().find(|node| node.name == *name);
        match known {
            Some(node) if !node.is_lost(now) => None,
            Some(node) => Some(format!("node {name} has not reported for {} s", now.ms_since(node.seen_at) / 1_000)),
            None => Some(format!("node {name} has never reported")),
        }
    });
    // Without a container there is no state to lose.
    let lost = lost.filter(|_| runtime.status != RuntimeStatus::Removed);
    let status = if lost.is_some() { "unavailable" } else { runtime.status.as_str() };
    let notice = lost.map(|lost| match spec.movable {
        true => format!("{lost}; the runtime will be started on another suitable node"),
        false => format!("{lost}; wait for the node to return, or run `windlass runtime move {}`", runtime.name),
    });
    RuntimeView {
        name: runtime.name.to_string(),
        image: spec.image.to_string(),
        command: spec.command,
        env: spec.env.into_keys().map(|name| (name, REDACTED_VALUE.to_owned())).collect(),
        ports: spec
            .ports
            .into_iter()
            .map(|port| PortSettings { container: port.container, host: port.host, address: Some(port.address) })
            .collect(),
        volumes: spec.volumes.iter().map(|volume| VolumeSettings { path: volume.target() }).collect(),
        network: spec.network.as_str().to_owned(),
        memory_mb: spec.memory_mb,
        cpus: spec.cpus,
        probe: spec.probe.map(|probe| ProbeSettings { path: probe.path, port: probe.port }),
        desired: spec.desired.map(|desired| desired.as_str().to_owned()),
        ttl_s: spec.ttl_s,
        stop_grace_s: spec.stop_grace_s,
        placement: placement(&spec.placement),
        movable: spec.movable,
        status: status.to_owned(),
        notice,
        in_flight: runtime.in_flight.map(|kind: OperationKind| kind.as_str().to_owned()),
        deleting: runtime.deleting,
        health: runtime.health.map(health),
        node: runtime.node,
        container_id: runtime.container_id,
        current_image: runtime.current_image,
        endpoint: runtime.endpoint,
        state_path: runtime.state_path,
        created_at: time(runtime.created_at),
        updated_at: time(runtime.updated_at),
        started_at: runtime.started_at.map(time),
        stopped_at: runtime.stopped_at.map(time),
        removed_at: runtime.removed_at.map(time),
        last_op_at: runtime.last_op_at.map(time),
    }
}

pub(crate) fn node(node: EngineNode, used: i64, now: domain::Time) -> NodeView {
    NodeView {
        is_lost: node.is_lost(now),
        name: node.name,
        labels: node.offer.labels,
        slots: node.offer.slots,
        slots_taken: used,
        slots_free: node.offer.slots.map(|slots| (slots - used).max(0)),
        seen_at: time(node.seen_at),
        fault: node.fault,
    }
}

pub(crate) fn placement(requested: &Placement) -> PlacementSettings {
    PlacementSettings { labels: requested.labels.clone() }
}

pub(crate) fn health(observation: Observation) -> RuntimeHealth {
    RuntimeHealth {
        status: observation.status.as_str().to_owned(),
        source: observation.source.as_str().to_owned(),
        details: observation.details,
        observed_at: time(observation.observed_at),
    }
}

pub(crate) fn operation(line: OperationRecord) -> OperationView {
    OperationView {
        id: line.id,
        runtime: line.runtime.to_string(),
        kind: line.kind.as_str().to_owned(),
        source: line.source.as_str().to_owned(),
        source_ref: line.source_ref,
        actor: line.actor,
        image_ref: line.image_ref,
        container_id: line.container_id,
        outcome: line.outcome.map(|outcome: OperationOutcome| outcome.as_str().to_owned()),
        error_code: line.error_code.map(|code: OperationCode| code.as_str().to_owned()),
        error_message: line.error_message,
        requested_at: time(line.requested_at),
        started_at: line.started_at.map(time),
        finished_at: line.finished_at.map(time),
        correlation_id: line.correlation_id,
        job_id: line.job.map(|job| job.uuid()),
    }
}

//! Runtimes: containers that Windlass starts, monitors and stops.

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// The body of `PUT /runtimes/{name}`. A running container is not changed; `restart` applies the new declaration.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeRequest {
    /// The image reference.
    pub image: String,
    /// Default: the image's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Values are secret: views show asterisks instead, and asterisks that are sent back retain the stored value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    /// Ports to publish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortSettings>>,
    /// Directories that outlive the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumeSettings>>,
    /// `bridge` (default), `none`, or the name of a network on the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Memory limit in MiB. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<i64>,
    /// CPU limit. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// An HTTP request that decides the health. Default: the container runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSettings>,
    /// `running`: Windlass starts the container whenever it is not running. `stopped`: Windlass stops it whenever it is
    /// running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
    /// Seconds after its start at which the runtime is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<i64>,
    /// Seconds between the stop signal and the kill signal. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_s: Option<i64>,
    /// Nodes that may run it. Default: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
    /// Starts the runtime on another node if its node is lost. The contents of its volumes are not moved. Default:
    /// false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movable: Option<bool>,
}

/// Requirements that a node must meet.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementSettings {
    /// Labels that the node must have, as set with `windlass serve --engine-label NAME=VALUE`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortSettings {
    /// The port in the container.
    pub container: u16,
    /// Default: a free port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<u16>,
    /// The address on which the port is published. Default: loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSettings {
    /// A directory in the container. It is stored under the same path below the runtime's state directory.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeSettings {
    /// The path of the request, for example `/health`.
    pub path: String,
    /// The container's side of one of the published ports.
    pub port: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeView {
    /// The runtime's name.
    pub name: String,
    /// The declared image.
    pub image: String,
    /// The command; empty means the image's command.
    pub command: Vec<String>,
    /// The environment with asterisks instead of values.
    pub env: BTreeMap<String, String>,
    /// Published ports.
    pub ports: Vec<PortSettings>,
    /// Directories that outlive the container.
    pub volumes: Vec<VolumeSettings>,
    /// The network.
    pub network: String,
    /// Memory limit in MiB.
    pub memory_mb: Option<i64>,
    /// CPU limit.
    pub cpus: Option<f64>,
    /// The HTTP request that decides the health.
    pub probe: Option<ProbeSettings>,
    /// `running` or `stopped`; `null` means that only operations start and stop it.
    pub desired: Option<String>,
    /// Seconds after its start at which the runtime is stopped.
    pub ttl_s: Option<i64>,
    /// Seconds between the stop signal and the kill signal.
    pub stop_grace_s: Option<i64>,
    /// Nodes that may run it.
    pub placement: PlacementSettings,
    /// Whether it starts on another node if its node is lost.
    pub movable: bool,
    /// `running`, `stopped` or `removed`; `unavailable` while its node is lost.
    pub status: String,
    /// Why the runtime is unavailable, and what to do about it.
    pub notice: Option<String>,
    /// The operation that is requested or in progress.
    pub in_flight: Option<String>,
    /// The runtime is deleted as soon as its container is removed.
    pub deleting: bool,
    /// The newest observation.
    pub health: Option<RuntimeHealth>,
    /// The node with the engine that runs it.
    pub node: Option<String>,
    /// The container's id on the engine.
    pub container_id: Option<String>,
    /// The image of the current container.
    pub current_image: Option<String>,
    /// The address of its first published port.
    pub endpoint: Option<String>,
    /// The directory on the node that has the volumes.
    pub state_path: Option<String>,
    /// When the runtime was declared.
    pub created_at: Timestamp,
    /// When the declaration or the status last changed.
    pub updated_at: Timestamp,
    /// When the container was last started.
    pub started_at: Option<Timestamp>,
    /// When the container last stopped.
    pub stopped_at: Option<Timestamp>,
    /// When the container was removed.
    pub removed_at: Option<Timestamp>,
    /// When the last operation ended.
    pub last_op_at: Option<Timestamp>,
}

/// A node that manages a Docker engine.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// The node's name.
    pub name: String,
    /// The labels that placements match.
    pub labels: BTreeMap<String, String>,
    /// Maximum number of runtimes on the node; `null` means no limit.
    pub slots: Option<i64>,
    /// Runtimes that run on the node or are being started there.
    pub slots_taken: i64,
    /// Runtimes that can still be placed; `null` means no limit.
    pub slots_free: Option<i64>,
    /// When the node last reported.
    pub seen_at: Timestamp,
    /// The node has not reported for 15 s. Nothing is placed on it, and its runtimes are unavailable.
    pub is_lost: bool,
    /// Why the node's engine is unreachable.
    pub fault: Option<String>,
}

/// The body of `move`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The target node. Default: the suitable node with the most free slots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// One observation of a runtime's health.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeHealth {
    /// `healthy`, `probe_failed`, `exited`, `oom`, `inspect_unhealthy` or `container_disappeared`.
    pub status: String,
    /// `docker_event`, `inspect` or `probe`.
    pub source: String,
    /// The observation for people.
    pub details: String,
    /// When it was observed.
    pub observed_at: Timestamp,
}

/// The current health and its history. `status` is `null` before the first observation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeHealthView {
    /// The current status.
    pub status: Option<String>,
    /// The source of the newest observation.
    pub source: Option<String>,
    /// The newest observation for people.
    pub details: Option<String>,
    /// When it was observed.
    pub observed_at: Option<Timestamp>,
    /// Every change, newest first.
    pub items: Vec<RuntimeHealth>,
    /// Pass it as `?cursor=` to get the next page; `null` on the last page.
    pub next_cursor: Option<String>,
}

/// The body of `start` and `patch`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// The image to run. Required for `patch`. Default: the declared image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// The body of `stop`: empty, or an object without members.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NoFields {}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationAccepted {
    /// The operation's id.
    pub operation_id: Uuid,
    /// The job that executes the operation.
    pub job_id: Uuid,
}

/// One attempt of one operation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// The operation's id.
    pub id: Uuid,
    /// The runtime's name.
    pub runtime: String,
    /// `start`, `stop`, `restart`, `patch`, `cleanup_container`, `reconcile_adopt` or `reconcile_dispose`.
    pub kind: String,
    /// `api`, `cli`, `stream`, `auto_ttl`, `auto_reconcile` or `auto_scale`.
    pub source: String,
    /// The id of the source, for example of a trigger.
    pub source_ref: Option<String>,
    /// The principal or the component that requested it.
    pub actor: String,
    /// The image that was run.
    pub image_ref: Option<String>,
    /// The container that was started or stopped.
    pub container_id: Option<String>,
    /// `success` or `failure`; `null` while the operation is in progress.
    pub outcome: Option<String>,
    /// A stable code of the error, for example `timeout`.
    pub error_code: Option<String>,
    /// The error for people.
    pub error_message: Option<String>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// When the attempt started.
    pub started_at: Option<Timestamp>,
    /// When the attempt ended.
    pub finished_at: Option<Timestamp>,
    /// Shared by related operations: a restart and its steps, or an operation and its retries.
    pub correlation_id: Uuid,
    /// The job that executes the operation.
    pub job_id: Option<Uuid>,
}

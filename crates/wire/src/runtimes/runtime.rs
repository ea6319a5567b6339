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
    pub image: String,
    /// Default: the image's command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Values are secret: views show asterisks instead, and asterisks that are sent back retain the stored value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortSettings>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumeSettings>>,
    /// `bridge` (default), `none`, or the name of a network on the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
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
    pub path: String,
    /// The container's side of one of the published ports.
    pub port: u16,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeView {
    pub name: String,
    pub image: String,
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub ports: Vec<PortSettings>,
    pub volumes: Vec<VolumeSettings>,
    pub network: String,
    pub memory_mb: Option<i64>,
    pub cpus: Option<f64>,
    pub probe: Option<ProbeSettings>,
    pub desired: Option<String>,
    pub ttl_s: Option<i64>,
    pub stop_grace_s: Option<i64>,
    pub placement: PlacementSettings,
    pub movable: bool,
    /// `running`, `stopped` or `removed`; `unavailable` while its node is lost.
    pub status: String,
    /// Why the runtime is unavailable, and what to do about it.
    pub notice: Option<String>,
    /// The operation that is requested or in progress.
    pub in_flight: Option<String>,
    /// The runtime is deleted as soon as its container is removed.
    pub deleting: bool,
    pub health: Option<RuntimeHealth>,
    /// The node with the engine that runs it.
    pub node: Option<String>,
    pub container_id: Option<String>,
    pub current_image: Option<String>,
    /// The address of its first published port.
    pub endpoint: Option<String>,
    pub state_path: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    pub removed_at: Option<Timestamp>,
    pub last_op_at: Option<Timestamp>,
}

/// A node that manages a Docker engine.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Maximum number of runtimes on the node; `null` means no limit.
    pub slots: Option<i64>,
    /// Runtimes that run on the node or are being started there.
    pub slots_taken: i64,
    pub slots_free: Option<i64>,
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
    pub details: String,
    pub observed_at: Timestamp,
}

/// The current health and its history. `status` is `null` before the first observation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeHealthView {
    pub status: Option<String>,
    pub source: Option<String>,
    pub details: Option<String>,
    pub observed_at: Option<Timestamp>,
    /// Every change, newest first.
    pub items: Vec<RuntimeHealth>,
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

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationAccepted {
    pub operation_id: Uuid,
    /// The job that executes the operation.
    pub job_id: Uuid,
}

/// One attempt of one operation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    pub id: Uuid,
    pub runtime: String,
    /// `start`, `stop`, `restart`, `patch`, `cleanup_container`, `reconcile_adopt` or `reconcile_dispose`.
    pub kind: String,
    /// `api`, `cli`, `stream`, `auto_ttl`, `auto_reconcile` or `auto_scale`.
    pub source: String,
    pub source_ref: Option<String>,
    pub actor: String,
    pub image_ref: Option<String>,
    pub container_id: Option<String>,
    /// `success` or `failure`; `null` while the operation is in progress.
    pub outcome: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub requested_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Shared by related operations: a restart and its steps, or an operation and its retries.
    pub correlation_id: Uuid,
    pub job_id: Option<Uuid>,
}

//! Runtimes: containers that Windlass starts, watches and stops (R1 to R5).

use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// What `PUT /runtimes/{name}` declares. What runs is left alone: `restart` brings it up to date.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuntimeRequest {
    pub image: String,
    /// The image's own, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Values are kept secret: a view shows stars, and stars given back keep what is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<PortSettings>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Vec<VolumeSettings>>,
    /// `bridge` unless given, `none`, or a network that you made on the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeSettings>,
    /// `running`: it is started now and whenever it does not run. `stopped`: likewise the other way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<String>,
    /// It is stopped so long after it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<i64>,
    /// How long it gets to end by itself when it is stopped: 10 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_s: Option<i64>,
    /// Which nodes will do: any, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
    /// When its node is lost it is started on another. What is in its volumes stays behind. Not unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movable: Option<bool>,
}

/// What a node must have to be chosen.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlacementSettings {
    /// Each with this value, as the node was started with: `--engine-label NAME=VALUE`.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PortSettings {
    pub container: u16,
    /// A free one, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<u16>,
    /// Where it is published: on loopback, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSettings {
    /// The folder in the container; it is kept at the same place below the runtime's state path.
    pub path: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProbeSettings {
    pub path: String,
    /// The container's side of one of the ports.
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
    /// `running`, `stopped` or `removed`; `unavailable` while the node that drives it is lost.
    pub status: String,
    /// What is to be said of it beside that: why it is unavailable, and what can be done.
    pub notice: Option<String>,
    /// The operation that is asked for or under way.
    pub in_flight: Option<String>,
    /// It goes when its container has gone.
    pub deleting: bool,
    pub health: Option<RuntimeHealth>,
    /// The node that drives the engine it is on.
    pub node: Option<String>,
    pub container_id: Option<String>,
    pub current_image: Option<String>,
    /// Where its first port answers.
    pub endpoint: Option<String>,
    pub state_path: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub stopped_at: Option<Timestamp>,
    pub removed_at: Option<Timestamp>,
    pub last_op_at: Option<Timestamp>,
}

/// A node that drives a Docker engine.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Runtimes that it takes at once; no bound when null.
    pub slots: Option<i64>,
    /// Runtimes that run there or are being brought up.
    pub slots_taken: i64,
    pub slots_free: Option<i64>,
    pub seen_at: Timestamp,
    /// It has been silent for 15 s: nothing is placed there, and its runtimes are unavailable.
    pub is_lost: bool,
    /// Why its engine cannot be reached.
    pub fault: Option<String>,
}

/// What `move` may be told.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The one with the most free slots among those that will do, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// One observation.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RuntimeHealth {
    /// `healthy`, `probe_failed`, `exited`, `oom`, `inspect_unhealthy` or `container_disappeared`.
    pub status: String,
    /// `docker_event`, `inspect` or `probe`.
    pub source: String,
    pub details: String,
    pub observed_at: Timestamp,
}

/// What is held to be true, and what was before. Before anything was seen, `status` is null.
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

/// What `start` and `patch` may be told.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OperationRequest {
    /// The declared one, unless given; a patch needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OperationAccepted {
    pub operation_id: Uuid,
    /// The job that does it.
    pub job_id: Uuid,
}

/// One line of the log: one try of one operation.
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
    /// `success` or `failure`, once it has ended.
    pub outcome: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub requested_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// The same for all that belongs together: a restart and its steps, an operation and its further tries.
    pub correlation_id: Uuid,
    pub job_id: Option<Uuid>,
}

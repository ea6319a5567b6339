//! Pools: a number of slots that many runtimes share.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::runtimes::runtime::PlacementSettings;

/// The body of `PUT /pools/{name}`.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRequest {
    /// Maximum number of runtimes that run at the same time.
    pub slots: u32,
    /// Memory available to the pool. The declaration is rejected if the largest members that fit into the slots need
    /// more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<i64>,
    /// The runtimes that share the slots.
    pub members: Vec<MemberSettings>,
    /// The queue that the pool runs the jobs of. Default: the queue with the pool's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Seconds for which older jobs of other affinities may be passed over. Written to the queue's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_s: Option<i64>,
    /// Seconds without work after which a runtime is stopped. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<i64>,
    /// How a runtime receives a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<HandlerSettings>,
    /// Nodes that may run the pool; its runtimes start on the same node. Default: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberSettings {
    /// The affinity of the jobs that the runtime runs.
    pub affinity: String,
    /// The name of the runtime.
    pub runtime: String,
    /// `as_needed` (default), `preloaded`, or `pinned`: the runtime occupies a slot of its own permanently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stay: Option<String>,
}

/// How a runtime receives a job: the payload is sent by POST to its endpoint, and the response is the job's result.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandlerSettings {
    /// Default: `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Jobs in progress per slot. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    /// The pool's name.
    pub name: String,
    /// Maximum number of runtimes that run at the same time.
    pub slots: u32,
    /// Memory available to the pool in MiB.
    pub memory_mb: Option<i64>,
    /// The queue that the pool runs the jobs of.
    pub queue: String,
    /// Seconds for which older jobs of other affinities may be passed over.
    pub starvation_s: Option<i64>,
    /// Seconds without work after which a runtime is stopped; `null` means never.
    pub idle_stop_s: Option<i64>,
    /// How a runtime receives a job.
    pub handler: HandlerSettings,
    /// Nodes that may run the pool.
    pub placement: PlacementSettings,
    /// The runtimes with their state.
    pub members: Vec<MemberView>,
    /// The node that runs the pool.
    pub node: Option<String>,
    /// `swaps_made`: runtimes started because a job needed them. `swaps_avoided`: jobs claimed out of order to avoid a
    /// swap.
    pub swaps_made: i64,
    /// Jobs claimed out of order to avoid a swap. In arrival order each would have needed one.
    pub swaps_avoided: i64,
    /// `loads`: number of starts of a runtime. `load_s`: their mean duration.
    pub loads: u64,
    /// The mean duration of a start in seconds.
    pub load_s: Option<f64>,
    /// The mean time in seconds to stop a runtime for another.
    pub stop_s: Option<f64>,
    /// The mean duration of a swap in seconds: stop, start, and the time until the runtime is healthy.
    pub swap_s: Option<f64>,
    /// Estimated time that the avoided swaps would have taken: `swaps_avoided` times `swap_s`.
    pub minutes_saved: f64,
    /// Age of the oldest waiting job with an affinity that is not loaded.
    pub starvation_clock_s: Option<f64>,
    /// When the pool was declared.
    pub created_at: Timestamp,
    /// When the declaration last changed.
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    /// The affinity of the jobs that the runtime runs.
    pub affinity: String,
    /// The name of the runtime.
    pub runtime: String,
    /// `as_needed`, `preloaded` or `pinned`.
    pub stay: String,
    /// `idle`, `loading` or `loaded`.
    pub state: String,
    /// The slot that the runtime occupies.
    pub slot: Option<usize>,
    /// When the state began.
    pub since: Option<Timestamp>,
    /// `waiting`: jobs that wait for the member, counted up to 1,000. `oldest`: when the first of them became ready.
    pub waiting: i64,
    /// When the first waiting job became ready.
    pub oldest: Option<Timestamp>,
    /// `backoff_until`: the end of the backoff after a failure. `cause`: the reason for it.
    pub backoff_until: Option<Timestamp>,
    /// The reason for the backoff.
    pub cause: Option<String>,
}

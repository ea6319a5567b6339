//! Pools: a few slots that many runtimes take turns in (R7).

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::runtime::PlacementSettings;

/// What `PUT /pools/{name}` declares.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRequest {
    /// Runtimes that may be up at once.
    pub slots: u32,
    /// What they may take together: refused where the largest that fit into the slots would take more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<i64>,
    pub members: Vec<MemberSettings>,
    /// Whose jobs it runs: the queue of the pool's own name, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// How long other affinities may be passed over; written into the queue's settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_s: Option<i64>,
    /// A runtime that has had nothing to do for so long is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_stop_s: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<HandlerSettings>,
    /// Which nodes may run it: any, unless given. Its runtimes are started on the node that does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementSettings>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberSettings {
    pub affinity: String,
    pub runtime: String,
    /// `as_needed` unless given, `preloaded`, or `pinned`: it has a slot of its own and never leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stay: Option<String>,
}

/// How a runtime is given a job: the payload is posted to its endpoint, the answer is the result.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HandlerSettings {
    /// `/` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// 300 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Jobs that one slot has under way: 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_once: Option<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    pub name: String,
    pub slots: u32,
    pub memory_mb: Option<i64>,
    pub queue: String,
    pub starvation_s: Option<i64>,
    pub idle_stop_s: Option<i64>,
    pub handler: HandlerSettings,
    pub placement: PlacementSettings,
    pub members: Vec<MemberView>,
    /// The node that runs it.
    pub node: Option<String>,
    /// Times that a runtime was brought up for a job that needed it, and jobs that were taken out of turn to save that.
    pub swaps_made: i64,
    pub swaps_avoided: i64,
    /// Times that a runtime was brought up, and how long that took on average.
    pub loads: u64,
    pub load_s: Option<f64>,
    /// What the swaps that were avoided would have taken.
    pub minutes_saved: f64,
    /// For how long the oldest job of an affinity that is not up has waited.
    pub starvation_clock_s: Option<f64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct MemberView {
    pub affinity: String,
    pub runtime: String,
    pub stay: String,
    /// `idle`, `loading` or `loaded`.
    pub state: String,
    pub slot: Option<usize>,
    pub since: Option<Timestamp>,
    /// Jobs that wait for it, up to 1,000, and since when.
    pub waiting: i64,
    pub oldest: Option<Timestamp>,
    /// Until when it is left alone after a failure, and why.
    pub backoff_until: Option<Timestamp>,
    pub cause: Option<String>,
}

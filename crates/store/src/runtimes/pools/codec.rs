//! Converts a pool's spec to and from JSON, and defines its stored state.

use std::collections::BTreeMap;

use domain::runtimes::Placement;
use domain::runtimes::pool::{Handler, Member, PoolSpec, Stay};
use domain::{Label, Name, RuntimeName};
use serde::{Deserialize, Serialize};

use crate::db::codec::{from_json, to_json};
use crate::error::StoreError;

#[derive(Serialize, Deserialize)]
struct StoredPoolSpec {
    slots: u32,
    #[serde(default)]
    memory_mb: Option<i64>,
    members: Vec<StoredMember>,
    queue: String,
    starvation_s: Option<i64>,
    idle_stop_s: Option<i64>,
    path: String,
    timeout_s: i64,
    at_once: u32,
    /// Labels that the node must have.
    #[serde(default)]
    placement: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct StoredMember {
    affinity: String,
    runtime: String,
    stay: String,
}

/// The state of a pool, written by the node that runs it. Times are microseconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolState {
    /// By affinity.
    pub members: BTreeMap<String, MemberState>,
    /// How often a member's runtime was brought up, and the total time of that.
    pub loads: u64,
    pub load_ms: u64,
    /// How often a member's runtime was stopped to load another, and the total time of that.
    pub stops: u64,
    pub stop_ms: u64,
    /// How many of the loads a job required.
    pub swaps: u64,
}

impl PoolState {
    /// The mean time to stop a runtime for another. `None` before the first.
    pub fn stop_s(&self) -> Option<f64> {
        (self.stops > 0).then(|| self.stop_ms as f64 / 1e3 / self.stops as f64)
    }

    /// The mean time from the start of a runtime until it is healthy. `None` before the first.
    pub fn load_s(&self) -> Option<f64> {
        (self.loads > 0).then(|| self.load_ms as f64 / 1e3 / self.loads as f64)
    }

    /// The mean time of a swap: one runtime is stopped, the other is started and becomes healthy. A load into an empty
    /// slot needs no stop.
    pub fn swap_s(&self) -> Option<f64> {
        self.load_s().map(|load_s| load_s + self.stop_s().unwrap_or(0.0))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberState {
    /// `idle`, `loading` or `loaded`.
    pub state: String,
    pub slot: Option<usize>,
    pub since: Option<i64>,
    /// Consecutive failures to load the member.
    pub failures: u32,
    /// Until when the member is not loaded again, and why.
    pub backoff_until: Option<i64>,
    pub cause: Option<String>,
}

pub(crate) fn write(spec: &PoolSpec) -> String {
    let member = |member: &Member| StoredMember {
        affinity: member.affinity.to_string(),
        runtime: member.runtime.to_string(),
        stay: member.stay.as_str().into(),
    };
    to_json(&StoredPoolSpec {
        slots: spec.slots,
        memory_mb: spec.memory_mb,
        members: spec.members.iter().map(member).collect(),
        queue: spec.queue.to_string(),
        starvation_s: spec.starvation_s,
        idle_stop_s: spec.idle_stop_s,
        path: spec.handler.path.clone(),
        timeout_s: spec.handler.timeout_s,
        at_once: spec.handler.at_once,
        placement: spec.placement.labels.clone(),
    })
}

pub(crate) fn read(text: &str) -> Result<PoolSpec, StoreError> {
    let stored: StoredPoolSpec = from_json(text)?;
    let member = |member: StoredMember| Member {
        affinity: Label::stored(&member.affinity),
        runtime: RuntimeName::stored(&member.runtime),
        stay: Stay::parse(&member.stay).unwrap_or(Stay::AsNeeded),
    };
    Ok(PoolSpec {
        slots: stored.slots,
        memory_mb: stored.memory_mb,
        members: stored.members.into_iter().map(member).collect(),
        queue: Name::stored(&stored.queue),
        starvation_s: stored.starvation_s,
        idle_stop_s: stored.idle_stop_s,
        handler: Handler { path: stored.path, timeout_s: stored.timeout_s, at_once: stored.at_once },
        placement: Placement { labels: stored.placement },
    })
}

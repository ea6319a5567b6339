//! Queue settings: limits, retry policy, timeouts, retention, webhook.

use std::collections::BTreeMap;

use crate::limits::{RETENTION_DEFAULT_S, STARVATION_DEFAULT_S};
use crate::name::Name;
use crate::queue::retry::RetryPolicy;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueSettings {
    /// Maximum number of jobs of this queue that run concurrently, on all workers together.
    pub concurrency: Option<u32>,
    /// Maximum number of jobs with the same concurrency key that run concurrently. Default: 1.
    pub per_key: Option<u32>,
    pub rate_per_s: Option<f64>,
    pub starvation_s: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub timeout_s: Option<i64>,
    pub retention_s: Option<i64>,
    /// Phases that workers of this queue may report in addition to the built-in ones.
    pub phases: Vec<Name>,
    pub kinds: BTreeMap<Name, KindSettings>,
    /// Receives the state changes of jobs that have no webhook of their own.
    pub webhook: Option<Webhook>,
}

/// Where state changes are sent, and the secrets that sign them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub url: String,
    /// Each secret adds a signature. A receiver accepts any that it knows, which allows a rotation without downtime.
    pub secrets: Vec<String>,
}

/// Overrides for one kind of job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindSettings {
    pub retry: Option<RetryPolicy>,
    pub timeout_s: Option<i64>,
}

/// Phases that workers of every queue may report.
pub const PHASES: [&str; 7] = ["resolve", "fetch", "restore", "analyze", "policy", "report", "unknown"];

/// The requirement that an unknown phase violates, for error messages.
pub fn phase_requirement() -> String {
    format!("must be one of {}, or one that the queue declares", PHASES.join(", "))
}

impl QueueSettings {
    pub fn has_phase(&self, phase: &str) -> bool {
        PHASES.contains(&phase) || self.phases.iter().any(|declared| declared.as_str() == phase)
    }

    /// The names of the settings that differ, as in the API.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let same = [
            ("concurrency", self.concurrency == other.concurrency),
            ("per_key", self.per_key == other.per_key),
            ("rate_per_s", self.rate_per_s == other.rate_per_s),
            ("starvation_s", self.starvation_s == other.starvation_s),
            ("retry", self.retry == other.retry),
            ("timeout_s", self.timeout_s == other.timeout_s),
            ("retention_s", self.retention_s == other.retention_s),
            ("phases", self.phases == other.phases),
            ("kinds", self.kinds == other.kinds),
            ("webhook", self.webhook == other.webhook),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
    }

    /// The retry policy of a job of `kind` that has none of its own.
    pub fn retry_for(&self, kind: &Name) -> RetryPolicy {
        let of_kind = self.kinds.get(kind).and_then(|settings| settings.retry);
        of_kind.or(self.retry).unwrap_or(RetryPolicy::QUEUE_DEFAULT)
    }

    pub fn timeout_s_for(&self, kind: &Name) -> Option<i64> {
        self.kinds.get(kind).and_then(|settings| settings.timeout_s).or(self.timeout_s)
    }

    pub fn per_key_limit(&self) -> u32 {
        self.per_key.unwrap_or(1)
    }

    pub fn starvation_ms(&self) -> i64 {
        self.starvation_s.unwrap_or(STARVATION_DEFAULT_S).saturating_mul(1_000)
    }

    pub fn retention_s(&self) -> i64 {
        self.retention_s.unwrap_or(RETENTION_DEFAULT_S)
    }
}

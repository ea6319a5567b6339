//! What a queue may be told: limits, retry, time-outs, retention (Q8, Q12).

use std::collections::BTreeMap;

use crate::limits::{RETENTION_S_DEFAULT, STARVATION_S_DEFAULT};
use crate::name::Name;
use crate::retry::RetryPolicy;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueSettings {
    /// Jobs of this queue that may run at once, anywhere.
    pub concurrency: Option<u32>,
    /// Jobs with the same concurrency key that may run at once; one, unless set.
    pub per_key: Option<u32>,
    pub rate_per_s: Option<f64>,
    pub starvation_s: Option<i64>,
    pub retry: Option<RetryPolicy>,
    pub timeout_s: Option<i64>,
    pub retention_s: Option<i64>,
    /// Names of phases that workers of this queue may report beside the built-in ones.
    pub phases: Vec<Name>,
    pub kinds: BTreeMap<Name, KindSettings>,
    /// Where changes of state go of jobs that name no webhook of their own.
    pub webhook: Option<Webhook>,
}

/// Where to send changes of state, and what to sign them with (Q10).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    pub url: String,
    /// Each signs: a receiver that knows any of them accepts, which is how a secret is changed without a gap.
    pub secrets: Vec<String>,
}

/// What one kind of job in a queue does differently.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindSettings {
    pub retry: Option<RetryPolicy>,
    pub timeout_s: Option<i64>,
}

/// Phases that workers of every queue may report (S1).
pub const PHASES: [&str; 7] = ["resolve", "fetch", "restore", "analyze", "policy", "report", "unknown"];

/// What a phase must be, for who named another.
pub fn a_known_phase() -> String {
    format!("must be one of {}, or one that the queue declares", PHASES.join(", "))
}

impl QueueSettings {
    pub fn has_phase(&self, phase: &str) -> bool {
        PHASES.contains(&phase) || self.phases.iter().any(|declared| declared.as_str() == phase)
    }

    /// The members that are not the same in both, by the names they have in the API.
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

    /// The policy for a job of `kind` that brings none of its own.
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
        self.starvation_s.unwrap_or(STARVATION_S_DEFAULT).saturating_mul(1_000)
    }

    pub fn retention_s(&self) -> i64 {
        self.retention_s.unwrap_or(RETENTION_S_DEFAULT)
    }
}

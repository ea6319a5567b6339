//! Queues: settings, counts and pausing (Q12).

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::{RetrySettings, WebhookSettings};

/// What `PUT /queues/{name}` sets. What is left out goes back to its default.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// Jobs that may run at once, anywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Jobs with the same concurrency key that may run at once; 1 unless set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_key: Option<i64>,
    /// Jobs that may start in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// How long other affinities may be passed over before the oldest of them wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_s: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// How long ended jobs are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_s: Option<i64>,
    /// Names of phases beside the built-in ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<String>>,
    /// Where to send each change of state of jobs that name no webhook of their own. The same URL without a secret keeps
    /// the secrets it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
    /// What single kinds do differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeMap<String, KindSettings>>,
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KindSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    pub name: String,
    pub paused: bool,
    pub paused_reason: Option<String>,
    pub paused_by: Option<String>,
    pub paused_at: Option<Timestamp>,
    pub settings: QueueSettings,
    pub counts: QueueCounts,
    /// Since when the oldest job that could run has been waiting.
    pub oldest_waiting_at: Option<Timestamp>,
    /// How often a worker had to bring up another affinity.
    pub swaps_made: i64,
    /// How many jobs were taken from the held affinity while an older one of another waited.
    pub swaps_avoided: i64,
}

/// Kept, not counted: as of the last commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueCounts {
    pub scheduled: i64,
    /// Ready to run, or held back by a limit.
    pub queued: i64,
    /// `loading` and `working`.
    pub running: i64,
    /// Since the queue began, pruned jobs included.
    pub succeeded: i64,
    pub failed: i64,
    pub canceled: i64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

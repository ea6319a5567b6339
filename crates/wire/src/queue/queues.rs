//! Queues: settings, counts and pausing.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::queue::job::{RetrySettings, WebhookSettings};

/// The body of `PUT /queues/{name}`. A field that is left out returns to its default.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// Maximum number of running jobs on all nodes. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<i64>,
    /// Maximum number of running jobs with the same concurrency key. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_key: Option<i64>,
    /// Maximum number of jobs started per second. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_s: Option<f64>,
    /// Seconds for which older jobs of other affinities may be passed over before the oldest of them is claimed.
    /// Default: 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_s: Option<i64>,
    /// The backoff between attempts of jobs without a policy of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// Seconds after which a running attempt is stopped. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Seconds for which ended jobs are retained. Default: 604800 (7 days).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention_s: Option<i64>,
    /// Names of phases in addition to the built-in ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Vec<String>>,
    /// Receives every state change of jobs without a webhook of their own. The same URL without a secret retains the
    /// stored secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
    /// Settings that differ for single kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<BTreeMap<String, KindSettings>>,
}

#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KindSettings {
    /// The backoff between attempts of jobs of this kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// Seconds after which a running attempt of this kind is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// The queue's name.
    pub name: String,
    /// Whether no job of the queue may start.
    pub paused: bool,
    /// The reason given by the person who paused it.
    pub paused_reason: Option<String>,
    /// The principal that paused it.
    pub paused_by: Option<String>,
    /// When it was paused.
    pub paused_at: Option<Timestamp>,
    /// The settings that differ from the defaults.
    pub settings: QueueSettings,
    /// Jobs by state.
    pub counts: QueueCounts,
    /// When the longest-waiting job that could run became ready.
    pub oldest_waiting_at: Option<Timestamp>,
    /// How often a worker had to load another affinity.
    pub swaps_made: i64,
    /// How many jobs of a loaded affinity were claimed while an older job of another affinity waited.
    pub swaps_avoided: i64,
}

/// Counters that are maintained with every change, as of the last commit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueCounts {
    /// Held by no worker until something wakes the job.
    #[serde(default)]
    pub waiting: i64,
    /// Not due yet.
    pub scheduled: i64,
    /// Ready to run, or blocked by a limit.
    pub queued: i64,
    /// `loading` and `working`.
    pub running: i64,
    /// Since the queue was created, including deleted jobs.
    pub succeeded: i64,
    /// Jobs that failed permanently, since the queue was created.
    pub failed: i64,
    /// Jobs that were canceled, since the queue was created.
    pub canceled: i64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// The reason, shown to people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Which ended jobs of a queue to delete.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneRequest {
    /// Seconds since the end of the job. Default: the queue's retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_s: Option<i64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PruneView {
    /// Number of deleted jobs.
    pub pruned: usize,
    /// Whether there may be more jobs to delete.
    pub more: bool,
}

//! Runs: the requests that start them and the views of a run and its nodes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::{JobError, RetrySettings, WebhookSettings};
use crate::signals::signal::EtaRange;

/// A group of jobs with dependencies. All jobs are created or none.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// A name for people. Several runs may share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The run's id. Default: a new id. A second request with the same id returns 409.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What the first failure does to the rest of the run: `cancel` cancels the nodes that have not ended, except those with
    /// `when: failure` or `always`; `continue` lets independent nodes run. Default: `cancel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<String>,
    /// Receives the end of the run: `run.succeeded`, `run.failed` or `run.canceled`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
    /// Labels for listings, at most 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// The nodes, at most 10,000.
    pub nodes: Vec<NodeRequest>,
}

/// Nodes to add to a run that has not ended.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodesRequest {
    /// The nodes. Their `needs` may name nodes that the run has already.
    pub nodes: Vec<NodeRequest>,
}

/// A job of a run. The fields other than `name`, `needs` and `when` are those of a job.
#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeRequest {
    /// The node's name in the run.
    pub name: String,
    /// The names of the nodes that must end first. Their results are the `inputs` of the claimed job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<Vec<String>>,
    /// When the node starts: `success` after every need succeeded, `failure` after every need ended and at least one failed
    /// or was canceled, `always` after every need ended. Default: `success`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The queue's name.
    pub queue: String,
    /// The kind of work, for example `welcome`.
    pub kind: String,
    /// Any JSON; passed to the worker unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// What a worker must have loaded to run the job, for example the name of a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Jobs with a higher priority run first, from -32768 to 32767. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The earliest time at which the job may start. Default: when its needs are met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_at: Option<Timestamp>,
    /// The subject that the job works on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The process that the job counts for. Requires `subject`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    /// At most `per_key` jobs (a setting of the queue) with the same key run at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// Maximum number of attempts, from 1 to 1000. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<i64>,
    /// The backoff between attempts. Default: the queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetrySettings>,
    /// Seconds after which a running attempt is stopped and counts as failed. Default: the queue's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<i64>,
    /// Seconds from its creation after which the job fails with the code `deadline`, in any state. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<i64>,
    /// The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context. Workers, children and
    /// webhooks get it. Default: the header of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Labels for listings, at most 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Receives every state change of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookSettings>,
}

/// A run that was started, or nodes that were added.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunAccepted {
    /// The run's id.
    pub id: String,
    /// The jobs by the names of their nodes.
    pub nodes: BTreeMap<String, Uuid>,
}

/// The counts of a run's jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunCounts {
    /// Jobs that have not ended.
    pub live: i64,
    /// Jobs that succeeded.
    pub succeeded: i64,
    /// Jobs that failed.
    pub failed: i64,
    /// Jobs that were canceled or skipped.
    pub canceled: i64,
}

/// A run as returned by the API.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// The run's id.
    pub id: String,
    /// The run's name, or `null`.
    pub name: Option<String>,
    /// `running`, `succeeded`, `failed` or `canceled`.
    pub state: String,
    /// `cancel` or `continue`.
    pub on_failure: String,
    /// The counts of its jobs.
    pub counts: RunCounts,
    /// Labels.
    pub tags: Vec<String>,
    /// The principal that started the run.
    pub principal: String,
    /// The principal that canceled the run.
    pub canceled_by: Option<String>,
    /// The run that this run retries.
    pub parent: Option<String>,
    /// The run that retries this run.
    pub retried_as: Option<String>,
    /// When the run was started.
    pub created_at: Timestamp,
    /// When its first job started. Only `GET /runs/{id}` has it.
    pub started_at: Option<Timestamp>,
    /// When the run ended.
    pub finished_at: Option<Timestamp>,
    /// The nodes in the order of their creation. Only `GET /runs/{id}` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<RunNodeView>>,
}

/// A node of a run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunNodeView {
    /// The node's name. A job that was pushed with the run's id has its job id as the name.
    pub name: String,
    /// The job's id.
    pub job_id: Uuid,
    /// The job's state.
    pub state: String,
    /// The names of the nodes that it needs.
    pub needs: Vec<String>,
    /// `success`, `failure` or `always`.
    pub when: String,
    /// The queue's name.
    pub queue: String,
    /// The kind of work.
    pub kind: String,
    /// The number of attempts that were started.
    pub attempt: i64,
    /// The phase of the running attempt.
    pub phase: Option<String>,
    /// From 0 to 1, as last reported by the worker.
    pub progress: Option<f64>,
    /// The error of the last failed attempt, or the need that prevented the node. `null` without the right to read logs.
    pub error: Option<JobError>,
    /// When the current or last attempt started.
    pub started_at: Option<Timestamp>,
    /// When the job ended.
    pub finished_at: Option<Timestamp>,
}

/// The first signal of a run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct RunSignalView {
    /// `queued`, `blocked`, `started`, `succeeded`, `failed` or `canceled`.
    pub kind: String,
    /// The names of running nodes, at most three.
    pub phase: Option<String>,
    /// The state of the run in a sentence.
    pub summary: String,
    /// The share of jobs that ended, from 0 to 1.
    pub progress: f64,
    /// When the run is expected to end, from the durations of earlier jobs of the same kinds, its graph and its workers. `null`
    /// if a kind has too little history, no worker serves a node, or the run has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eta_seconds: Option<EtaRange>,
    /// The chain of nodes that have not ended with the longest expected duration, first node first, at most 100 names.
    pub critical_path: Vec<String>,
    /// Incremented by every end of a job.
    pub version: i64,
}

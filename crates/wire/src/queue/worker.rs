//! Workers: registration, heartbeat, claim and settle.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::queue::job::JobError;
use crate::workflows::journal::{ClaimedJournal, WakeRequest};

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WorkerRequest {
    /// A name for people, for example the host.
    pub name: String,
    /// The queues that the worker claims from, at most 100.
    pub queues: Vec<String>,
    /// Kinds that the worker can run. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Affinities that the worker can load. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinities: Option<Vec<String>>,
    /// Seconds without a heartbeat after which the worker's jobs are given to other workers, from 1 to 3600. Default:
    /// 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<i64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerRegistered {
    /// The worker's id.
    pub id: Uuid,
    /// The lease in seconds.
    pub lease_s: i64,
    /// Recommended interval between heartbeats.
    pub heartbeat_s: f64,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest {
    /// The affinity that the worker has loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// Long poll: respond when a cancellation or a drain is requested, or after this many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatView {
    /// When the worker's leases expire unless it sends another heartbeat.
    pub lease_until: Timestamp,
    /// Jobs of this worker that were canceled; settle each with `cancel`.
    pub cancel: Vec<Uuid>,
    /// Stop claiming jobs and exit when the running jobs have ended.
    pub drain: bool,
}

#[derive(Debug, Default, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Maximum number of jobs, from 1 to 2000.
    pub max: i64,
    /// Long poll: seconds to wait for a job, at most 60. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_s: Option<f64>,
    /// The affinity that the worker has loaded. Its jobs are preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ClaimView {
    /// The claimed jobs; empty if none became ready in time.
    pub jobs: Vec<ClaimedJob>,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ClaimedJob {
    /// The job's id.
    pub id: Uuid,
    /// Fencing token. Send it with every signal, artifact and outcome of this attempt; a stale epoch is rejected.
    pub epoch: i64,
    /// The queue's name.
    pub queue: String,
    /// The kind of work, for example `welcome`.
    pub kind: String,
    /// The payload, unchanged.
    #[schema(value_type = serde_json::Value)]
    pub payload: Box<RawValue>,
    /// What a worker must have loaded to run the job, or `null`.
    pub affinity: Option<String>,
    /// The job's priority.
    pub priority: i64,
    /// The subject that the job works on.
    pub subject: Option<String>,
    /// The process that created the job, or `null`.
    pub process: Option<String>,
    /// The run that the job belongs to, or `null`.
    pub run: Option<String>,
    /// The results of the nodes that the job needs, by name. A result above 64 KiB, or beyond 4 MiB in total, is
    /// `{"$result": {"job_id", "size"}}`: read it with `GET /jobs/{id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::HashMap<String, serde_json::Value>>)]
    pub inputs: Option<BTreeMap<String, Box<RawValue>>>,
    /// The number of the attempt, from 1.
    pub attempt: i64,
    /// Maximum number of attempts.
    pub max_attempts: i64,
    /// Seconds after which the server stops the attempt.
    pub timeout_s: Option<i64>,
    /// When the job was enqueued.
    pub created_at: Timestamp,
    /// The job's tenant, if it differs from the worker's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The trace that the job belongs to, as in the header `traceparent` of W3C Trace Context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The recorded operations of the job, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<ClaimedJournal>,
    /// `loading` if the worker does not hold the job's affinity: it loads it and then reports `working` with a signal.
    /// Otherwise `working`.
    #[serde(default = "working")]
    pub state: String,
}

/// The state of a job claimed from a server that does not send it.
fn working() -> String {
    "working".into()
}

#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// The outcomes of attempts, at most 4,000.
    pub outcomes: Vec<OutcomeRequest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeKind {
    /// The attempt succeeded.
    Finish,
    /// The attempt failed. The job is retried if the error is retryable and attempts remain.
    Fail,
    /// The worker stopped the attempt because the job was canceled.
    Cancel,
    /// The job runs again after `delay_s`; the attempt does not count.
    Snooze,
    /// The worker gives the job back; the attempt does not count.
    Release,
    /// The job waits until `wake` holds; the attempt does not count.
    Suspend,
    /// The attempt succeeded, and a new job with `payload` continues it.
    ContinueAs,
}

/// The outcome of one attempt. `result` and `facts` go with `finish`, `error`, `backoff_s` and `backoff_until`
/// with `fail`, `delay_s` with `snooze`, `wake` with `suspend`, `payload` with `continue_as`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRequest {
    /// The job's id.
    pub job_id: Uuid,
    /// The fencing token that came with the claim.
    pub epoch: i64,
    /// How the attempt ended.
    pub outcome: OutcomeKind,
    /// The result of a finished job: any JSON, at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// Facts of the job's subject to set, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<BTreeMap<String, serde_json::Value>>)]
    pub facts: Option<BTreeMap<String, Box<RawValue>>>,
    /// The error of a failed attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
    /// Seconds after which a snoozed job runs again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_s: Option<f64>,
    /// With `fail`: seconds for which the process leaves the subject alone, and until the next attempt. It replaces the
    /// backoff of the process and the retry policy for this failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_s: Option<f64>,
    /// Like `backoff_s`, as the time at which the backoff ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backoff_until: Option<Timestamp>,
    /// What wakes a suspended job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<WakeRequest>,
    /// The payload of the job that continues this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SettleView {
    /// One result per outcome, in the order of the request.
    pub results: Vec<OutcomeView>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeStatus {
    /// The outcome was recorded.
    Applied,
    /// Another claim owns the job; nothing was changed.
    ClaimLost,
    /// The job has ended; nothing was changed.
    AlreadyEnded,
    /// No such job exists.
    NotFound,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OutcomeView {
    /// The job's id.
    pub job_id: Uuid,
    /// What became of the outcome.
    pub status: OutcomeStatus,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct WorkerView {
    /// The worker's id.
    pub id: Uuid,
    /// The worker's name.
    pub name: String,
    /// The queues that the worker claims from.
    pub queues: Vec<String>,
    /// Kinds that the worker runs; `null` means all.
    pub kinds: Option<Vec<String>>,
    /// Affinities that the worker can load; `null` means all.
    pub affinities: Option<Vec<String>>,
    /// The lease in seconds.
    pub lease_s: i64,
    /// When the worker's leases expire unless it sends a heartbeat.
    pub lease_until: Timestamp,
    /// The affinity that the worker last reported as loaded.
    pub affinity: Option<String>,
    /// Jobs that the worker has claimed and not settled.
    pub claims: i64,
    /// The worker claims no more jobs.
    pub draining: bool,
    /// When the worker registered.
    pub registered_at: Timestamp,
    /// When the worker last claimed a job.
    pub last_claim_at: Option<Timestamp>,
}

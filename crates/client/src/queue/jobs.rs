//! Jobs and their signals.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::Serialize;
use uuid::Uuid;
use wire::{
    ApprovalRequest, ApprovalView, BatchAccepted, BatchRequest, CancelByKey, CancelRequest, CancelView, EstimateView,
    ForkRequest, HistoryItem, JobAccepted, JobRequest, JobView, JournalView, Page, RetryRequest, SignalUpdate,
    SignalView, TaskView, Timestamp, WhyView,
};

use crate::client::Client;
use crate::error::ClientError;
use crate::queue::job::Job;

/// Selects jobs; fields that are `None` match everything.
#[derive(Debug, Default, Clone, Serialize)]
pub struct JobFilter {
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// The subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// A tag that the jobs have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// First digits of the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    /// Last digits of the id. Only the newest jobs are searched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_suffix: Option<String>,
    /// Only jobs that the caller has enqueued directly.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mine: bool,
    /// Prefix of a kind, a tag, a unique key or an error code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Number of jobs in a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Enqueues a job. The job is durable when this returns.
    pub async fn enqueue(&self, job: &JobRequest) -> Result<JobAccepted, ClientError> {
        self.post(&["jobs"], job).await
    }

    /// Enqueues a job by its type. The job is durable when this returns.
    pub async fn push<J: Job>(&self, job: &J) -> Result<JobAccepted, ClientError> {
        self.enqueue(&job.request().map_err(|error| ClientError::Encode(error.into()))?).await
    }

    /// Like `enqueue`, but safe to repeat: requests with the same key and job return the same job for one day.
    pub async fn enqueue_idempotent(
        &self,
        idempotency_key: &str,
        job: &JobRequest,
    ) -> Result<JobAccepted, ClientError> {
        let request = self.request(Method::POST, &["jobs"]).header("Idempotency-Key", idempotency_key).json(job);
        self.fetch(request).await
    }

    /// Estimates when the job would end. Nothing is enqueued.
    pub async fn estimate(&self, job: &JobRequest) -> Result<EstimateView, ClientError> {
        self.post(&["jobs", "estimate"], job).await
    }

    /// Enqueues jobs, all or none, and returns their ids in the same order.
    pub async fn enqueue_batch(&self, jobs: Vec<JobRequest>) -> Result<Vec<Uuid>, ClientError> {
        let accepted: BatchAccepted = self.post(&["jobs", "batch"], &BatchRequest { jobs }).await?;
        Ok(accepted.ids)
    }

    /// Returns a job.
    pub async fn job(&self, id: Uuid) -> Result<JobView, ClientError> {
        self.fetch(self.get(&["jobs", &id.to_string()])).await
    }

    /// Returns the job when it has ended or after `wait`. The server holds a request for at most one minute; repeat it
    /// to wait longer.
    pub async fn wait_for_job(&self, id: Uuid, wait: Duration) -> Result<JobView, ClientError> {
        let request = self.get(&["jobs", &id.to_string()]).query(&[("wait", format!("{}ms", wait.as_millis()))]);
        self.fetch_held(wait, request).await
    }

    /// Returns one page of jobs.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Page<JobView>, ClientError> {
        self.fetch(self.get(&["jobs"]).query(filter)).await
    }

    /// Cancels a job.
    pub async fn cancel(&self, id: Uuid) -> Result<CancelView, ClientError> {
        self.fetch(self.request(Method::POST, &["jobs", &id.to_string(), "cancel"])).await
    }

    /// Lets the handler of a job with a journal undo its steps before the job ends as canceled.
    pub async fn cancel_with_undo(&self, id: Uuid) -> Result<CancelView, ClientError> {
        self.post(&["jobs", &id.to_string(), "cancel"], &CancelRequest { compensate: true }).await
    }

    /// Cancels the job with this unique key.
    pub async fn cancel_by_key(&self, queue: &str, unique_key: &str) -> Result<CancelView, ClientError> {
        self.post(&["jobs", "cancel"], &CancelByKey { queue: queue.into(), unique_key: unique_key.into() }).await
    }

    /// Enqueues a new job with the content of an ended one, linked to it.
    pub async fn retry(&self, id: Uuid, request: &RetryRequest) -> Result<JobAccepted, ClientError> {
        self.post(&["jobs", &id.to_string(), "retry"], request).await
    }

    /// Returns the events of a job, oldest first.
    pub async fn history(&self, id: Uuid) -> Result<Page<HistoryItem>, ClientError> {
        self.fetch(self.get(&["jobs", &id.to_string(), "history"])).await
    }

    /// Returns one page of the journal of a job.
    pub async fn job_journal(&self, id: Uuid, cursor: Option<&str>) -> Result<JournalView, ClientError> {
        let query: Vec<_> = [("limit", "500")].into_iter().chain(cursor.map(|cursor| ("cursor", cursor))).collect();
        self.fetch(self.get(&["jobs", &id.to_string(), "journal"]).query(&query)).await
    }

    /// Creates a new job that starts with the part of a job's journal before one entry.
    pub async fn fork(&self, id: Uuid, request: &ForkRequest) -> Result<JobAccepted, ClientError> {
        self.post(&["jobs", &id.to_string(), "fork"], request).await
    }

    /// Sends a signal event to a job. With an idempotency key the call is safe to repeat.
    pub async fn send_event(
        &self,
        id: Uuid,
        name: &str,
        data: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<(), ClientError> {
        let request = self.request(Method::POST, &["jobs", &id.to_string(), "events", name]).json(data);
        let request = match idempotency_key {
            Some(key) => request.header("Idempotency-Key", key),
            None => request,
        };
        self.execute(request).await
    }

    /// Approves or rejects an approval of a job.
    pub async fn answer_approval(
        &self,
        id: Uuid,
        key: &str,
        request: &ApprovalRequest,
    ) -> Result<ApprovalView, ClientError> {
        self.post(&["jobs", &id.to_string(), "approvals", key], request).await
    }

    /// Returns the reason why a job is not running.
    pub async fn why(&self, id: Uuid) -> Result<WhyView, ClientError> {
        self.fetch(self.get(&["jobs", &id.to_string(), "why"])).await
    }

    /// Returns the signal of a job; `None` if it has expired.
    pub async fn signal(&self, id: Uuid) -> Result<Option<SignalView>, ClientError> {
        let request = self.get(&["jobs", &id.to_string(), "signal"]).timeout(self.timeout());
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        crate::client::read(response).await.map(Some)
    }

    /// Updates the signal of a job that this worker has claimed.
    pub async fn put_signal(&self, id: Uuid, update: &SignalUpdate) -> Result<(), ClientError> {
        self.execute(self.request(Method::PUT, &["jobs", &id.to_string(), "signal"]).json(update)).await
    }

    /// Returns the background tasks of the server and their last runs.
    pub async fn tasks(&self) -> Result<Page<TaskView>, ClientError> {
        self.fetch(self.get(&["tasks"])).await
    }
}

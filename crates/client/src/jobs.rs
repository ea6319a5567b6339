//! Jobs and their signals.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde::Serialize;
use uuid::Uuid;
use wire::{
    BatchAccepted, BatchRequest, CancelByKey, CancelView, HistoryItem, JobAccepted, JobRequest, JobView, Page,
    RetryRequest, SignalUpdate, SignalView, TaskView, Timestamp, WhyView,
};

use crate::client::Client;
use crate::error::ClientError;

/// Which jobs to list; what is left out matches everything (Q13).
#[derive(Debug, Default, Clone, Serialize)]
pub struct JobFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Created at this time or later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Created before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// The beginning of a kind, a tag, a unique key or an error's code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Hands over one job; it is safe on disk when this returns.
    pub async fn enqueue(&self, job: &JobRequest) -> Result<JobAccepted, ClientError> {
        self.post(&["jobs"], job).await
    }

    /// Like `enqueue`, but may be repeated after a lost answer: the same key and job give the same job for a day.
    pub async fn enqueue_once(&self, idempotency_key: &str, job: &JobRequest) -> Result<JobAccepted, ClientError> {
        let request = self.request(Method::POST, &["jobs"]).header("Idempotency-Key", idempotency_key).json(job);
        self.answer(request).await
    }

    /// Hands over many jobs, all or none; the ids come in the same order.
    pub async fn enqueue_batch(&self, jobs: Vec<JobRequest>) -> Result<Vec<Uuid>, ClientError> {
        let accepted: BatchAccepted = self.post(&["jobs", "batch"], &BatchRequest { jobs }).await?;
        Ok(accepted.ids)
    }

    pub async fn job(&self, id: Uuid) -> Result<JobView, ClientError> {
        self.answer(self.get(&["jobs", &id.to_string()])).await
    }

    /// The job once it has ended, or as it is after `wait`. The server holds at most a minute: ask again.
    pub async fn job_when_ended(&self, id: Uuid, wait: Duration) -> Result<JobView, ClientError> {
        let request = self.get(&["jobs", &id.to_string()]).query(&[("wait", format!("{}ms", wait.as_millis()))]);
        self.answer_after(wait, request).await
    }

    pub async fn jobs(&self, filter: &JobFilter) -> Result<Page<JobView>, ClientError> {
        self.answer(self.get(&["jobs"]).query(filter)).await
    }

    pub async fn cancel(&self, id: Uuid) -> Result<CancelView, ClientError> {
        self.answer(self.request(Method::POST, &["jobs", &id.to_string(), "cancel"])).await
    }

    pub async fn cancel_by_key(&self, queue: &str, unique_key: &str) -> Result<CancelView, ClientError> {
        self.post(&["jobs", "cancel"], &CancelByKey { queue: queue.into(), unique_key: unique_key.into() }).await
    }

    /// Makes a new job like an ended one, linked to it.
    pub async fn retry(&self, id: Uuid, request: &RetryRequest) -> Result<JobAccepted, ClientError> {
        self.post(&["jobs", &id.to_string(), "retry"], request).await
    }

    /// What happened to the job, oldest first.
    pub async fn history(&self, id: Uuid) -> Result<Page<HistoryItem>, ClientError> {
        self.answer(self.get(&["jobs", &id.to_string(), "history"])).await
    }

    /// The one reason why the job is not running.
    pub async fn why(&self, id: Uuid) -> Result<WhyView, ClientError> {
        self.answer(self.get(&["jobs", &id.to_string(), "why"])).await
    }

    /// What is happening to the job; `None` where nothing is known.
    pub async fn signal(&self, id: Uuid) -> Result<Option<SignalView>, ClientError> {
        let request = self.get(&["jobs", &id.to_string(), "signal"]).timeout(self.timeout());
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        crate::client::read(response).await.map(Some)
    }

    /// Refines the signal of a job that this worker has claimed.
    pub async fn put_signal(&self, id: Uuid, update: &SignalUpdate) -> Result<(), ClientError> {
        self.done(self.request(Method::PUT, &["jobs", &id.to_string(), "signal"]).json(update)).await
    }

    /// What the engine does by itself, and how it went.
    pub async fn tasks(&self) -> Result<Page<TaskView>, ClientError> {
        self.answer(self.get(&["tasks"])).await
    }
}

//! Queues: settings, counts and pausing.

use reqwest::Method;
use wire::{Page, PauseRequest, PruneRequest, PruneView, QueueSettings, QueueView};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Returns one page of queues.
    pub async fn queues(&self, cursor: Option<&str>) -> Result<Page<QueueView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["queues"]).query(&query)).await
    }

    /// Returns a queue.
    pub async fn queue(&self, name: &str) -> Result<QueueView, ClientError> {
        self.fetch(self.get(&["queues", name])).await
    }

    /// Replaces the settings; fields that are left out return to their defaults.
    pub async fn set_queue(&self, name: &str, settings: &QueueSettings) -> Result<QueueView, ClientError> {
        self.fetch(self.request(Method::PUT, &["queues", name]).json(settings)).await
    }

    /// Deletes a queue without jobs.
    pub async fn delete_queue(&self, name: &str) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["queues", name])).await
    }

    /// Stops handing out jobs; running jobs continue.
    pub async fn pause_queue(&self, name: &str, reason: Option<&str>) -> Result<QueueView, ClientError> {
        self.post(&["queues", name, "pause"], &PauseRequest { reason: reason.map(Into::into) }).await
    }

    /// Deletes ended jobs now: those that ended at least `older_than_s` seconds ago, or are past the queue's retention.
    pub async fn prune_queue(&self, name: &str, older_than_s: Option<i64>) -> Result<PruneView, ClientError> {
        self.post(&["queues", name, "prune"], &PruneRequest { older_than_s }).await
    }

    /// Resumes a paused queue.
    pub async fn resume_queue(&self, name: &str) -> Result<QueueView, ClientError> {
        self.fetch(self.request(Method::POST, &["queues", name, "resume"])).await
    }
}

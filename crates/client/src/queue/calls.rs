//! Synchronous calls: a job and its result in one request.

use std::time::Duration;

use reqwest::Method;
use wire::{AbandonedView, CallView, JobRequest, Page};

use crate::client::Client;
use crate::error::ClientError;

/// The timeout of a call that sets none.
const DEFAULT_TIMEOUT_S: i64 = 30;

impl Client {
    /// Runs a job and returns its result. If the handler fails, the code of the `Problem` names the kind of failure.
    pub async fn call(&self, job: &JobRequest) -> Result<CallView, ClientError> {
        let wait = Duration::from_secs(job.timeout_s.unwrap_or(DEFAULT_TIMEOUT_S).max(0) as u64);
        self.fetch_held(wait, self.request(Method::POST, &["calls"]).json(job)).await
    }

    /// Returns responses that arrived after the caller had disconnected, newest first.
    pub async fn abandoned(&self, cursor: Option<&str>) -> Result<Page<AbandonedView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["abandoned"]).query(&query)).await
    }
}

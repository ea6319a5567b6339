//! Synchronous calls: a job and its answer in one request.

use std::time::Duration;

use reqwest::Method;
use wire::{AbandonedView, CallView, JobRequest, Page};

use crate::client::Client;
use crate::error::ClientError;

/// What a call without a time of its own may take.
const CALL_S: i64 = 30;

impl Client {
    /// Runs the job once and gives its result. The handler's failure is a problem whose status says what kind it is.
    pub async fn call(&self, job: &JobRequest) -> Result<CallView, ClientError> {
        let wait = Duration::from_secs(job.timeout_s.unwrap_or(CALL_S).max(0) as u64);
        self.answer_after(wait, self.request(Method::POST, &["calls"]).json(job)).await
    }

    /// Answers to calls whose caller was gone, newest first.
    pub async fn abandoned(&self, cursor: Option<&str>) -> Result<Page<AbandonedView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["abandoned"]).query(&query)).await
    }
}

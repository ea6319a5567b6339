//! Signatures, failures and the time to first signal.

use reqwest::{Method, StatusCode};
use uuid::Uuid;
use wire::{
    FailureView, MatchRequest, MatchView, MergeRequest, Page, ReplayFailures, ReplayedView, SignalView,
    SignatureRequest, SignatureUpdate, SignatureView, TtfsAccepted, TtfsEvent, TtfsEvents, TtfsSlo, TtfsSummary,
};

use crate::client::Client;
use crate::error::ClientError;

/// A signal with the metadata of its response.
#[derive(Debug, Clone)]
pub struct SignalResponse {
    /// The signal.
    pub signal: SignalView,
    /// `snapshot`, `cold_start` or `failure_index`.
    pub source: Option<String>,
    /// The signal came from the cache of the server.
    pub cache_hit: bool,
}

impl Client {
    /// Returns the signal of a job with its source and cache status; `None` if it has expired.
    pub async fn signal_with_meta(&self, id: Uuid) -> Result<Option<SignalResponse>, ClientError> {
        let request = self.get(&["jobs", &id.to_string(), "signal"]).timeout(self.timeout());
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (source, cache) = (header("x-signal-source"), header("cache-status"));
        let signal = crate::client::read(response).await?;
        Ok(Some(SignalResponse { signal, source, cache_hit: cache.is_some_and(|cache| cache.contains("; hit")) }))
    }

    /// Returns one page of signatures.
    pub async fn signatures(&self, cursor: Option<&str>) -> Result<Page<SignatureView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["signatures"]).query(&query)).await
    }

    /// Returns a signature.
    pub async fn signature(&self, id: Uuid) -> Result<SignatureView, ClientError> {
        self.fetch(self.get(&["signatures", &id.to_string()])).await
    }

    /// Creates a signature.
    pub async fn create_signature(&self, request: &SignatureRequest) -> Result<SignatureView, ClientError> {
        self.post(&["signatures"], request).await
    }

    /// Changes a signature; fields that are left out keep their values.
    pub async fn update_signature(&self, id: Uuid, update: &SignatureUpdate) -> Result<SignatureView, ClientError> {
        self.fetch(self.request(Method::PUT, &["signatures", &id.to_string()]).json(update)).await
    }

    /// Deletes a signature.
    pub async fn delete_signature(&self, id: Uuid) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["signatures", &id.to_string()])).await
    }

    /// Merges signature `id` into signature `into`, which remains.
    pub async fn merge_signature(&self, id: Uuid, into: Uuid) -> Result<SignatureView, ClientError> {
        self.post(&["signatures", &id.to_string(), "merge"], &MergeRequest { into }).await
    }

    /// Finds the most specific signature that matches a failure.
    pub async fn match_signature(&self, failure: &MatchRequest) -> Result<Option<MatchView>, ClientError> {
        let request = self.request(Method::POST, &["signatures", "match"]).json(failure).timeout(self.timeout());
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        crate::client::read(response).await.map(Some)
    }

    /// Returns failure groups, most recently seen first.
    pub async fn failures(&self, cursor: Option<&str>) -> Result<Page<FailureView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["failures"]).query(&query)).await
    }

    /// Returns a failure group.
    pub async fn failure(&self, group: Uuid) -> Result<FailureView, ClientError> {
        self.fetch(self.get(&["failures", &group.to_string()])).await
    }

    /// Replays the failed jobs of a group.
    pub async fn replay_failures(&self, group: Uuid, limit: Option<usize>) -> Result<ReplayedView, ClientError> {
        self.post(&["failures", &group.to_string(), "replay"], &ReplayFailures { limit }).await
    }

    /// Records events of the time to first signal.
    pub async fn record_ttfs(&self, events: Vec<TtfsEvent>) -> Result<TtfsAccepted, ClientError> {
        self.post(&["ttfs", "events"], &TtfsEvents { events }).await
    }

    /// Returns single events, newest first. `query` has the parameters of the route: `job_id`, `error_code`, `since`.
    pub async fn ttfs_events(&self, query: &[(&str, String)]) -> Result<Page<TtfsEvent>, ClientError> {
        self.fetch(self.get(&["ttfs", "events"]).query(query)).await
    }

    /// `by` is `hour` or `day`.
    pub async fn ttfs_summary(&self, by: &str) -> Result<Page<TtfsSummary>, ClientError> {
        self.fetch(self.get(&["ttfs", "summary"]).query(&[("by", by)])).await
    }

    /// Returns whether the objective of the time to first signal is met.
    pub async fn ttfs_slo(&self) -> Result<TtfsSlo, ClientError> {
        self.fetch(self.get(&["ttfs", "slo"])).await
    }
}

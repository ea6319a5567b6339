//! Dead letters: work that failed permanently.

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;
use wire::{
    CountView, DeadLetterFilter, DeadLetterView, Page, ReplayManyRequest, ReplayManyView, ReplayRequest, ReplayView,
    ResolveRequest,
};

use crate::client::Client;
use crate::error::ClientError;

/// Selects a page of dead letters.
#[derive(Debug, Default, Clone, Serialize)]
pub struct DeadLetterPage {
    /// Selects the dead letters.
    #[serde(flatten)]
    pub filter: DeadLetterFilter,
    /// Only resolved ones, or only unresolved ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved: Option<bool>,
    /// Number of dead letters in a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Returns dead letters, newest first.
    pub async fn dead_letters(&self, page: &DeadLetterPage) -> Result<Page<DeadLetterView>, ClientError> {
        self.fetch(self.get(&["dead-letters"]).query(page)).await
    }

    /// Counts the dead letters that match.
    pub async fn count_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        resolved: Option<bool>,
    ) -> Result<CountView, ClientError> {
        let page = DeadLetterPage { filter: filter.clone(), resolved, ..DeadLetterPage::default() };
        self.fetch(self.get(&["dead-letters", "count"]).query(&page)).await
    }

    /// Returns a dead letter.
    pub async fn dead_letter(&self, id: Uuid) -> Result<DeadLetterView, ClientError> {
        self.fetch(self.get(&["dead-letters", &id.to_string()])).await
    }

    /// Replays a dead letter. Idempotent: a second call returns the same work.
    pub async fn replay_dead_letter(&self, id: Uuid, request: &ReplayRequest) -> Result<ReplayView, ClientError> {
        self.post(&["dead-letters", &id.to_string(), "replay"], request).await
    }

    /// Replays the dead letters that match.
    pub async fn replay_dead_letters(&self, request: &ReplayManyRequest) -> Result<ReplayManyView, ClientError> {
        self.post(&["dead-letters", "replay"], request).await
    }

    /// Marks a dead letter as resolved.
    pub async fn resolve_dead_letter(
        &self,
        id: Uuid,
        resolution: &str,
        note: Option<&str>,
    ) -> Result<DeadLetterView, ClientError> {
        let request = ResolveRequest { resolution: resolution.into(), note: note.map(Into::into) };
        self.fetch(self.request(Method::POST, &["dead-letters", &id.to_string(), "resolve"]).json(&request)).await
    }
}

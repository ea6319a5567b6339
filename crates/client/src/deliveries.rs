//! Deliveries: what was sent to whom, and sending it again.

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;
use wire::{DeliveryDetails, DeliveryView, Page};

use crate::client::Client;
use crate::error::ClientError;

/// Which deliveries to list; what is left out matches everything.
#[derive(Debug, Default, Clone, Serialize)]
pub struct DeliveryFilter {
    /// `pending`, `delivering`, `delivered` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Newest first.
    pub async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Page<DeliveryView>, ClientError> {
        self.answer(self.get(&["deliveries"]).query(filter)).await
    }

    pub async fn delivery(&self, id: Uuid) -> Result<DeliveryDetails, ClientError> {
        self.answer(self.get(&["deliveries", &id.to_string()])).await
    }

    /// Sends it again, at once, under the same id.
    pub async fn redeliver(&self, id: Uuid) -> Result<DeliveryDetails, ClientError> {
        self.answer(self.request(Method::POST, &["deliveries", &id.to_string(), "redeliver"])).await
    }
}

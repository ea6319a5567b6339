//! Deliveries: outgoing HTTP requests.

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;
use wire::{DeliveryDetails, DeliveryView, Page};

use crate::client::Client;
use crate::error::ClientError;

/// Selects deliveries; fields that are `None` match everything.
#[derive(Debug, Default, Clone, Serialize)]
pub struct DeliveryFilter {
    /// `pending`, `delivering`, `delivered` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Changes of this job are delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<Uuid>,
    /// Number of deliveries in a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Returns deliveries, newest first.
    pub async fn deliveries(&self, filter: &DeliveryFilter) -> Result<Page<DeliveryView>, ClientError> {
        self.fetch(self.get(&["deliveries"]).query(filter)).await
    }

    /// Returns a delivery with its attempts.
    pub async fn delivery(&self, id: Uuid) -> Result<DeliveryDetails, ClientError> {
        self.fetch(self.get(&["deliveries", &id.to_string()])).await
    }

    /// Sends a delivery again immediately, with the same message id.
    pub async fn redeliver(&self, id: Uuid) -> Result<DeliveryDetails, ClientError> {
        self.fetch(self.request(Method::POST, &["deliveries", &id.to_string(), "redeliver"])).await
    }
}

//! Triggers, topics and key-value collections.

use reqwest::Method;
use serde::Serialize;
use uuid::Uuid;
use wire::{EventAccepted, FireRequest, FireView, KvView, Page, TriggerRequest, TriggerRunView, TriggerView};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Returns triggers, newest first.
    pub async fn triggers(&self, cursor: Option<&str>) -> Result<Page<TriggerView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["triggers"]).query(&query)).await
    }

    /// Returns a trigger.
    pub async fn trigger(&self, id: Uuid) -> Result<TriggerView, ClientError> {
        self.fetch(self.get(&["triggers", &id.to_string()])).await
    }

    /// Creates a trigger.
    pub async fn create_trigger(&self, request: &TriggerRequest) -> Result<TriggerView, ClientError> {
        self.post(&["triggers"], request).await
    }

    /// Replaces the declaration of a trigger.
    pub async fn replace_trigger(&self, id: Uuid, request: &TriggerRequest) -> Result<TriggerView, ClientError> {
        self.fetch(self.request(Method::PUT, &["triggers", &id.to_string()]).json(request)).await
    }

    /// Deletes a trigger.
    pub async fn delete_trigger(&self, id: Uuid) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["triggers", &id.to_string()])).await
    }

    /// Fires a trigger manually, or reports what it would start.
    pub async fn fire_trigger(&self, id: Uuid, request: &FireRequest) -> Result<FireView, ClientError> {
        self.post(&["triggers", &id.to_string(), "fire"], request).await
    }

    /// Returns the runs of a trigger's script, newest first.
    pub async fn trigger_runs(&self, id: Uuid, cursor: Option<&str>) -> Result<Page<TriggerRunView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["triggers", &id.to_string(), "runs"]).query(&query)).await
    }

    /// Publishes any JSON on a topic.
    pub async fn publish(&self, topic: &str, data: &impl Serialize) -> Result<EventAccepted, ClientError> {
        self.post(&["topics", topic], data).await
    }

    /// Returns a key of a collection.
    pub async fn kv(&self, collection: &str, key: &str) -> Result<KvView, ClientError> {
        self.fetch(self.get(&["kv", collection, key])).await
    }

    /// Returns the entries of a collection by key.
    pub async fn kv_entries(&self, collection: &str, cursor: Option<&str>) -> Result<Page<KvView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["kv", collection]).query(&query)).await
    }

    /// Sets a key of a collection.
    pub async fn set_kv(&self, collection: &str, key: &str, value: &impl Serialize) -> Result<KvView, ClientError> {
        self.fetch(self.request(Method::PUT, &["kv", collection, key]).json(value)).await
    }

    /// Like `set_kv`, but only if the key has this version; otherwise fails with `precondition_failed`. Version 0 means
    /// that the key must not exist.
    pub async fn set_kv_at(
        &self,
        collection: &str,
        key: &str,
        version: i64,
        value: &impl Serialize,
    ) -> Result<KvView, ClientError> {
        let request = self.request(Method::PUT, &["kv", collection, key]).json(value);
        let request = match version {
            0 => request.header("If-None-Match", "*"),
            _ => request.header("If-Match", format!("\"{version}\"")),
        };
        self.fetch(request).await
    }

    /// Deletes a key and returns its last value.
    pub async fn delete_kv(&self, collection: &str, key: &str) -> Result<KvView, ClientError> {
        self.fetch(self.request(Method::DELETE, &["kv", collection, key])).await
    }
}

//! Pools.

use reqwest::Method;
use wire::{Page, PoolRequest, PoolView};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Returns pools by name.
    pub async fn pools(&self, cursor: Option<&str>) -> Result<Page<PoolView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["pools"]).query(&query)).await
    }

    /// Returns a pool.
    pub async fn pool(&self, name: &str) -> Result<PoolView, ClientError> {
        self.fetch(self.get(&["pools", name])).await
    }

    /// Creates or changes a pool.
    pub async fn set_pool(&self, name: &str, request: &PoolRequest) -> Result<PoolView, ClientError> {
        self.fetch(self.request(Method::PUT, &["pools", name]).json(request)).await
    }

    /// Deletes a pool.
    pub async fn delete_pool(&self, name: &str) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["pools", name])).await
    }
}

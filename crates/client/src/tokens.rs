//! Tokens and tenants.

use reqwest::Method;
use uuid::Uuid;
use wire::{Page, TenantView, TokenCreated, TokenRequest, TokenView};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Makes a token; its text is in the answer and nowhere else.
    pub async fn create_token(&self, request: &TokenRequest) -> Result<TokenCreated, ClientError> {
        self.post(&["tokens"], request).await
    }

    /// Newest first. `tenant` is for admins of the tenant `system`.
    pub async fn tokens(&self, tenant: Option<&str>, cursor: Option<&str>) -> Result<Page<TokenView>, ClientError> {
        let query: Vec<_> = [("tenant", tenant), ("cursor", cursor)]
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect();
        self.answer(self.get(&["tokens"]).query(&query)).await
    }

    /// Ends a token. Once this returns no node takes it any more.
    pub async fn revoke_token(&self, id: Uuid) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, &["tokens", &id.to_string()])).await
    }

    pub async fn tenants(&self, cursor: Option<&str>) -> Result<Page<TenantView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["tenants"]).query(&query)).await
    }
}

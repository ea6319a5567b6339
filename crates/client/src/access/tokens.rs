//! Tokens and tenants.

use reqwest::Method;
use uuid::Uuid;
use wire::{Page, TenantView, TokenCreated, TokenRequest, TokenView};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Creates a token. Its secret text is only in this response.
    pub async fn create_token(&self, request: &TokenRequest) -> Result<TokenCreated, ClientError> {
        self.post(&["tokens"], request).await
    }

    /// Returns tokens, newest first. Only an admin of the tenant `system` may name another `tenant`.
    pub async fn tokens(&self, tenant: Option<&str>, cursor: Option<&str>) -> Result<Page<TokenView>, ClientError> {
        let query: Vec<_> = [("tenant", tenant), ("cursor", cursor)]
            .into_iter()
            .filter_map(|(name, value)| value.map(|value| (name, value)))
            .collect();
        self.fetch(self.get(&["tokens"]).query(&query)).await
    }

    /// Revokes a token. When this returns, every node rejects the token.
    pub async fn revoke_token(&self, id: Uuid) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["tokens", &id.to_string()])).await
    }

    /// Returns one page of tenants.
    pub async fn tenants(&self, cursor: Option<&str>) -> Result<Page<TenantView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["tenants"]).query(&query)).await
    }
}

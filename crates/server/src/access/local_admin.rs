//! Token administration directly on the database, without a server, with the same rules and errors as over HTTP. Called
//! by the CLI.
//!
//! A server running on the same database notices a change within 250 ms. These functions return after that.

use domain::limits::{PAGE_ITEMS, TENANTS};
use domain::{Name, TokenId};
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::access::tokens::create::TokenIssuer;
use uuid::Uuid;
use wire::{Problem, TokenCreated, TokenRequest, TokenView};

use crate::error::ApiError;
use crate::http::v1::access::tokens::{issue_token, page_of};

/// Creates a token; also the first one.
pub async fn create_token(store: &Store, request: TokenRequest) -> Result<TokenCreated, Problem> {
    issue_token(store, TokenIssuer::Machine, request).await.map_err(|error| error.problem())
}

/// Creates a tenant and returns its number. Returns the existing one if the name is in use.
pub async fn create_tenant(store: &Store, name: &str) -> Result<i64, Problem> {
    let create = async {
        let name = Name::new(name).map_err(|error| ApiError::invalid_field("name", error))?;
        match store.create_tenant(name).await? {
            TenantCreated::Created(tenant) | TenantCreated::Exists(tenant) => Ok(tenant.0),
            TenantCreated::TooMany => {
                Err(ApiError::limit_reached(format_args!("the limit of {TENANTS} tenants is reached")))
            }
        }
    };
    create.await.map_err(|error: ApiError| error.problem())
}

/// Lists every token of a tenant, newest first.
pub async fn list_tokens(store: &Store, tenant: &str) -> Result<Vec<TokenView>, Problem> {
    collect(store, tenant).await.map_err(|error| error.problem())
}

async fn collect(store: &Store, tenant: &str) -> Result<Vec<TokenView>, ApiError> {
    let name = Name::new(tenant).map_err(|error| ApiError::invalid_field("tenant", error))?;
    let tenant = store.tenant_named(&name).await?.ok_or_else(|| ApiError::not_found("tenant"))?;
    let mut tokens: Vec<TokenView> = Vec::new();
    loop {
        let after = tokens.last().map(|last| TokenId::new(last.id));
        let next = page_of(store, tenant, after, PAGE_ITEMS).await?;
        tokens.extend(next.items);
        if next.next_cursor.is_none() {
            return Ok(tokens);
        }
    }
}

/// Revokes a token. When this returns, no server accepts the token.
pub async fn revoke_token(store: &Store, id: Uuid) -> Result<(), Problem> {
    match store.revoke_token(None, TokenId::new(id), "machine".into()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(ApiError::not_found("token").problem()),
        Err(error) => Err(ApiError::from(error).problem()),
    }
}

//! Tokens made at the machine itself, with the database in hand and no server asked: by the same rules and in the same
//! words as over HTTP. A server that runs beside it notices within a quarter of a second, before these return.

use domain::limits::{PAGE_ITEMS, TENANTS};
use domain::{Name, TokenId};
use store::Store;
use store::tenants::create::TenantCreated;
use store::tokens::create::Maker;
use uuid::Uuid;
use wire::{Problem, TokenCreated, TokenRequest, TokenView};

use crate::error::ApiError;
use crate::http::v1::tokens::{make, page_of};

/// The first token of all, and any other.
pub async fn create_token(store: &Store, request: TokenRequest) -> Result<TokenCreated, Problem> {
    make(store, Maker::Machine, request).await.map_err(|error| error.problem())
}

/// Makes a tenant and gives its number; one that exists is given as it is.
pub async fn create_tenant(store: &Store, name: &str) -> Result<i64, Problem> {
    let make = async {
        let name = Name::new(name).map_err(|error| ApiError::invalid_field("name", error))?;
        match store.create_tenant(name).await? {
            TenantCreated::Created(tenant) | TenantCreated::Exists(tenant) => Ok(tenant.0),
            TenantCreated::TooMany => {
                Err(ApiError::limit_reached(format_args!("there may be at most {TENANTS} tenants")))
            }
        }
    };
    make.await.map_err(|error: ApiError| error.problem())
}

/// Every token of a tenant, newest first.
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

/// Once this returns no server takes the token any more.
pub async fn revoke_token(store: &Store, id: Uuid) -> Result<(), Problem> {
    match store.revoke_token(None, TokenId::new(id), "machine".into()).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(ApiError::not_found("token").problem()),
        Err(error) => Err(ApiError::from(error).problem()),
    }
}

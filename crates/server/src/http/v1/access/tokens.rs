//! Tokens and tenants. A token belongs to the caller's tenant; only admins of the `system` tenant create tokens for
//! others.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::limits::TOKENS_PER_TENANT;
use domain::{Name, TenantId, TokenId};
use serde::Deserialize;
use store::Store;
use store::access::tenants::list::Tenant;
use store::access::tokens::create::{TokenCreated, TokenIssuer};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TenantView, TokenRequest, TokenView};

use crate::access::auth::{Principal, SkipTokenRecheck};
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathToken};
use crate::page::page;
use crate::state::AppState;
use crate::validate::access::token::new_token;
use crate::validate::query::{PageQuery, limit};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke)).routes(routes!(tenants))
}

/// Create a token.
///
/// The response is the only one that contains the token's text. Returns 403 for rights that the caller lacks, and 409
/// if the tenant has too many tokens.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, body = wire::TokenCreated)))]
async fn create(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Option<Extension<SkipTokenRecheck>>, Json<wire::TokenCreated>), ApiError> {
    let issuer = principal.token_id().map_or(TokenIssuer::Local, TokenIssuer::Token);
    // The first token ends access as the local operator, but its creator must still receive the text.
    let skip_recheck = matches!(issuer, TokenIssuer::Local).then_some(Extension(SkipTokenRecheck));
    Ok((StatusCode::CREATED, skip_recheck, Json(issue_token(&state.store, issuer, request).await?)))
}

/// Creates a token. Shared by the route and `local_admin`.
pub(crate) async fn issue_token(
    store: &Store,
    issuer: TokenIssuer,
    request: TokenRequest,
) -> Result<wire::TokenCreated, ApiError> {
    let token = new_token(request, store.clock().now())?;
    match store.create_token(issuer, token).await? {
        TokenCreated::Created(token, text) => {
            let view = view::token(&token, store.clock().now());
            Ok(wire::TokenCreated { token: text.as_str().to_owned(), view })
        }
        TokenCreated::NoSuchTenant(name) => {
            Err(ApiError::invalid_field("tenant", format_args!("names the unknown tenant {name}")))
        }
        TokenCreated::ExceedsParent(why) => Err(ApiError::forbidden(why)),
        TokenCreated::ParentEnded => Err(ApiError::invalid_token()),
        TokenCreated::NotFirstToken => Err(ApiError::token_required()),
        TokenCreated::InvalidServes(why) => Err(ApiError::invalid_field("serves", why)),
        TokenCreated::TooMany => Err(ApiError::limit_reached(format_args!(
            "the tenant has reached the limit of {TOKENS_PER_TENANT} active tokens; revoke one first"
        ))),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TokenQuery {
    /// Lists the tokens of another tenant. Admins of the tenant `system` only.
    pub(crate) tenant: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
}

/// List tokens, newest first.
///
/// Includes expired and revoked tokens.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens", params(TokenQuery),
    responses((status = 200, body = Page<TokenView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<TokenQuery>,
) -> Result<Json<Page<TokenView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::token(query.cursor.as_deref())?;
    let tenant = tenant(&state, &principal, query.tenant.as_deref()).await?;
    Ok(Json(page_of(&state.store, tenant, after, limit).await?))
}

pub(crate) async fn page_of(
    store: &Store,
    tenant: TenantId,
    after: Option<TokenId>,
    limit: usize,
) -> Result<Page<TokenView>, ApiError> {
    let tokens = store.list_tokens(tenant, after, limit + 1).await?;
    let now = store.clock().now();
    Ok(page(tokens, limit, |last| cursor::after_token(last.id)).map(|token| view::token(&token, now)))
}

/// Resolves the tenant of a request. Only the `system` tenant can name another one.
async fn tenant(state: &AppState, principal: &Principal, requested: Option<&str>) -> Result<TenantId, ApiError> {
    let Some(requested) = requested else { return Ok(principal.tenant) };
    let name =
        Name::new(requested).map_err(|error| ApiError::invalid_query("tenant", format_args!("tenant {error}")))?;
    let tenant_id = state.store.tenant_named(&name).await?;
    let allowed = |tenant: &TenantId| *tenant == principal.tenant || principal.tenant == TenantId::SYSTEM;
    tenant_id.filter(allowed).ok_or_else(|| ApiError::invalid_query("tenant", format_args!("unknown tenant {name}")))
}

/// Revoke a token.
///
/// Idempotent. Once the response arrives, no node accepts the token.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens", params(("id" = Uuid, Path)), responses((status = 204)))]
async fn revoke(
    State(state): State<AppState>,
    principal: Principal,
    PathToken(id): PathToken,
) -> Result<(Extension<SkipTokenRecheck>, StatusCode), ApiError> {
    let tenant = Some(principal.tenant).filter(|tenant| *tenant != TenantId::SYSTEM);
    if state.store.revoke_token(tenant, id, principal.name.to_string()).await? {
        Ok((Extension(SkipTokenRecheck), StatusCode::NO_CONTENT))
    } else {
        Err(ApiError::not_found("token"))
    }
}

/// List tenants.
///
/// Returns the caller's own tenant; for the tenant `system`, every tenant.
#[utoipa::path(get, path = "/api/v1/tenants", tag = "tenants", params(PageQuery),
    responses((status = 200, body = Page<TenantView>)))]
async fn tenants(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TenantView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::tenant(query.cursor.as_deref())?;
    let tenants = if principal.tenant == TenantId::SYSTEM {
        state.store.list_tenants(after, limit + 1).await?
    } else {
        state.store.tenant(principal.tenant).await?.into_iter().filter(|own| Some(&own.name) > after.as_ref()).collect()
    };
    let view_of =
        |tenant: Tenant| TenantView { name: tenant.name.to_string(), created_at: view::time(tenant.created_at) };
    Ok(Json(page(tenants, limit, |last| cursor::after_tenant(&last.name)).map(view_of)))
}

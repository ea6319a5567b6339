//! Tokens and tenants (X6, X7). Tokens are made for the caller's own tenant; others only by the built-in tenant's admins.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use domain::limits::TOKENS_PER_TENANT;
use domain::{Name, TenantId, TokenId};
use serde::Deserialize;
use store::Store;
use store::tenants::list::Tenant;
use store::tokens::create::{Maker, TokenCreated};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{Page, TenantView, TokenRequest, TokenView};

use crate::auth::{Parting, Principal};
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathToken};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::token::new_token;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(create, list)).routes(routes!(revoke)).routes(routes!(tenants))
}

/// Makes a token. Its text is in this answer and nowhere else.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = TokenRequest,
    responses((status = 201, body = wire::TokenCreated)))]
async fn create(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Result<(StatusCode, Option<Extension<Parting>>, Json<wire::TokenCreated>), ApiError> {
    let maker = principal.token_id().map_or(Maker::Local, Maker::Token);
    // The first token ends the local operator, who is still to be told its text.
    let parting = matches!(maker, Maker::Local).then_some(Extension(Parting));
    Ok((StatusCode::CREATED, parting, Json(make(&state.store, maker, request).await?)))
}

/// By the same rules here and on the machine.
pub(crate) async fn make(store: &Store, maker: Maker, request: TokenRequest) -> Result<wire::TokenCreated, ApiError> {
    let token = new_token(request, store.clock().now())?;
    match store.create_token(maker, token).await? {
        TokenCreated::Created(token, text) => {
            let view = view::token(&token, store.clock().now());
            Ok(wire::TokenCreated { token: text.as_str().to_owned(), view })
        }
        TokenCreated::NoSuchTenant(name) => {
            Err(ApiError::invalid_field("tenant", format_args!("names {name}, and there is no such tenant")))
        }
        TokenCreated::MoreThanItsParent(why) => Err(ApiError::forbidden(why)),
        TokenCreated::ParentGone => Err(ApiError::invalid_token()),
        TokenCreated::NotTheFirst => Err(ApiError::token_required()),
        TokenCreated::Misplaced(why) => Err(ApiError::invalid_field("serves", why)),
        TokenCreated::TooMany => {
            Err(ApiError::limit_reached(format_args!("a tenant may have at most {TOKENS_PER_TENANT} living tokens")))
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TokenQuery {
    /// Another tenant's; for admins of the tenant `system`.
    pub(crate) tenant: Option<String>,
    /// Items on a page: 1 to 500, 50 unless set.
    #[param(value_type = Option<u32>)]
    pub(crate) limit: Option<String>,
    /// `next_cursor` of the page before.
    pub(crate) cursor: Option<String>,
}

/// Lists tokens, newest first, those that have ended among them.
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

/// Another tenant exists for the built-in one alone.
async fn tenant(state: &AppState, principal: &Principal, named: Option<&str>) -> Result<TenantId, ApiError> {
    let Some(named) = named else { return Ok(principal.tenant) };
    let name = Name::new(named).map_err(|error| ApiError::invalid_query("tenant", format_args!("tenant {error}")))?;
    let found = state.store.tenant_named(&name).await?;
    let reached = |tenant: &TenantId| *tenant == principal.tenant || principal.tenant == TenantId::SYSTEM;
    found.filter(reached).ok_or_else(|| ApiError::invalid_query("tenant", "there is no such tenant"))
}

/// Ends a token. Once this is answered no node takes it any more.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens", params(("id" = Uuid, Path)), responses((status = 204)))]
async fn revoke(
    State(state): State<AppState>,
    principal: Principal,
    PathToken(id): PathToken,
) -> Result<(Extension<Parting>, StatusCode), ApiError> {
    let tenant = Some(principal.tenant).filter(|tenant| *tenant != TenantId::SYSTEM);
    if state.store.revoke_token(tenant, id, principal.name.to_string()).await? {
        Ok((Extension(Parting), StatusCode::NO_CONTENT))
    } else {
        Err(ApiError::not_found("token"))
    }
}

/// Lists tenants: the caller's own, or all for the tenant `system`.
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
    let shown =
        |tenant: Tenant| TenantView { name: tenant.name.to_string(), created_at: view::time(tenant.created_at) };
    Ok(Json(page(tenants, limit, |last| cursor::after_tenant(&last.name)).map(shown)))
}

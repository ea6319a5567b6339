//! Signatures: what known failures look like, and what is known of them (S6, S7).

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::limits::SIGNATURES;
use domain::signature::Case;
use store::signatures::change::Changed;
use store::signatures::{Signature, SignatureOutcome as Known};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    MatchRequest, MatchView, MergeRequest, Page, SignatureOutcome, SignaturePattern, SignatureRequest, SignatureUpdate,
    SignatureView,
};

use crate::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathSignature};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::signature;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(find))
        .routes(routes!(get, change, delete))
        .routes(routes!(merge))
}

/// Lists signatures, newest first.
#[utoipa::path(get, path = "/api/v1/signatures", tag = "signatures", params(PageQuery),
    responses((status = 200, body = Page<SignatureView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<SignatureView>>, ApiError> {
    let before = cursor::signature(query.cursor.as_deref())?;
    let limit = limit(query.limit.as_deref())?;
    let found = state.store.list_signatures(principal.tenant, before, limit + 1).await?;
    Ok(Json(page(found, limit, |last| cursor::after_signature(last.id)).map(shown)))
}

/// Writes a signature. An empty pattern and a bad regular expression are refused.
#[utoipa::path(post, path = "/api/v1/signatures", tag = "signatures", request_body = SignatureRequest,
    responses((status = 201, body = SignatureView), (status = 409, description = "another signature has this pattern")))]
async fn make(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<SignatureRequest>,
) -> Result<(StatusCode, Json<SignatureView>), ApiError> {
    if state.store.list_signatures(principal.tenant, None, SIGNATURES).await?.len() >= SIGNATURES {
        return Err(ApiError::limit_reached(format_args!("a tenant may have at most {SIGNATURES} signatures")));
    }
    let new = signature::new(request, principal.name.to_string())?;
    changed(state.store.make_signature(principal.tenant, new).await?).map(|view| (StatusCode::CREATED, view))
}

/// The signature that tells most of a failure.
#[utoipa::path(post, path = "/api/v1/signatures/match", operation_id = "match", tag = "signatures", request_body = MatchRequest,
    responses((status = 200, body = MatchView), (status = 204, description = "none matches")))]
async fn find(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<MatchRequest>,
) -> Result<Response, ApiError> {
    let index = state.store.signature_index(principal.tenant).await?;
    let case = Case {
        phase: request.phase.as_deref(),
        error_code: request.error_code.as_deref(),
        kind: request.kind.as_deref(),
        subject: request.subject.as_deref(),
    };
    Ok(match index.best(case, state.store.clock().now()) {
        Some(best) => {
            let (outcome, confidence) = (outcome(best.outcome.clone()), best.confidence);
            Json(MatchView { signature_id: best.id, outcome, confidence }).into_response()
        }
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// One signature.
#[utoipa::path(get, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    responses((status = 200, body = SignatureView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
) -> Result<Json<SignatureView>, ApiError> {
    let found = state.store.signature(principal.tenant, id).await?;
    Ok(Json(shown(found.ok_or_else(|| ApiError::not_found("signature"))?)))
}

/// Changes a signature: confirm it, name its cause, mute it, say that the cause is mended. What is left out stays.
#[utoipa::path(put, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    request_body = SignatureUpdate, responses((status = 200, body = SignatureView)))]
async fn change(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
    JsonBody(update): JsonBody<SignatureUpdate>,
) -> Result<Json<SignatureView>, ApiError> {
    changed(state.store.change_signature(principal.tenant, id, signature::change(update)?).await?)
}

/// Forgets a signature. What it was learnt from stays.
#[utoipa::path(delete, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_signature(principal.tenant, id).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("signature")),
    }
}

/// Makes two signatures of one cause one: this one goes, its groups and samples are the other's.
#[utoipa::path(post, path = "/api/v1/signatures/{id}/merge", tag = "signatures", params(("id" = Uuid, Path)),
    request_body = MergeRequest, responses((status = 200, body = SignatureView)))]
async fn merge(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
    JsonBody(request): JsonBody<MergeRequest>,
) -> Result<Json<SignatureView>, ApiError> {
    let merged = state.store.merge_signatures(principal.tenant, id, request.into).await?;
    Ok(Json(shown(merged.ok_or_else(|| ApiError::not_found("signature"))?)))
}

fn changed(changed: Changed) -> Result<Json<SignatureView>, ApiError> {
    match changed {
        Changed::Done(signature) => Ok(Json(shown(*signature))),
        Changed::Exists(other) => Err(ApiError::signature_exists(other)),
        Changed::NotFound => Err(ApiError::not_found("signature")),
    }
}

pub(crate) fn outcome(known: Known) -> SignatureOutcome {
    SignatureOutcome {
        likely_cause: known.likely_cause,
        mttr_p50_seconds: known.mttr_p50_s,
        mttr_p95_seconds: known.mttr_p95_s,
        suggested_action: known.suggested_action,
        remediation_url: known.remediation_url,
    }
}

fn shown(signature: Signature) -> SignatureView {
    let pattern = signature.pattern;
    SignatureView {
        id: signature.id,
        pattern: SignaturePattern {
            phase: pattern.phase,
            error_code: pattern.error_code,
            kind: pattern.kind,
            subject_pattern: pattern.subject_pattern,
        },
        outcome: outcome(signature.outcome),
        confidence: signature.confidence,
        signature_version: signature.version,
        sample_count: signature.samples,
        last_match_at: signature.last_match_at.map(view::time),
        enabled: signature.enabled,
        muted: signature.muted,
        status: signature.status.as_str().into(),
        fixed_at: signature.fixed_at.map(view::time),
        recurred_at: signature.recurred_at.map(view::time),
        created_by: signature.created_by,
        created_at: view::time(signature.created_at),
        updated_at: view::time(signature.updated_at),
        expires_at: signature.expires_at.map(view::time),
    }
}

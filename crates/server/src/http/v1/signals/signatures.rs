//! Signatures: patterns of known failures, with their cause and remedy.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use domain::limits::SIGNATURES;
use domain::signals::signature::FailureCase;
use store::signals::signatures::change::SignatureChanged;
use store::signals::signatures::{Signature, SignatureOutcome as StoredOutcome};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    MatchRequest, MatchView, MergeRequest, Page, SignatureOutcome, SignaturePattern, SignatureRequest, SignatureUpdate,
    SignatureView,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathSignature};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::signals::signature;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, make))
        .routes(routes!(find))
        .routes(routes!(get, change, delete))
        .routes(routes!(merge))
}

/// List signatures, newest first.
#[utoipa::path(get, path = "/api/v1/signatures", tag = "signatures", params(PageQuery),
    responses((status = 200, body = Page<SignatureView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<SignatureView>>, ApiError> {
    let before = cursor::signature(query.cursor.as_deref())?;
    let limit = limit(query.limit.as_deref())?;
    let signatures = state.store.list_signatures(principal.tenant, before, limit + 1).await?;
    Ok(Json(page(signatures, limit, |last| cursor::after_signature(last.id)).map(signature_view)))
}

/// Create a signature.
///
/// Returns 422 for an empty pattern or an invalid regular expression.
#[utoipa::path(post, path = "/api/v1/signatures", tag = "signatures", request_body = SignatureRequest,
    responses((status = 201, body = SignatureView), (status = 409, description = "Another signature has this pattern, or the limit is reached")))]
async fn make(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<SignatureRequest>,
) -> Result<(StatusCode, Json<SignatureView>), ApiError> {
    if state.store.list_signatures(principal.tenant, None, SIGNATURES).await?.len() >= SIGNATURES {
        return Err(ApiError::limit_reached(format_args!(
            "the tenant has reached the limit of {SIGNATURES} signatures; delete one first"
        )));
    }
    let new = signature::new(request, principal.name.to_string())?;
    updated_view(state.store.create_signature(principal.tenant, new).await?).map(|view| (StatusCode::CREATED, view))
}

/// Find the most specific signature that matches a failure.
///
/// The response is 404 if no signature matches.
#[utoipa::path(post, path = "/api/v1/signatures/match", operation_id = "match", tag = "signatures", request_body = MatchRequest,
    responses((status = 200, body = MatchView), (status = 204, description = "No signature matches")))]
async fn find(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<MatchRequest>,
) -> Result<Response, ApiError> {
    let index = state.store.signature_index(principal.tenant).await?;
    let case = FailureCase {
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

/// Get a signature.
///
/// A learned signature starts as `proposed`; a person confirms it.
#[utoipa::path(get, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    responses((status = 200, body = SignatureView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
) -> Result<Json<SignatureView>, ApiError> {
    let signatures = state.store.signature(principal.tenant, id).await?;
    Ok(Json(signature_view(signatures.ok_or_else(|| ApiError::not_found("signature"))?)))
}

/// Update a signature: confirm it, set its cause, mute it, or mark the cause as fixed.
///
/// Omitted members keep their values. Returns 409 if another signature has the new pattern.
#[utoipa::path(put, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    request_body = SignatureUpdate, responses((status = 200, body = SignatureView)))]
async fn change(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
    JsonBody(update): JsonBody<SignatureUpdate>,
) -> Result<Json<SignatureView>, ApiError> {
    let change = signature::change(update, principal.name.to_string())?;
    updated_view(state.store.change_signature(principal.tenant, id, change).await?)
}

/// Delete a signature.
///
/// The failures that it was learned from stay.
#[utoipa::path(delete, path = "/api/v1/signatures/{id}", tag = "signatures", params(("id" = Uuid, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_signature(principal.tenant, id, &principal.name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("signature")),
    }
}

/// Merge a signature into another one.
///
/// Its failure groups and samples move to the other signature, and it is deleted.
#[utoipa::path(post, path = "/api/v1/signatures/{id}/merge", tag = "signatures", params(("id" = Uuid, Path)),
    request_body = MergeRequest, responses((status = 200, body = SignatureView)))]
async fn merge(
    State(state): State<AppState>,
    principal: Principal,
    PathSignature(id): PathSignature,
    JsonBody(request): JsonBody<MergeRequest>,
) -> Result<Json<SignatureView>, ApiError> {
    let merged = state.store.merge_signatures(principal.tenant, id, request.into).await?;
    Ok(Json(signature_view(merged.ok_or_else(|| ApiError::not_found("signature"))?)))
}

fn updated_view(updated_view: SignatureChanged) -> Result<Json<SignatureView>, ApiError> {
    match updated_view {
        SignatureChanged::Done(signature) => Ok(Json(signature_view(*signature))),
        SignatureChanged::Exists(other) => Err(ApiError::signature_exists(other)),
        SignatureChanged::NotFound => Err(ApiError::not_found("signature")),
    }
}

pub(crate) fn outcome(stored: StoredOutcome) -> SignatureOutcome {
    SignatureOutcome {
        likely_cause: stored.likely_cause,
        mttr_p50_seconds: stored.mttr_p50_s,
        mttr_p95_seconds: stored.mttr_p95_s,
        suggested_action: stored.suggested_action,
        remediation_url: stored.remediation_url,
    }
}

fn signature_view(signature: Signature) -> SignatureView {
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

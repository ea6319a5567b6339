//! Artifacts: named blobs of a job, streamed in and out (Q9).

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::limits::{ARTIFACTS_PER_JOB, LABEL_BYTES};
use domain::{Epoch, JobId, Label, Refusal, Right};
use http_body_util::BodyDataStream;
use pages::segment;
use store::artifacts::Artifact;
use store::artifacts::put::{ArtifactPut, NewArtifact};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{ArtifactView, Page};

use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::{PathArtifact, PathJob, drain, header};
use crate::state::AppState;
use crate::view;

const EPOCH: HeaderName = HeaderName::from_static("x-windlass-epoch");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// Whatever an artifact is, a browser shows none of it and runs none of it.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

/// Bytes of any kind, for the document.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "bodies are streamed, never held")]
struct Content(Vec<u8>);

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put))
}

/// The artifacts of a job, by name.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts", tag = "artifacts", params(("id" = Uuid, Path)),
    responses((status = 200, body = Page<ArtifactView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
) -> Result<Json<Page<ArtifactView>>, ApiError> {
    state.check_visible(&principal, id).await?;
    let artifacts = state.store.list_artifacts(principal.tenant, id).await?;
    let artifacts = artifacts.ok_or_else(|| ApiError::not_found("job"))?;
    Ok(Json(Page { items: artifacts.into_iter().map(shown).collect(), next_cursor: None, partial: false }))
}

/// Stores an artifact: the body as it is. The same again is fine; another of the same name is refused.
#[utoipa::path(put, path = "/api/v1/jobs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = Uuid, Path), ("name" = String, Path),
        ("X-Windlass-Epoch" = Option<i64>, Header, description = "the claim it belongs to; a worker says it"),
        ("Repr-Digest" = Option<String>, Header, description = "RFC 9530, sha-256; checked when sent")),
    request_body(content = inline(Content), content_type = "application/octet-stream"),
    responses((status = 201, body = ArtifactView), (status = 200, body = ArtifactView, description = "it was there before")))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathArtifact { job, name }: PathArtifact,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut body = body;
    let stored = store(&state, &principal, job, name, &headers, &mut body).await;
    if stored.is_err() {
        drain(&headers, body).await;
    }
    let (status, artifact) = stored?;
    Ok((status, [(REPR_DIGEST, repr_digest(&artifact))], Json(shown(artifact))).into_response())
}

async fn store(
    state: &AppState,
    principal: &Principal,
    job: JobId,
    name: Label,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<(StatusCode, Artifact), ApiError> {
    state.check_reached(principal, job).await?;
    let most_bytes = state.options.artifact_bytes;
    let said = header(headers, &CONTENT_LENGTH)?.and_then(|length| length.parse::<u64>().ok());
    if said.is_some_and(|length| length > most_bytes) {
        return Err(ApiError::body_too_large(most_bytes));
    }
    let new = NewArtifact {
        tenant: state.tenant_of(principal, job).await?,
        job,
        name,
        content_type: content_type(headers)?,
        epoch: epoch(headers)?,
        sha256: digest(headers)?,
        most_bytes,
    };
    match state.store.put_artifact(&state.blobs, new, BodyDataStream::new(body)).await? {
        ArtifactPut::Stored(artifact) => Ok((StatusCode::CREATED, artifact)),
        ArtifactPut::Same(artifact) => Ok((StatusCode::OK, artifact)),
        ArtifactPut::Exists => Err(ApiError::artifact_exists()),
        ArtifactPut::ClaimLost => Err(ApiError::refused(Refusal::ClaimLost)),
        ArtifactPut::NotFound => Err(ApiError::not_found("job")),
        ArtifactPut::TooMany => {
            Err(ApiError::limit_reached(format_args!("a job may have at most {ARTIFACTS_PER_JOB} artifacts")))
        }
        ArtifactPut::TooLarge => Err(ApiError::body_too_large(most_bytes)),
        ArtifactPut::DigestMismatch => Err(ApiError::digest_mismatch()),
        ArtifactPut::Interrupted => Err(ApiError::body_broken_off()),
    }
}

/// The artifact's bytes, as a download.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = Uuid, Path), ("name" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = inline(Content))))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathArtifact { job, name }: PathArtifact,
) -> Result<Response, ApiError> {
    check_readable(&state, &principal, job, &name).await?;
    let download = state.store.artifact(&state.blobs, principal.tenant, job, name).await?;
    let download = download.ok_or_else(|| ApiError::not_found("artifact"))?;
    let artifact = &download.artifact;
    let content_type = HeaderValue::from_str(&artifact.content_type);
    let etag = HeaderValue::from_str(&format!("\"{}\"", hex(&artifact.sha256)));
    let headers = [
        (CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static("application/octet-stream"))),
        (CONTENT_LENGTH, HeaderValue::from(artifact.size)),
        (CONTENT_DISPOSITION, attachment(&artifact.name)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_SECURITY_POLICY, SANDBOX),
        (REPR_DIGEST, repr_digest(artifact)),
        (ETAG, etag.expect("hexadecimal digits are ASCII")),
    ];
    Ok((headers, Body::from_stream(download.bytes)).into_response())
}

/// What `work` keeps of stderr is a log; everything else is an artifact.
async fn check_readable(state: &AppState, principal: &Principal, job: JobId, name: &Label) -> Result<(), ApiError> {
    let is_log = name.as_str() == "log" || name.as_str().starts_with("log-");
    let right = if is_log { Right::ReadLogs } else { Right::ReadArtifacts };
    if principal.has(right) {
        return state.check_reached(principal, job).await;
    }
    let job = state.visible_job(principal, job).await;
    let job = job.map_err(|error| match error.status() {
        StatusCode::NOT_FOUND => ApiError::not_found("artifact"),
        _ => error,
    })?;
    if principal.reads(right, &job) {
        return Ok(());
    }
    Err(ApiError::forbidden(format_args!("the token lacks the right {right}")))
}

fn shown(artifact: Artifact) -> ArtifactView {
    ArtifactView {
        name: artifact.name,
        size: artifact.size,
        content_type: artifact.content_type,
        sha256: hex(&artifact.sha256),
        created_at: view::time(artifact.created_at),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content_type(headers: &HeaderMap) -> Result<String, ApiError> {
    match header(headers, &CONTENT_TYPE)? {
        None => Ok("application/octet-stream".into()),
        Some(text) if text.len() <= LABEL_BYTES && text.contains('/') => Ok(text.to_owned()),
        Some(_) => Err(ApiError::invalid_header("Content-Type", "must be a media type like image/png")),
    }
}

fn epoch(headers: &HeaderMap) -> Result<Option<Epoch>, ApiError> {
    let number = |text: &str| {
        let epoch = text.parse().map_err(|_| ApiError::invalid_header("X-Windlass-Epoch", "must be a whole number"));
        epoch.map(Epoch)
    };
    header(headers, &EPOCH)?.map(number).transpose()
}

/// The sha-256 of `Repr-Digest: sha-256=:…:`; other algorithms beside it are the sender's own business.
fn digest(headers: &HeaderMap) -> Result<Option<[u8; 32]>, ApiError> {
    let Some(text) = header(headers, &REPR_DIGEST)? else { return Ok(None) };
    let mut members = text.split(',').map(str::trim);
    let digest = members.find_map(|member| member.strip_prefix("sha-256=:")?.strip_suffix(':'));
    let digest = digest.and_then(|base64| STANDARD.decode(base64).ok()?.try_into().ok());
    let refuse = || ApiError::invalid_header("Repr-Digest", "must be sha-256=:base64 of 32 bytes:");
    digest.map(Some).ok_or_else(refuse)
}

fn repr_digest(artifact: &Artifact) -> HeaderValue {
    let text = format!("sha-256=:{}:", STANDARD.encode(artifact.sha256));
    HeaderValue::from_str(&text).expect("base64 is ASCII")
}

/// RFC 6266, with the name for old clients and for others.
fn attachment(name: &str) -> HeaderValue {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let text = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{}", segment(name));
    HeaderValue::from_str(&text).expect("an encoded name is ASCII")
}

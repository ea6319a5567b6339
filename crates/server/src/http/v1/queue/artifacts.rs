//! Artifacts: named blobs of a job, streamed in both directions.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use domain::limits::{ARTIFACTS_PER_JOB, LABEL_BYTES};
use domain::{Epoch, JobId, Label, Refusal, Right, TenantId};
use http_body_util::BodyDataStream;
use pages::segment;
use store::queue::artifacts::Artifact;
use store::queue::artifacts::put::{ArtifactPut, NewArtifact};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{ArtifactView, Page};

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::{Params, PathArtifact, PathJob, drain, header};
use crate::state::AppState;
use crate::validate::query::NoParameters;
use crate::view;

const EPOCH: HeaderName = HeaderName::from_static("x-windlass-epoch");
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");
/// Prevents a browser from rendering an artifact or running its scripts.
const SANDBOX: HeaderValue = HeaderValue::from_static("sandbox; default-src 'none'");

/// Arbitrary bytes, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[expect(dead_code, reason = "only the schema is used; bodies are streamed")]
struct Content(Vec<u8>);

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put))
}

/// List the artifacts of a job by name.
///
/// Of artifacts with one name only the newest is listed.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts", tag = "artifacts", params(("id" = Uuid, Path)),
    responses((status = 200, body = Page<ArtifactView>)))]
async fn list(
    State(state): State<AppState>,
    principal: Principal,
    PathJob(id): PathJob,
    _: Params<NoParameters>,
) -> Result<Json<Page<ArtifactView>>, ApiError> {
    let items = artifacts_of(&state, &principal, id).await?;
    Ok(Json(Page { items, next_cursor: None, partial: false }))
}

/// Returns the artifacts of a job by name.
pub(crate) async fn artifacts_of(
    state: &AppState,
    principal: &Principal,
    job: JobId,
) -> Result<Vec<ArtifactView>, ApiError> {
    state.check_visible(principal, job).await?;
    let artifacts = state.store.list_artifacts(principal.tenant, job).await?;
    Ok(artifacts.ok_or_else(|| ApiError::not_found("job"))?.into_iter().map(artifact_view).collect())
}

/// Upload an artifact.
///
/// The body is stored unchanged. Idempotent: uploading the same content again returns 200. An artifact belongs to the claim
/// that uploaded it; a later claim replaces it. Returns 409 if this claim has stored a different artifact with this name,
/// or if the job is claimed and the epoch is missing or stale, and 413 if the body is too large.
#[utoipa::path(put, path = "/api/v1/jobs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = Uuid, Path), ("name" = String, Path),
        ("X-Windlass-Epoch" = Option<i64>, Header, description = "The epoch of the claim. Required while the job is claimed; a missing or stale epoch returns 409."),
        ("Repr-Digest" = Option<String>, Header, description = "RFC 9530 digest (sha-256). If present, it is verified.")),
    request_body(content = inline(Content), content_type = "application/octet-stream"),
    responses((status = 201, body = ArtifactView), (status = 200, body = ArtifactView, description = "The same artifact already exists")))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathArtifact { job, name }: PathArtifact,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let mut body = body;
    let stored = async {
        // Not an extractor of this handler: a refused body must be drained.
        Params::<NoParameters>::of(&uri)?;
        store(&state, &principal, job, name, &headers, &mut body).await
    };
    let stored = stored.await;
    if stored.is_err() {
        drain(&headers, body).await;
    }
    let (status, artifact) = stored?;
    Ok((status, [(REPR_DIGEST, repr_digest(&artifact))], Json(artifact_view(artifact))).into_response())
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
    let max_bytes = state.options.artifact_bytes;
    let content_length = header(headers, &CONTENT_LENGTH)?.and_then(|length| length.parse::<u64>().ok());
    if content_length.is_some_and(|length| length > max_bytes) {
        return Err(ApiError::body_too_large(max_bytes));
    }
    let new = NewArtifact {
        tenant: state.tenant_of(principal, job).await?,
        job,
        name,
        content_type: content_type(headers)?,
        epoch: epoch(headers)?,
        sha256: digest(headers)?,
        max_bytes,
    };
    match state.store.put_artifact(&state.blobs, new, BodyDataStream::new(body)).await? {
        ArtifactPut::Stored(artifact) => Ok((StatusCode::CREATED, artifact)),
        ArtifactPut::Same(artifact) => Ok((StatusCode::OK, artifact)),
        ArtifactPut::Exists => Err(ApiError::artifact_exists()),
        ArtifactPut::EpochRequired => Err(ApiError::epoch_required()),
        ArtifactPut::ClaimLost => Err(ApiError::refused(Refusal::ClaimLost)),
        ArtifactPut::NotFound => Err(ApiError::not_found("job")),
        ArtifactPut::TooMany => {
            Err(ApiError::limit_reached(format_args!("the job has reached the limit of {ARTIFACTS_PER_JOB} artifacts")))
        }
        ArtifactPut::TooLarge => Err(ApiError::body_too_large(max_bytes)),
        ArtifactPut::DigestMismatch => Err(ApiError::digest_mismatch()),
        ArtifactPut::Interrupted => Err(ApiError::body_broken_off()),
    }
}

/// Download an artifact.
///
/// The response has the stored content type and an `ETag` with the digest. A worker that names its claim reads the
/// artifacts of the claimed job, of the jobs that it needs or has started, and of the job that it is a fork of.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/artifacts/{name}", tag = "artifacts",
    params(("id" = Uuid, Path), ("name" = String, Path),
        ("X-Windlass-Claim" = Option<String>, Header, description = "A claim of the caller as `WORKER/JOB`, with the ids of both.")),
    responses((status = 200, content_type = "application/octet-stream", body = inline(Content))))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathArtifact { job, name }: PathArtifact,
    headers: HeaderMap,
    _: Params<NoParameters>,
) -> Result<Response, ApiError> {
    let tenant = check_readable(&state, &principal, &headers, job, &name).await?;
    let download = state.store.artifact(&state.blobs, tenant, job, name).await?;
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

/// The stderr that `windlass work` uploads counts as a log; everything else is an artifact. Returns the tenant of the job.
async fn check_readable(
    state: &AppState,
    principal: &Principal,
    headers: &HeaderMap,
    job: JobId,
    name: &Label,
) -> Result<TenantId, ApiError> {
    let is_log = name.as_str() == "log" || name.as_str().starts_with("log-");
    let right = if is_log { Right::ReadLogs } else { Right::ReadArtifacts };
    if principal.has(right) {
        state.check_reached(principal, job).await?;
        return Ok(principal.tenant);
    }
    if !is_log && let Some(tenant) = state.readable_by_claim(principal, headers, job).await? {
        return Ok(tenant);
    }
    let job = state.visible_job(principal, job).await;
    let job = job.map_err(|error| match error.status() {
        StatusCode::NOT_FOUND => ApiError::not_found("artifact"),
        _ => error,
    })?;
    if principal.reads(right, &job) {
        return Ok(principal.tenant);
    }
    Err(ApiError::forbidden(format_args!("the token lacks the right {right}")))
}

pub(crate) fn artifact_view(artifact: Artifact) -> ArtifactView {
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

/// Reads the sha-256 of `Repr-Digest: sha-256=:…:`. Other algorithms are ignored.
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

/// Content-Disposition (RFC 6266), with an ASCII name for old clients and an encoded one.
fn attachment(name: &str) -> HeaderValue {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
    let text = format!("attachment; filename=\"{plain}\"; filename*=UTF-8''{}", segment(name));
    HeaderValue::from_str(&text).expect("an encoded name is ASCII")
}

//! Batches: many requests in one file, executed as durable jobs grouped by model.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use domain::limits::{BATCH_WINDOW_H, FILE_RETENTION_S, METADATA_KEY_BYTES, METADATA_MEMBERS, METADATA_VALUE_BYTES};
use domain::{Right, Time};
use engine::runtimes::openai::ENDPOINTS;
use serde::Deserialize;
use serde_json::{Value, json};
use store::runtimes::openai::batches::{BatchCanceled, NewBatch};
use store::runtimes::openai::{BatchStatus, OpenAiBatch};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::files::{find as find_file, invalid_expiry};
use super::{OpenAiError, after, check_owner, is_id, owner_filter, page};
use crate::access::auth::Principal;
use crate::extract::{JsonBody, Params};
use crate::state::AppState;
use crate::validate::query::limit;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_batches, create)).routes(routes!(batch)).routes(routes!(cancel))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchRequest {
    input_file_id: String,
    endpoint: String,
    completion_window: String,
    metadata: Option<BTreeMap<String, String>>,
    output_expires_after: Option<Expiry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expiry {
    anchor: String,
    seconds: i64,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct BatchesQuery {
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    limit: Option<String>,
    /// The last id of the previous page.
    after: Option<String>,
}

/// Create a batch from an uploaded file.
///
/// Each line of the file becomes a job of the pool's queue.
#[utoipa::path(post, path = "/openai/v1/batches", tag = "openai", request_body = Object, responses((status = 200, body = Object)))]
async fn create(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<BatchRequest>,
) -> Result<Json<Value>, OpenAiError> {
    let new = validated(request, &principal)?;
    if find_file(&state, &principal, &new.input_file).await?.purpose != "batch" {
        let message = "the file must have the purpose batch; upload it with that purpose";
        return Err(OpenAiError::invalid("invalid_purpose", message, "input_file_id"));
    }
    Ok(Json(view(&state.store.create_batch(principal.tenant, new).await?)))
}

fn validated(request: BatchRequest, principal: &Principal) -> Result<NewBatch, OpenAiError> {
    if !ENDPOINTS.iter().any(|(path, _)| *path == request.endpoint) {
        let message = format!("endpoint must be one of {}", ENDPOINTS.map(|(path, _)| path).join(", "));
        return Err(OpenAiError::invalid("invalid_endpoint", &message, "endpoint"));
    }
    let hours = request.completion_window.strip_suffix('h').and_then(|hours| hours.parse::<i64>().ok());
    let Some(hours) = hours.filter(|hours| BATCH_WINDOW_H.contains(hours)) else {
        let message = format!("completion_window must be from 1h to {}h, for example 24h", BATCH_WINDOW_H.end());
        return Err(OpenAiError::invalid("invalid_completion_window", &message, "completion_window"));
    };
    let metadata = request.metadata.unwrap_or_default();
    let too_long =
        |(key, value): (&String, &String)| key.len() > METADATA_KEY_BYTES || value.len() > METADATA_VALUE_BYTES;
    if metadata.len() > METADATA_MEMBERS || metadata.iter().any(too_long) {
        let message = format!(
            "metadata may have at most {METADATA_MEMBERS} members, with keys of at most {METADATA_KEY_BYTES} bytes and \
             values of at most {METADATA_VALUE_BYTES} bytes"
        );
        return Err(OpenAiError::invalid("invalid_metadata", &message, "metadata"));
    }
    let files_kept_s = match request.output_expires_after {
        Some(Expiry { anchor, seconds }) if anchor == "created_at" && FILE_RETENTION_S.contains(&seconds) => {
            Some(seconds)
        }
        Some(_) => return Err(invalid_expiry("output_expires_after")),
        None => None,
    };
    Ok(NewBatch {
        endpoint: request.endpoint,
        input_file: request.input_file_id,
        completion_window: request.completion_window,
        window_s: hours * 3_600,
        metadata: (!metadata.is_empty()).then(|| json!(metadata).to_string()),
        files_kept_s,
        principal: principal.name.to_string(),
    })
}

/// List batches, newest first.
#[utoipa::path(get, path = "/openai/v1/batches", tag = "openai", params(BatchesQuery), responses((status = 200, body = Object)))]
async fn list_batches(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<BatchesQuery>,
) -> Result<Json<Value>, OpenAiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = after(query.after, "batch_")?;
    let batches = state.store.list_batches(principal.tenant, after, owner_filter(&principal), limit + 1).await?;
    Ok(Json(page(batches.iter().map(view).collect(), limit)))
}

/// Get a batch.
///
/// `request_counts` is updated while the jobs end.
#[utoipa::path(get, path = "/openai/v1/batches/{batch}", tag = "openai", params(("batch" = String, Path)),
    responses((status = 200, body = Object)))]
async fn batch(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    Ok(Json(view(&find(&state, &principal, &id).await?)))
}

/// Cancel a batch.
///
/// Results of requests that have finished are kept in the output file.
#[utoipa::path(post, path = "/openai/v1/batches/{batch}/cancel", tag = "openai", params(("batch" = String, Path)),
    responses((status = 200, body = Object)))]
async fn cancel(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    check_owner(&principal, &find(&state, &principal, &id).await?.principal, Right::Operate)?;
    match state.store.cancel_batch(principal.tenant, &id).await? {
        BatchCanceled::Requested(batch) => Ok(Json(view(&batch))),
        BatchCanceled::Ended(status) => {
            let message = format!("Cannot cancel a batch with status '{}'.", status.as_str());
            Err(OpenAiError::invalid("invalid_status", &message, "batch_id"))
        }
        BatchCanceled::NotFound => Err(not_found(&id)),
    }
}

fn not_found(id: &str) -> OpenAiError {
    OpenAiError::not_found(&format!("No batch found with id '{id}'."), "batch_id")
}

async fn find(state: &AppState, principal: &Principal, id: &str) -> Result<OpenAiBatch, OpenAiError> {
    if !is_id(id, "batch_") {
        return Err(not_found(id));
    }
    let batch = state.store.batch(principal.tenant, id).await?;
    let only = owner_filter(principal);
    batch.filter(|batch| only.as_ref().is_none_or(|name| *name == batch.principal)).ok_or_else(|| not_found(id))
}

fn view(batch: &OpenAiBatch) -> Value {
    let at = |time: Option<Time>| time.map(|time| time.millis() / 1_000);
    let ended = |status: BatchStatus| at(batch.ended_at.filter(|_| batch.status == status));
    let errors: Vec<Value> = batch
        .errors
        .iter()
        .map(|fault| json!({"code": fault.code, "message": fault.message, "line": fault.line, "param": null}))
        .collect();
    let errors = if errors.is_empty() { Value::Null } else { json!({"object": "list", "data": errors}) };
    let metadata = batch.metadata.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    json!({
        "id": batch.id, "object": "batch", "endpoint": batch.endpoint, "errors": errors,
        "input_file_id": batch.input_file, "completion_window": batch.completion_window,
        "status": batch.status.as_str(), "output_file_id": batch.output_file, "error_file_id": batch.error_file,
        "created_at": at(Some(batch.created_at)), "in_progress_at": at(batch.in_progress_at),
        "expires_at": at(Some(batch.expires_at)), "finalizing_at": at(batch.finalizing_at),
        "completed_at": ended(BatchStatus::Completed), "failed_at": ended(BatchStatus::Failed),
        "expired_at": ended(BatchStatus::Expired), "cancelling_at": at(batch.cancelling_at),
        "cancelled_at": ended(BatchStatus::Cancelled),
        "request_counts": {"total": batch.total, "completed": batch.completed, "failed": batch.failed},
        "metadata": metadata,
    })
}

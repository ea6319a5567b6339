//! Files: the inputs and outputs of batches.

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse, Response};
use domain::Right;
use domain::limits::{FILE_RETENTION_S, LABEL_BYTES};
use serde::Deserialize;
use serde_json::{Value, json};
use store::runtimes::openai::File;
use store::runtimes::openai::files::{FileDeleted, FileFilter, NewFile};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::form::{self, FormFields};
use super::{OpenAiError, after, check_owner, is_id, owner_filter, page};
use crate::access::auth::Principal;
use crate::extract::Params;
use crate::state::AppState;
use crate::validate::query::limit;

/// The purpose of files that batches write.
const BATCH_OUTPUT: &str = "batch_output";
/// The purposes that the OpenAI API defines. Only `batch` has an effect here.
const PURPOSES: [&str; 6] = ["batch", "assistants", "fine-tune", "vision", "user_data", "evals"];

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_files, upload)).routes(routes!(file, delete)).routes(routes!(content))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FilesQuery {
    /// Only files with this purpose.
    purpose: Option<String>,
    /// Items per page, 1 to 500 (default: 50).
    #[param(value_type = Option<u32>)]
    limit: Option<String>,
    /// The last id of the previous page.
    after: Option<String>,
    /// `desc`, newest first, is the only order.
    order: Option<String>,
}

/// Upload a file as a form with the fields `purpose` and `file`.
///
/// Only the purpose `batch` has an effect. A file has at most 200 MiB.
#[utoipa::path(post, path = "/openai/v1/files", tag = "openai", request_body(content = Object, content_type = "multipart/form-data"),
    responses((status = 200, body = Object)))]
async fn upload(
    State(state): State<AppState>,
    principal: Principal,
    request: Request,
) -> Result<Json<Value>, OpenAiError> {
    let form = form::read(&state, principal.tenant, request).await?;
    let new = match validated(&form.fields, &principal) {
        Ok(new) => new,
        Err(error) => {
            state.store.discard(&state.blobs, form.content).await;
            return Err(error);
        }
    };
    Ok(Json(view(&state.store.put_file(principal.tenant, new, form.content).await?)))
}

fn validated(fields: &FormFields, principal: &Principal) -> Result<NewFile, OpenAiError> {
    let text = |name: &str| fields.texts.get(name).map(String::as_str);
    let Some(purpose) = text("purpose").filter(|purpose| PURPOSES.contains(purpose)) else {
        let message = format!("purpose must be one of {}", PURPOSES.join(", "));
        return Err(OpenAiError::invalid("invalid_purpose", &message, "purpose"));
    };
    let filename = fields.filename.as_deref().filter(|name| !name.is_empty()).unwrap_or("upload");
    if filename.len() > LABEL_BYTES || filename.chars().any(char::is_control) {
        return Err(OpenAiError::invalid(
            "invalid_filename",
            "the file name is too long or contains control characters",
            "file",
        ));
    }
    let seconds = text("expires_after[seconds]").map(str::parse::<i64>);
    let retention_s = match (text("expires_after[anchor]"), seconds) {
        (None, None) => None,
        (Some("created_at"), Some(Ok(seconds))) if FILE_RETENTION_S.contains(&seconds) => Some(seconds),
        _ => return Err(invalid_expiry("expires_after")),
    };
    let (filename, purpose) = (filename.to_owned(), purpose.to_owned());
    Ok(NewFile { filename, purpose, principal: principal.name.to_string(), retention_s })
}

pub(super) fn invalid_expiry(field: &str) -> OpenAiError {
    let (least, most) = (FILE_RETENTION_S.start(), FILE_RETENTION_S.end());
    let message = format!("{field} must have the anchor created_at and seconds from {least} to {most}");
    OpenAiError::invalid("invalid_expiry", &message, field)
}

/// List files, newest first.
#[utoipa::path(get, path = "/openai/v1/files", tag = "openai", params(FilesQuery), responses((status = 200, body = Object)))]
async fn list_files(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<FilesQuery>,
) -> Result<Json<Value>, OpenAiError> {
    if query.order.as_deref().is_some_and(|order| order != "desc") {
        return Err(OpenAiError::invalid("invalid_query", "order must be desc", "order"));
    }
    if query.purpose.as_deref().is_some_and(|purpose| !PURPOSES.contains(&purpose) && purpose != BATCH_OUTPUT) {
        return Err(OpenAiError::invalid("invalid_query", "unknown purpose", "purpose"));
    }
    let limit = limit(query.limit.as_deref())?;
    let filter =
        FileFilter { purpose: query.purpose, principal: owner_filter(&principal), after: after(query.after, "file-")? };
    let files = state.store.list_files(principal.tenant, filter, limit + 1).await?;
    Ok(Json(page(files.iter().map(view).collect(), limit)))
}

/// Get the metadata of a file.
///
/// The response has the size, the purpose and the time of creation.
#[utoipa::path(get, path = "/openai/v1/files/{file}", tag = "openai", params(("file" = String, Path)),
    responses((status = 200, body = Object)))]
async fn file(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    Ok(Json(view(&find(&state, &principal, &id).await?)))
}

/// Download the content of a file.
///
/// The result files of a batch are written when the batch ends.
#[utoipa::path(get, path = "/openai/v1/files/{file}/content", tag = "openai", params(("file" = String, Path)),
    responses((status = 200, content_type = "application/octet-stream", body = String)))]
async fn content(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Response, OpenAiError> {
    let file = find(&state, &principal, &id).await?;
    // Inputs contain payloads of jobs; outputs contain results.
    if file.purpose != BATCH_OUTPUT {
        check_owner(&principal, &file.principal, Right::ReadPayloads)?;
    }
    let found = state.store.file_content(&state.blobs, principal.tenant, &id).await?;
    let (file, content) = found.ok_or_else(|| not_found(&id))?;
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, file.bytes.to_string()),
        (CONTENT_DISPOSITION, "attachment".to_owned()),
        (X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
    ];
    Ok((headers, Body::from_stream(content)).into_response())
}

/// Delete a file.
///
/// Returns 409 while a batch still has to read it.
#[utoipa::path(delete, path = "/openai/v1/files/{file}", tag = "openai", params(("file" = String, Path)),
    responses((status = 200, body = Object)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    Path(id): Path<String>,
) -> Result<Json<Value>, OpenAiError> {
    check_owner(&principal, &find(&state, &principal, &id).await?.principal, Right::Operate)?;
    match state.store.delete_file(principal.tenant, &id).await? {
        FileDeleted::Deleted => Ok(Json(json!({"id": id, "object": "file", "deleted": true}))),
        FileDeleted::InUse => {
            let message = "a batch has not read the file yet; cancel the batch or wait until it runs";
            Err(OpenAiError::new(StatusCode::CONFLICT, "file_in_use", message, Some("id")))
        }
        FileDeleted::NotFound => Err(not_found(&id)),
    }
}

fn not_found(id: &str) -> OpenAiError {
    OpenAiError::not_found(&format!("No such File object: {id}"), "id")
}

pub(super) async fn find(state: &AppState, principal: &Principal, id: &str) -> Result<File, OpenAiError> {
    if !is_id(id, "file-") {
        return Err(not_found(id));
    }
    let file = state.store.file(principal.tenant, id).await?;
    let only = owner_filter(principal);
    file.filter(|file| only.as_ref().is_none_or(|name| *name == file.principal)).ok_or_else(|| not_found(id))
}

fn view(file: &File) -> Value {
    json!({
        "id": file.id, "object": "file", "bytes": file.bytes, "created_at": file.created_at.millis() / 1_000,
        "expires_at": file.expires_at.map(|at| at.millis() / 1_000), "filename": file.filename,
        "purpose": file.purpose, "status": "processed", "status_details": null,
    })
}

//! Parses the form of an upload: streams the file into the store and reads the short fields around it.

use std::collections::HashMap;

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use domain::TenantId;
use domain::limits::FILE_BYTES;
use multer::{Constraints, Field, Multipart, SizeLimit};
use store::queue::artifacts::content::{Content, ContentRejected};

use super::OpenAiError;
use crate::error::ApiError;
use crate::state::AppState;

/// Maximum size of a short field.
const FIELD_BYTES: u64 = 1 << 10;
/// Maximum size of all fields besides the file.
const FORM_BYTES: u64 = 64 << 10;

pub(super) struct Form {
    pub(super) fields: FormFields,
    pub(super) content: Content,
}

#[derive(Default)]
pub(super) struct FormFields {
    pub(super) filename: Option<String>,
    pub(super) texts: HashMap<String, String>,
}

/// Reads a form. The fields may come in any order, and the file is not held in memory.
pub(super) async fn read(state: &AppState, tenant: TenantId, request: Request) -> Result<Form, OpenAiError> {
    let mut fields = FormFields::default();
    let mut content = None;
    let outcome = async {
        let mut form = multipart(request)?;
        while let Some(field) = form.next_field().await.map_err(unreadable)? {
            if field.name() == Some("file") && content.is_none() {
                fields.filename = field.file_name().map(str::to_owned);
                content = Some(store_content(state, tenant, field).await?);
            } else if let Some(name) = field.name().map(str::to_owned) {
                fields.texts.insert(name, field.text().await.map_err(unreadable)?);
            }
        }
        Ok(())
    };
    let outcome: Result<(), OpenAiError> = outcome.await;
    match (outcome, content) {
        (Ok(()), Some(content)) => Ok(Form { fields, content }),
        (Ok(()), None) => Err(OpenAiError::invalid("missing_field", "the form field `file` is missing", "file")),
        (Err(error), content) => {
            if let Some(content) = content {
                state.store.discard(&state.blobs, content).await;
            }
            Err(error)
        }
    }
}

fn multipart(request: Request) -> Result<Multipart<'static>, OpenAiError> {
    let content_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let Some(boundary) = content_type.and_then(|text| multer::parse_boundary(text).ok()) else {
        return Err(OpenAiError::invalid("invalid_form", "send the file as multipart/form-data", "file"));
    };
    let limits = SizeLimit::new()
        .whole_stream(FILE_BYTES + FORM_BYTES)
        .per_field(FIELD_BYTES)
        // The store limits the file and reports the limit.
        .for_field("file", u64::MAX);
    let limits = Constraints::new().size_limit(limits);
    Ok(Multipart::with_constraints(request.into_body().into_data_stream(), boundary, limits))
}

async fn store_content(state: &AppState, tenant: TenantId, field: Field<'static>) -> Result<Content, OpenAiError> {
    match state.store.receive_file(&state.blobs, tenant, field).await? {
        Ok(content) => Ok(content),
        Err(ContentRejected::TooLarge) => Err(ApiError::body_too_large(FILE_BYTES).into()),
        Err(ContentRejected::Interrupted) => Err(ApiError::body_broken_off().into()),
    }
}

fn unreadable(error: multer::Error) -> OpenAiError {
    match error {
        multer::Error::StreamSizeExceeded { .. } => ApiError::body_too_large(FILE_BYTES).into(),
        multer::Error::FieldSizeExceeded { field_name, .. } => {
            let field = field_name.unwrap_or_default();
            OpenAiError::invalid(
                "invalid_form",
                &format!("the form field {field} is longer than {FIELD_BYTES} bytes"),
                &field,
            )
        }
        multer::Error::StreamReadFailed(_) => ApiError::body_broken_off().into(),
        _ => OpenAiError::invalid("invalid_form", "the form is malformed", "file"),
    }
}

//! Reads the form of an upload: a file of any size on its way into the store, and a few short fields around it.

use std::collections::HashMap;

use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use domain::TenantId;
use domain::limits::FILE_BYTES;
use multer::{Constraints, Field, Multipart, SizeLimit};
use store::artifacts::content::{Content, Unfit};

use super::Refused;
use crate::error::ApiError;
use crate::state::AppState;

/// The most that one of the short fields holds, and that all of them take with what is written around them.
const FIELD_BYTES: u64 = 1 << 10;
const FORM_BYTES: u64 = 64 << 10;

pub(super) struct Form {
    pub(super) fields: Fields,
    pub(super) content: Content,
}

#[derive(Default)]
pub(super) struct Fields {
    pub(super) filename: Option<String>,
    pub(super) texts: HashMap<String, String>,
}

/// Reads a form whose field `file` becomes content: the fields may come in any order, and nothing large stays in memory.
pub(super) async fn read(state: &AppState, tenant: TenantId, request: Request) -> Result<Form, Refused> {
    let mut fields = Fields::default();
    let mut content = None;
    let unread = async {
        let mut form = open(request)?;
        while let Some(field) = form.next_field().await.map_err(unreadable)? {
            if field.name() == Some("file") && content.is_none() {
                fields.filename = field.file_name().map(str::to_owned);
                content = Some(take(state, tenant, field).await?);
            } else if let Some(name) = field.name().map(str::to_owned) {
                fields.texts.insert(name, field.text().await.map_err(unreadable)?);
            }
        }
        Ok(())
    };
    let unread: Result<(), Refused> = unread.await;
    match (unread, content) {
        (Ok(()), Some(content)) => Ok(Form { fields, content }),
        (Ok(()), None) => Err(Refused::invalid("missing_field", "the field file is missing", "file")),
        (Err(refused), content) => {
            if let Some(content) = content {
                state.store.discard(&state.blobs, content).await;
            }
            Err(refused)
        }
    }
}

fn open(request: Request) -> Result<Multipart<'static>, Refused> {
    let named = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let Some(boundary) = named.and_then(|text| multer::parse_boundary(text).ok()) else {
        return Err(Refused::invalid("invalid_form", "send the file as multipart/form-data", "file"));
    };
    let limits = SizeLimit::new()
        .whole_stream(FILE_BYTES + FORM_BYTES)
        .per_field(FIELD_BYTES)
        // The store counts, and says how many there may be.
        .for_field("file", u64::MAX);
    let limits = Constraints::new().size_limit(limits);
    Ok(Multipart::with_constraints(request.into_body().into_data_stream(), boundary, limits))
}

async fn take(state: &AppState, tenant: TenantId, field: Field<'static>) -> Result<Content, Refused> {
    match state.store.take_file(&state.blobs, tenant, field).await? {
        Ok(content) => Ok(content),
        Err(Unfit::TooLarge) => Err(ApiError::body_too_large(FILE_BYTES).into()),
        Err(Unfit::Interrupted) => Err(ApiError::body_broken_off().into()),
    }
}

fn unreadable(error: multer::Error) -> Refused {
    match error {
        multer::Error::StreamSizeExceeded { .. } => ApiError::body_too_large(FILE_BYTES).into(),
        multer::Error::FieldSizeExceeded { field_name, .. } => {
            let field = field_name.unwrap_or_default();
            Refused::invalid("invalid_form", &format!("the field {field} is longer than {FIELD_BYTES} bytes"), &field)
        }
        multer::Error::StreamReadFailed(_) => ApiError::body_broken_off().into(),
        _ => Refused::invalid("invalid_form", "the form cannot be read", "file"),
    }
}

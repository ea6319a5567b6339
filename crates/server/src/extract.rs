//! Axum extractors and body readers used by every handler: JSON bodies, query parameters, ids and names in the path,
//! headers.

use std::time::Duration;

use axum::RequestPartsExt;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Uri};
use bytes::Bytes;
use domain::limits::BODY_BYTES;
use domain::{DeadLetterId, DeliveryId, JobId, Label, Name, RuntimeName, TokenId, TriggerId, WorkerId};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::ApiError;
use crate::json;
use crate::state::AppState;
use crate::validate;

/// How long a refused body is still read, so that the client stops sending and reads the response.
const DRAIN: Duration = Duration::from_secs(2);

/// A JSON body.
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body, or `T::default()` if the body is empty.
pub(crate) struct OptionalJson<T>(pub(crate) T);

/// A JSON body and its bytes.
pub(crate) struct JsonBytes<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        JsonBytes::from_request(request, state).await.map(|JsonBytes { value, .. }| Self(value))
    }
}

impl<T: DeserializeOwned> FromRequest<AppState> for JsonBytes<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        let bytes = read(&parts.headers, body).await?;
        Ok(Self { value: json::parse(&bytes)?, bytes })
    }
}

impl<T: DeserializeOwned + Default> FromRequest<AppState> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let bytes = read(&parts.headers, body).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        check_content_type(&parts.headers)?;
        json::parse(&bytes).map(Self)
    }
}

pub(crate) fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Err(ApiError::unsupported_media_type(None)) };
    let text = value.to_str().unwrap_or("an unreadable value");
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if !is_json {
        return Err(ApiError::unsupported_media_type(Some(text)));
    }
    match headers.get(CONTENT_ENCODING) {
        Some(coding) if !coding.as_bytes().eq_ignore_ascii_case(b"identity") => Err(ApiError::unsupported_encoding()),
        _ => Ok(()),
    }
}

async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    read_at_most(BODY_BYTES, headers, body).await
}

/// Reads the whole body. Refuses one of more than `most` bytes.
pub(crate) async fn read_at_most(limit: usize, headers: &HeaderMap, body: Body) -> Result<Bytes, ApiError> {
    let content_length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if content_length.is_some_and(|length| length > limit) {
        drain(headers, body).await;
        return Err(ApiError::body_too_large(limit as u64));
    }
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::body_too_large(limit as u64)),
        Err(_) => Err(ApiError::body_broken_off()),
    }
}

/// Discards the rest of a refused body. A client that is still writing does not read: if the connection closed now, the
/// response would be lost. A client that sent `Expect` waits for permission to write and needs no drain.
pub(crate) async fn drain(headers: &HeaderMap, mut body: Body) {
    if headers.contains_key(EXPECT) {
        return;
    }
    let discard = async {
        let mut remaining = 2 * BODY_BYTES;
        while let (1.., Some(Ok(frame))) = (remaining, body.frame().await) {
            remaining = remaining.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    let _ = tokio::time::timeout(DRAIN, discard).await;
}

/// Any JSON value, as its original text.
pub(crate) struct AnyJson(pub(crate) Box<str>);
/// A body of any type.
pub(crate) struct RawBody(pub(crate) Bytes);

impl FromRequest<AppState> for AnyJson {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        check_content_type(&parts.headers)?;
        let bytes = read(&parts.headers, body).await?;
        let limit = state.options.payload_bytes;
        if bytes.len() > limit {
            return Err(ApiError::body_too_large(limit as u64));
        }
        json::any(&bytes).map(Self)
    }
}

impl FromRequest<AppState> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &AppState) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        read(&parts.headers, body).await.map(Self)
    }
}

/// Query parameters. Unknown parameters are refused.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<AppState> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        Self::of(&parts.uri)
    }
}

impl<T: DeserializeOwned> Params<T> {
    pub(crate) fn of(uri: &Uri) -> Result<Self, ApiError> {
        let query = Query::<T>::try_from_uri(uri).map_err(|rejection| {
            let text = rejection.body_text();
            let reason = text.split_once(": ").map_or(text.as_str(), |(_, reason)| reason);
            ApiError::invalid_query(reason.split('`').nth(1).unwrap_or_default(), reason)
        })?;
        Ok(Self(query.0))
    }
}

/// A job's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathJob(pub(crate) JobId);
/// A worker's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathWorker(pub(crate) WorkerId);
/// A token's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathToken(pub(crate) TokenId);
/// A delivery's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathDelivery(pub(crate) DeliveryId);
/// A signature's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathSignature(pub(crate) Uuid);
/// A failure group's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathFailure(pub(crate) Uuid);
/// A queue's name in the path.
pub(crate) struct PathQueue(pub(crate) Name);
/// A process's name in the path.
pub(crate) struct PathProcess(pub(crate) Name);
/// A runtime's name in the path.
pub(crate) struct PathRuntime(pub(crate) RuntimeName);
/// A subject's id in the path.
pub(crate) struct PathSubject(pub(crate) Label);
/// A run's id in the path.
pub(crate) struct PathRun(pub(crate) Label);
/// A subject's id and a process's name or `*` in the path.
pub(crate) struct PathBackoff {
    pub(crate) subject: Label,
    pub(crate) process: String,
}
/// A trigger's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathTrigger(pub(crate) TriggerId);
/// A dead letter's id in the path. A malformed id answers like an unknown one.
pub(crate) struct PathDeadLetter(pub(crate) DeadLetterId);
/// A topic in the path.
pub(crate) struct PathTopic(pub(crate) Label);
/// A collection in the path.
pub(crate) struct PathCollection(pub(crate) Label);
/// A collection and a key in the path.
pub(crate) struct PathEntry {
    pub(crate) collection: Label,
    pub(crate) key: Label,
}
pub(crate) struct PathArtifact {
    pub(crate) job: JobId,
    pub(crate) name: Label,
}

/// A job's id and the name of an event or the key of an approval in the path.
pub(crate) struct PathJobMember {
    pub(crate) job: JobId,
    pub(crate) member: Label,
}

#[derive(serde::Deserialize)]
struct JobMemberInPath {
    name: Option<String>,
    key: Option<String>,
}

impl FromRequestParts<AppState> for PathJobMember {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let job = id(parts).await.map(JobId::new).ok_or_else(|| ApiError::not_found("job"))?;
        let path = parts.extract::<Path<JobMemberInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("name", "must be UTF-8"))?;
        let (field, member) = match (path.name, path.key) {
            (Some(name), _) => ("name", name),
            (None, key) => ("key", key.unwrap_or_default()),
        };
        Ok(Self { job, member: label_in_path(field, &member)? })
    }
}

/// A job's id and an artifact's name in the path.
impl FromRequestParts<AppState> for PathJob {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(JobId::new(id))).ok_or_else(|| ApiError::not_found("job"))
    }
}

impl FromRequestParts<AppState> for PathWorker {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(WorkerId::new(id))).ok_or_else(|| ApiError::not_found("worker"))
    }
}

impl FromRequestParts<AppState> for PathToken {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(TokenId::new(id))).ok_or_else(|| ApiError::not_found("token"))
    }
}

impl FromRequestParts<AppState> for PathDelivery {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(DeliveryId::new(id))).ok_or_else(|| ApiError::not_found("delivery"))
    }
}

impl FromRequestParts<AppState> for PathSignature {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(Self).ok_or_else(|| ApiError::not_found("signature"))
    }
}

impl FromRequestParts<AppState> for PathFailure {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(Self).ok_or_else(|| ApiError::not_found("failure group"))
    }
}

impl FromRequestParts<AppState> for PathTrigger {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(TriggerId::new(id))).ok_or_else(|| ApiError::not_found("trigger"))
    }
}

impl FromRequestParts<AppState> for PathDeadLetter {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        id(parts).await.map(|id| Self(DeadLetterId::new(id))).ok_or_else(|| ApiError::not_found("dead letter"))
    }
}

#[derive(serde::Deserialize)]
struct TopicInPath {
    topic: String,
}

#[derive(serde::Deserialize)]
struct EntryInPath {
    collection: String,
    key: Option<String>,
}

fn label_in_path(member: &str, text: &str) -> Result<Label, ApiError> {
    Label::new(text).map_err(|error| ApiError::invalid_field(member, error))
}

impl FromRequestParts<AppState> for PathTopic {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<TopicInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("topic", "must be UTF-8"))?;
        label_in_path("topic", &path.topic).map(Self)
    }
}

impl FromRequestParts<AppState> for PathCollection {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<EntryInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("collection", "must be UTF-8"))?;
        label_in_path("collection", &path.collection).map(Self)
    }
}

impl FromRequestParts<AppState> for PathEntry {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<EntryInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("key", "must be UTF-8"))?;
        let collection = label_in_path("collection", &path.collection)?;
        Ok(Self { collection, key: label_in_path("key", path.key.as_deref().unwrap_or_default())? })
    }
}

#[derive(serde::Deserialize)]
struct IdInPath {
    id: Uuid,
}

#[derive(serde::Deserialize)]
struct NameInPath {
    name: String,
}

async fn id(parts: &mut Parts) -> Option<Uuid> {
    parts.extract::<Path<IdInPath>>().await.ok().map(|Path(path)| path.id)
}

async fn name(parts: &mut Parts) -> Option<String> {
    parts.extract::<Path<NameInPath>>().await.ok().map(|Path(path)| path.name)
}

impl FromRequestParts<AppState> for PathQueue {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let name = name(parts).await.ok_or_else(|| ApiError::invalid_field("name", "must be UTF-8"))?;
        Name::new(&name).map(Self).map_err(|error| ApiError::invalid_field("name", error))
    }
}

impl FromRequestParts<AppState> for PathProcess {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        PathQueue::from_request_parts(parts, state).await.map(|PathQueue(name)| Self(name))
    }
}

impl FromRequestParts<AppState> for PathRuntime {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let name = name(parts).await.ok_or_else(|| ApiError::invalid_field("name", "must be UTF-8"))?;
        validate::runtimes::runtime::name(&name).map(Self)
    }
}

#[derive(serde::Deserialize)]
struct SubjectInPath {
    id: String,
}

impl FromRequestParts<AppState> for PathSubject {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<SubjectInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("id", "must be UTF-8"))?;
        validate::fleet::subject::subject(&path.id).map(Self)
    }
}

impl FromRequestParts<AppState> for PathRun {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<SubjectInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("id", "must be UTF-8"))?;
        Label::new(&path.id).map(Self).map_err(|error| ApiError::invalid_field("id", error))
    }
}

#[derive(serde::Deserialize)]
struct BackoffInPath {
    id: String,
    process: String,
}

impl FromRequestParts<AppState> for PathBackoff {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let path = parts.extract::<Path<BackoffInPath>>().await;
        let Path(path) = path.map_err(|_| ApiError::invalid_field("id", "must be UTF-8"))?;
        let subject = validate::fleet::subject::subject(&path.id)?;
        Ok(Self { subject, process: validate::fleet::subject::process(&path.process)? })
    }
}

impl FromRequestParts<AppState> for PathArtifact {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &AppState) -> Result<Self, ApiError> {
        let job = id(parts).await.map(JobId::new).ok_or_else(|| ApiError::not_found("job"))?;
        let name = name(parts).await.ok_or_else(|| ApiError::invalid_field("name", "must be UTF-8"))?;
        if name.contains(['/', '\\']) || name == "." || name == ".." {
            return Err(ApiError::invalid_field("name", "must be one file name, without slashes, and not . or .."));
        }
        let name = Label::new(&name).map_err(|error| ApiError::invalid_field("name", error))?;
        Ok(Self { job, name })
    }
}

/// Returns the value of a header that may occur at most once.
pub(crate) fn header<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Result<Option<&'h str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(ApiError::invalid_header(name.as_str(), "occurs more than once"));
    }
    value.to_str().map(Some).map_err(|_| ApiError::invalid_header(name.as_str(), "must contain visible ASCII only"))
}

//! Subjects: facts, backoffs, timeline, and the facts that a subject's own agent reports.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::Label;
use store::fleet::backoffs::lockout::Lockout;
use store::fleet::subjects::delete::SubjectDeleted;
use store::fleet::subjects::list::SubjectFilter;
use store::fleet::subjects::put::{SubjectChange, SubjectPut};
use store::fleet::timeline::list::TimelineOf;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{
    BackoffRequest, BackoffView, FactsReport, Page, SubjectCredential, SubjectRequest, SubjectView, TimelineItem,
};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathBackoff, PathSubject};
use crate::fleet::agent_auth::{SubjectAgent, new_credential};
use crate::page::page;
use crate::state::AppState;
use crate::validate::FieldPath;
use crate::validate::fleet::subject as validate;
use crate::validate::query::{PageQuery, SubjectQuery, limit};
use crate::view::fleet as view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, put, delete))
        .routes(routes!(history))
        .routes(routes!(lock_out, let_in))
        .routes(routes!(report))
        .routes(routes!(make_credential, end_credential))
}

/// List subjects by id.
#[utoipa::path(get, path = "/api/v1/subjects", tag = "subjects", params(SubjectQuery),
    responses((status = 200, body = Page<SubjectView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<SubjectQuery>,
) -> Result<Json<Page<SubjectView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::subject(query.cursor.as_deref())?;
    let filter: SubjectFilter = query.filter()?;
    let subjects = state.store.list_subjects(principal.tenant, filter, after, limit + 1).await?;
    Ok(Json(
        page(subjects, limit, |last| cursor::after_subject(&last.id)).try_map(|one| view::subject(one, &principal))?,
    ))
}

/// Get a subject.
///
/// Includes its active work and its state for each process.
#[utoipa::path(get, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    responses((status = 200, body = SubjectView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<Json<SubjectView>, ApiError> {
    current_view(&state, &principal, id).await
}

/// Create or update a subject.
///
/// Sets the given facts; other facts stay. A null value removes a fact. Returns 409 if the subject would have too many
/// facts.
#[utoipa::path(put, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    request_body = SubjectRequest, responses((status = 200, body = SubjectView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
    JsonBody(request): JsonBody<SubjectRequest>,
) -> Result<Json<SubjectView>, ApiError> {
    let change = SubjectChange {
        id: id.clone(),
        kind: validate::kind(request.kind.as_deref())?,
        facts: validate::facts(FieldPath::Body, request.facts)?,
        actor: principal.name.to_string(),
    };
    match state.store.put_subject(principal.tenant, change).await? {
        SubjectPut::TooManyFacts => Err(too_many_facts()),
        SubjectPut::Done | SubjectPut::NotFound => {
            current_view(&state, &principal, id).await.map_err(ApiError::after_a_change)
        }
    }
}

/// Delete a subject with its facts and backoffs.
///
/// Its history stays. Returns 409 while work on it is unfinished, or if it belongs to a runtime.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}", tag = "subjects", params(("id" = String, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_subject(principal.tenant, id, principal.name.to_string()).await? {
        SubjectDeleted::Deleted => Ok(StatusCode::NO_CONTENT),
        SubjectDeleted::NotFound => Err(ApiError::not_found("subject")),
        SubjectDeleted::OfRuntime(runtime) => Err(ApiError::subject_busy(format_args!(
            "the subject belongs to the runtime {runtime}; delete the runtime first"
        ))),
        SubjectDeleted::Busy(work) => {
            let details = work.iter().map(|work| format!("{} ({} job {})", work.process, work.state, work.job));
            let details = details.collect::<Vec<_>>().join(", ");
            Err(ApiError::subject_busy(format_args!(
                "the subject has unfinished work: {details}; cancel it or wait for it to end"
            )))
        }
    }
}

/// List the history of a subject, newest first.
///
/// Still available after the subject is deleted.
#[utoipa::path(get, path = "/api/v1/subjects/{id}/history", tag = "subjects", params(("id" = String, Path), PageQuery),
    responses((status = 200, body = Page<TimelineItem>)))]
pub(crate) async fn history(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TimelineItem>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::timeline(query.cursor.as_deref())?;
    let of = TimelineOf::Subject(id.to_string());
    let items = state.store.timeline(principal.tenant, of, before, limit + 1).await?;
    if items.is_empty() && before.is_none() && state.store.subject(principal.tenant, id).await?.is_none() {
        return Err(ApiError::not_found("subject"));
    }
    let items = page(items, limit, |last| cursor::after_timeline(last.id));
    Ok(Json(items.try_map(|item| view::timeline_item_for(item, &principal))?))
}

/// Set a backoff that blocks a process, or with `*` every process, on a subject.
///
/// Replaces an existing backoff of the same process.
#[utoipa::path(put, path = "/api/v1/subjects/{id}/backoffs/{process}", tag = "subjects",
    params(("id" = String, Path), ("process" = String, Path)),
    request_body = BackoffRequest, responses((status = 200, body = BackoffView)))]
async fn lock_out(
    State(state): State<AppState>,
    principal: Principal,
    PathBackoff { subject, process }: PathBackoff,
    JsonBody(request): JsonBody<BackoffRequest>,
) -> Result<Json<BackoffView>, ApiError> {
    let lockout = Lockout {
        subject,
        process,
        until: validate::until(&request, state.store.clock().now())?,
        cause: validate::cause(request.cause)?,
        actor: principal.name.to_string(),
    };
    Ok(Json(view::backoff(state.store.lock_out(principal.tenant, lockout).await?, &principal)))
}

/// Remove a backoff.
///
/// The process may create a job for the subject at once.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}/backoffs/{process}", tag = "subjects",
    params(("id" = String, Path), ("process" = String, Path)), responses((status = 204)))]
async fn let_in(
    State(state): State<AppState>,
    principal: Principal,
    PathBackoff { subject, process }: PathBackoff,
) -> Result<StatusCode, ApiError> {
    let actor = principal.name.to_string();
    match state.store.let_in(principal.tenant, subject, process, actor).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("backoff")),
    }
}

/// Report facts as the subject's own agent.
///
/// The bearer token must be the subject's credential. Returns 404 for another subject.
#[utoipa::path(put, path = "/api/v1/subjects/{id}/facts", tag = "subjects", params(("id" = String, Path)),
    request_body = FactsReport, responses((status = 204)))]
async fn report(
    State(state): State<AppState>,
    agent: SubjectAgent,
    PathSubject(id): PathSubject,
    JsonBody(request): JsonBody<FactsReport>,
) -> Result<StatusCode, ApiError> {
    // Another subject answers like an unknown one.
    if id != agent.subject {
        return Err(ApiError::not_found("subject"));
    }
    let change = SubjectChange {
        facts: validate::facts(FieldPath::Body, request.facts)?,
        kind: None,
        actor: format!("agent of {id}"),
        id,
    };
    match state.store.report_facts(agent.tenant, change).await? {
        SubjectPut::Done => Ok(StatusCode::NO_CONTENT),
        SubjectPut::TooManyFacts => Err(too_many_facts()),
        SubjectPut::NotFound => Err(ApiError::not_found("subject")),
    }
}

/// Create the credential of a subject's agent.
///
/// The credential can set the facts of this subject and nothing else. It replaces the previous one, which stops
/// working.
#[utoipa::path(post, path = "/api/v1/subjects/{id}/credential", tag = "subjects", params(("id" = String, Path)),
    responses((status = 201, body = SubjectCredential)))]
async fn make_credential(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<(StatusCode, Json<SubjectCredential>), ApiError> {
    let (token, hash) = new_credential();
    let actor = principal.name.to_string();
    match state.store.put_subject_credential(principal.tenant, id.clone(), hash, actor).await? {
        true => Ok((StatusCode::CREATED, Json(SubjectCredential { subject: id.to_string(), token }))),
        false => Err(ApiError::not_found("subject")),
    }
}

/// Revoke the credential of a subject's agent.
///
/// The next report with the old credential is rejected with 401.
#[utoipa::path(delete, path = "/api/v1/subjects/{id}/credential", tag = "subjects", params(("id" = String, Path)),
    responses((status = 204)))]
async fn end_credential(
    State(state): State<AppState>,
    principal: Principal,
    PathSubject(id): PathSubject,
) -> Result<StatusCode, ApiError> {
    match state.store.remove_subject_credential(principal.tenant, id, principal.name.to_string()).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::not_found("subject")),
    }
}

fn too_many_facts() -> ApiError {
    let limit = domain::limits::SUBJECT_FACTS;
    ApiError::limit_reached(format_args!("the subject has reached the limit of {limit} facts; remove some first"))
}

async fn current_view(state: &AppState, principal: &Principal, id: Label) -> Result<Json<SubjectView>, ApiError> {
    let card = state.store.subject(principal.tenant, id).await?;
    let now = state.store.clock().now();
    Ok(Json(view::card(card.ok_or_else(|| ApiError::not_found("subject"))?, principal, now)?))
}

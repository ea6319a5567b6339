//! `/subjects` and `/subjects/{id}`: the fleet, and one of it.

use axum::extract::State;
use axum::response::Response;
use domain::Label;
use domain::limits::FLEET_ITEMS;
use pages::Place;
use pages::subjects::{SubjectPage, Subjects};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::extract::{Params, PathSubject};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::{PageQuery, SubjectQuery};

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// Subjects by id, and how each stands with each process.
#[utoipa::path(get, path = "/subjects", tag = "pages", operation_id = "subjects", params(SubjectQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<SubjectQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let (kind, prefix) = (query.kind.clone().unwrap_or_default(), query.prefix.clone().unwrap_or_default());
    let query = SubjectQuery { limit: query.limit.or_else(|| Some(FLEET_ITEMS.to_string())), ..query };
    let all = PageQuery { limit: None, cursor: None };
    let processes = v1::processes::list(State(state.clone()), principal.clone(), Params(all)).await?.0.items;
    let (frame, mut page) = viewer.listing(&state, Place::Subjects, v1::subjects::list, query).await?;
    if !processes.is_empty() {
        for subject in &mut page.items {
            let id = PathSubject(Label::stored(&subject.id));
            // One that was deleted since stays as the listing had it.
            if let Ok(card) = v1::subjects::get(State(state.clone()), principal.clone(), id).await {
                *subject = card.0;
            }
        }
    }
    Ok(shown(&Subjects { frame, kind, prefix, page, processes }))
}

/// One subject.
#[utoipa::path(get, path = "/subjects/{id}", tag = "pages", operation_id = "subject",
    params(("id" = String, Path), PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn one(
    State(state): State<AppState>,
    viewer: Viewer,
    PathSubject(id): PathSubject,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let subject = v1::subjects::get(State(state.clone()), principal.clone(), PathSubject(id.clone())).await?.0;
    let history =
        v1::subjects::history(State(state.clone()), principal.clone(), PathSubject(id), Params(query)).await?.0;
    let frame = viewer.frame_of(&state, Place::Subjects, &subject.id).await?;
    Ok(shown(&SubjectPage { frame, subject, history }))
}

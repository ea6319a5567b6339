//! `/subjects` and `/subjects/{id}`.

use axum::extract::State;
use axum::response::Response;
use domain::Label;
use domain::limits::FLEET_ITEMS;
use pages::DashboardPage;
use pages::fleet::subjects::{SubjectPage, Subjects};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::extract::{Params, PathSubject};
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::{PageQuery, SubjectQuery};

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page)).routes(routes!(one))
}

/// List subjects by id, with their state for each process.
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
    let processes = v1::fleet::processes::list(State(state.clone()), principal.clone(), Params(all)).await?.0.items;
    let (frame, mut page) = viewer.listing(&state, DashboardPage::Subjects, v1::fleet::subjects::list, query).await?;
    if !processes.is_empty() {
        for subject in &mut page.items {
            let id = PathSubject(Label::stored(&subject.id));
            // A subject deleted meanwhile keeps the data of the listing.
            if let Ok(card) = v1::fleet::subjects::get(State(state.clone()), principal.clone(), id).await {
                *subject = card.0;
            }
        }
    }
    Ok(render(&Subjects { frame, kind, prefix, page, processes }))
}

/// Show one subject.
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
    let subject = v1::fleet::subjects::get(State(state.clone()), principal.clone(), PathSubject(id.clone())).await?.0;
    let history =
        v1::fleet::subjects::history(State(state.clone()), principal.clone(), PathSubject(id), Params(query)).await?.0;
    let frame = viewer.frame_of(&state, DashboardPage::Subjects, &subject.id).await?;
    Ok(render(&SubjectPage { frame, subject, history }))
}

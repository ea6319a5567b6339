//! The frame around every page: navigation, signed-in principal and dead-letter count.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::Method;
use axum::http::request::Parts;
use domain::Right;
use pages::error::ErrorLink;
use pages::frame::root_of;
use pages::{Can, Crumb, DashboardPage, Frame};
use store::triggers::dead_letters::list::DeadLetterFilter;
use wire::Page;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::Params;
use crate::state::AppState;
use crate::view;

/// Returns the pages of the navigation that the principal may open. The first one is its home page.
pub(crate) fn visible_pages(principal: &Principal) -> impl Iterator<Item = DashboardPage> {
    DashboardPage::ALL.into_iter().filter(move |page| principal.may(&Method::GET, page.path()))
}

/// Returns the page to offer to a principal after an error.
pub(crate) fn error_link(principal: &Principal) -> ErrorLink {
    visible_pages(principal).next().map_or(ErrorLink::SignIn, ErrorLink::Page)
}

/// Extractor: the principal that requested a page, and the relative path to the root.
pub(super) struct Viewer {
    pub(super) principal: Principal,
    root: String,
}

impl FromRequestParts<AppState> for Viewer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &AppState) -> Result<Self, ApiError> {
        let principal = Principal::from_request_parts(parts, state).await?;
        Ok(Self { principal, root: root_of(parts.uri.path()) })
    }
}

impl Viewer {
    pub(super) fn has(&self, right: Right) -> bool {
        self.principal.has(right)
    }

    /// Returns the frame of a page of the navigation.
    pub(super) async fn frame(&self, state: &AppState, current_page: DashboardPage) -> Result<Frame, ApiError> {
        self.frame_below(state, current_page, current_page.label(), Vec::new()).await
    }

    /// Returns the frame and one listing of the API with the rights of this principal.
    pub(super) async fn listing<Q, T, F>(
        &self,
        state: &AppState,
        current_page: DashboardPage,
        list: impl FnOnce(State<AppState>, Principal, Params<Q>) -> F,
        query: Q,
    ) -> Result<(Frame, Page<T>), ApiError>
    where
        F: Future<Output = Result<Json<Page<T>>, ApiError>>,
    {
        let frame = self.frame(state, current_page).await?;
        let page = list(State(state.clone()), self.principal.clone(), Params(query)).await?.0;
        Ok((frame, page))
    }

    /// Returns the frame of a page about one object, below a page of the navigation.
    pub(super) async fn frame_of(
        &self,
        state: &AppState,
        current_page: DashboardPage,
        title: &str,
    ) -> Result<Frame, ApiError> {
        self.frame_below(state, current_page, title, vec![Crumb::here(title)]).await
    }

    /// Returns the frame of a page with its own steps of the breadcrumb.
    pub(super) async fn frame_below(
        &self,
        state: &AppState,
        current_page: DashboardPage,
        title: &str,
        trail: Vec<Crumb>,
    ) -> Result<Frame, ApiError> {
        let principal = &self.principal;
        let unresolved = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
        let dead_letters = match principal.may(&Method::GET, "/api/v1/dead-letters/count") {
            true => Some(state.store.count_dead_letters(principal.tenant, unresolved).await?),
            false => None,
        };
        Ok(Frame {
            title: title.to_owned(),
            root: self.root.clone(),
            current: Some(current_page),
            trail,
            pages: visible_pages(principal).collect(),
            principal: principal.name.to_string(),
            signed_in: principal.has_session(),
            can: Can {
                operate: self.has(Right::Operate),
                enqueue: self.has(Right::Enqueue),
                read_artifacts: self.has(Right::ReadArtifacts),
                read_logs: self.has(Right::ReadLogs),
                manage_dead_letters: self.has(Right::ManageDeadLetters),
                manage_triggers: self.has(Right::ManageTriggers),
                manage_tokens: self.has(Right::ManageTokens),
                manage_runtimes: self.has(Right::ManageRuntimes),
            },
            dead_letters: dead_letters.map(|count| (count.count, count.capped)),
            now: view::time(state.store.clock().now()),
            release: env!("CARGO_PKG_VERSION"),
        })
    }
}

//! Who looks at a page, and what stands around its content.

use axum::Json;
use axum::extract::{FromRequestParts, State};
use axum::http::Method;
use axum::http::request::Parts;
use domain::Right;
use pages::error::Onward;
use pages::frame::root_of;
use pages::{Can, Frame, Place};
use store::dead_letters::list::DeadLetterFilter;
use wire::Page;

use crate::auth::Principal;
use crate::error::ApiError;
use crate::extract::Params;
use crate::state::AppState;
use crate::view;

/// The pages of the menu that the principal may open, the first of which is where it is at home.
pub(crate) fn places(principal: &Principal) -> impl Iterator<Item = Place> {
    Place::ALL.into_iter().filter(move |place| principal.may(&Method::GET, place.path()))
}

/// Where the principal can go on when it is refused something.
pub(crate) fn onward(principal: &Principal) -> Onward {
    places(principal).next().map_or(Onward::SignIn, Onward::Page)
}

/// Whoever asked for a page, and the way from there to the root.
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

    /// What stands around a page of the menu.
    pub(super) async fn frame(&self, state: &AppState, here: Place) -> Result<Frame, ApiError> {
        self.frame_of(state, here, here.label()).await
    }

    /// The frame of a page that shows a listing of the API, and that listing as this reader may see it.
    pub(super) async fn listing<Q, T, F>(
        &self,
        state: &AppState,
        here: Place,
        list: impl FnOnce(State<AppState>, Principal, Params<Q>) -> F,
        query: Q,
    ) -> Result<(Frame, Page<T>), ApiError>
    where
        F: Future<Output = Result<Json<Page<T>>, ApiError>>,
    {
        let frame = self.frame(state, here).await?;
        let page = list(State(state.clone()), self.principal.clone(), Params(query)).await?.0;
        Ok((frame, page))
    }

    /// The same around one thing of a page of the menu.
    pub(super) async fn frame_of(&self, state: &AppState, here: Place, title: &str) -> Result<Frame, ApiError> {
        let principal = &self.principal;
        let unresolved = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
        let dead_letters = match principal.may(&Method::GET, "/api/v1/dead-letters/count") {
            true => Some(state.store.count_dead_letters(principal.tenant, unresolved).await?),
            false => None,
        };
        Ok(Frame {
            title: title.to_owned(),
            root: self.root.clone(),
            here: Some(here),
            places: places(principal).collect(),
            who: principal.name.to_string(),
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

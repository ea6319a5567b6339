//! Who looks at a page, and what stands around its content.

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use domain::Right;
use pages::frame::root_of;
use pages::{Can, Frame, Place};
use store::dead_letters::list::DeadLetterFilter;

use crate::auth::Principal;
use crate::error::ApiError;
use crate::state::AppState;
use crate::view;

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

    pub(super) async fn frame(&self, state: &AppState, here: Place, title: &str) -> Result<Frame, ApiError> {
        let principal = &self.principal;
        let may_open = |place: &Place| principal.may(&Method::GET, place.path());
        let unresolved = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
        let dead_letters = match principal.may(&Method::GET, "/api/v1/dead-letters/count") {
            true => Some(state.store.count_dead_letters(principal.tenant, unresolved).await?),
            false => None,
        };
        Ok(Frame {
            title: title.to_owned(),
            root: self.root.clone(),
            here: Some(here),
            places: Place::ALL.into_iter().filter(may_open).collect(),
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

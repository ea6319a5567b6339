//! The stream of a dashboard page: it says that matching jobs have changed, and the page reads itself again.
//!
//! It reads no job. Changes of this node wake it, and one scan per tenant and filter, shared by all tabs, finds those of
//! other nodes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;
use store::queue::list::JobFilter;
use store::signals::versions::JobVersion;
use tokio::sync::watch;

use super::{SCAN_INTERVAL, sse};
use crate::access::auth::Principal;
use crate::signals::streams::FilteredPermit;
use crate::state::AppState;

pub(super) fn stream(state: AppState, principal: Principal, filter: JobFilter, permit: FilteredPermit) -> Response {
    let every_job = JobFilter { without_content: true, ..JobFilter::default() };
    let stream = ChangedStream {
        is_filtered: filter != every_job,
        changes: state.store.notifier().tenant_changes(principal.tenant),
        stop: state.until_ended(&principal),
        state,
        principal,
        filter,
        seen: None,
        _permit: permit,
    };
    sse(unfold(stream, ChangedStream::next))
}

struct ChangedStream {
    state: AppState,
    principal: Principal,
    stop: BoxFuture<'static, ()>,
    filter: JobFilter,
    /// Changes of this node may not match. Only the scan decides.
    is_filtered: bool,
    changes: watch::Receiver<()>,
    /// The newest matching jobs at the last event.
    seen: Option<Arc<Vec<JobVersion>>>,
    _permit: FilteredPermit,
}

impl ChangedStream {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.seen.is_some() {
            self.pause(self.state.streams.changed_interval()).await?;
        }
        loop {
            let changed_here = tokio::select! {
                () = &mut self.stop => return None,
                () = tokio::time::sleep(SCAN_INTERVAL) => false,
                changed = self.changes.changed(), if !self.is_filtered => changed.is_ok(),
            };
            // If the database is unavailable, the next scan tries again; the stream stays open.
            let found = self.state.store.shared_job_versions(self.principal.tenant, &self.filter).await.ok();
            // The first event covers changes between the reading of the page and the first scan.
            let has_changed = found.is_some() && self.seen != found;
            self.seen = found.or(self.seen);
            if changed_here || has_changed {
                return Some((Ok(Event::default().event("changed").data("{}")), self));
            }
        }
    }

    async fn pause(&mut self, pause: Duration) -> Option<()> {
        tokio::select! {
            () = &mut self.stop => None,
            () = tokio::time::sleep(pause) => Some(()),
        }
    }
}

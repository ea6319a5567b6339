//! Finds the runs that the caller of an event waits for: the runs of `sync` triggers.

use domain::{EventId, TriggerId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::Mode;
use crate::triggers::events::{Event, matching_listeners};

/// A run that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedRun {
    pub trigger: TriggerId,
    pub event: EventId,
}

impl Store {
    /// Returns the runs of `sync` triggers for events that were just committed. Without a `sync` trigger it reads nothing.
    pub async fn awaited_runs(&self, events: &[Event]) -> Result<Vec<AwaitedRun>, StoreError> {
        let Some(listeners) = self.triggers_cache().cached() else { return Ok(Vec::new()) };
        // Match the filters again only for events whose source has a `sync` trigger. A run whose condition is false ends as
        // skipped.
        let may_wait = |event: &&Event| {
            listeners.of(event.tenant, event.source).iter().any(|listener| listener.mode == Mode::Sync)
        };
        let waited = events.iter().filter(may_wait).flat_map(|event| {
            let sync = matching_listeners(&listeners, event).filter(|listener| listener.mode == Mode::Sync);
            sync.map(|listener| AwaitedRun { trigger: listener.id, event: event.id })
        });
        let waited: Vec<AwaitedRun> = waited.collect();
        if waited.is_empty() {
            return Ok(waited);
        }
        match self.read(FindStartedRuns { waited: waited.clone() }).await {
            // The events are committed, so this must not fail with an error that says that nothing was changed.
            Err(StoreError::Unavailable { .. }) => Ok(waited),
            started => started,
        }
    }
}

/// Keeps the runs that exist. A trigger that this node loaded after the event was committed has no run for it.
struct FindStartedRuns {
    waited: Vec<AwaitedRun>,
}

const KNOWN: Sql = Sql::both(&["select 1 from outbox where trigger_id = $1 and event_id = $2
     union all select 1 from trigger_runs where event_id = $2 and trigger_id = $1"]);

impl Operation for FindStartedRuns {
    type Output = Vec<AwaitedRun>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<AwaitedRun>, StoreError> {
        let mut started = Vec::new();
        for waited in &self.waited {
            let params = [Param::Uuid(waited.trigger.uuid()), Param::Uuid(waited.event.uuid())];
            if tx.query_opt(&KNOWN, &params).await?.is_some() {
                started.push(*waited);
            }
        }
        Ok(started)
    }
}

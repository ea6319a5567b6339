//! Which runs whoever caused an event waits for: those of `sync` triggers (T2).

use domain::{EventId, TriggerId};

use crate::error::StoreError;
use crate::events::{Event, hearing};
use crate::store::Store;
use crate::triggers::Mode;
use crate::tx::{Operation, Param, Sql, Tx};

/// A run that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    pub trigger: TriggerId,
    pub event: EventId,
}

impl Store {
    /// The runs of events that were just written that somebody waits for. Without a `sync` trigger nothing is read.
    pub async fn waited_for(&self, events: &[Event]) -> Result<Vec<Waited>, StoreError> {
        let Some(listeners) = self.triggers_cache().last_known() else { return Ok(Vec::new()) };
        // Filters are held against an event once more only where somebody may wait.
        let may_wait = |event: &&Event| {
            listeners.of(event.tenant, event.source).iter().any(|listener| listener.mode == Mode::Sync)
        };
        let waited = events.iter().filter(may_wait).flat_map(|event| {
            let sync = hearing(&listeners, event).filter(|listener| listener.mode == Mode::Sync);
            sync.map(|listener| Waited { trigger: listener.id, event: event.id })
        });
        let waited: Vec<Waited> = waited.collect();
        if waited.is_empty() {
            return Ok(waited);
        }
        match self.read(Known { waited: waited.clone() }).await {
            // The events are written: whoever caused them must not hear that nothing was changed.
            Err(StoreError::Unavailable { .. }) => Ok(waited),
            known => known,
        }
    }
}

/// A trigger that this node learnt of after the event has nothing to do with it.
struct Known {
    waited: Vec<Waited>,
}

const KNOWN: Sql = Sql::both(&["select 1 from outbox where trigger_id = $1 and event_id = $2
     union all select 1 from trigger_runs where event_id = $2 and trigger_id = $1"]);

impl Operation for Known {
    type Output = Vec<Waited>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Waited>, StoreError> {
        let mut known = Vec::new();
        for waited in &self.waited {
            let params = [Param::Uuid(waited.trigger.uuid()), Param::Uuid(waited.event.uuid())];
            if tx.query_opt(&KNOWN, &params).await?.is_some() {
                known.push(*waited);
            }
        }
        Ok(known)
    }
}

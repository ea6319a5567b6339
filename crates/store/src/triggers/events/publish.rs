//! Publishes events from outside: messages on a topic and CloudEvents.

use std::sync::Arc;

use domain::EventId;

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::awaited_runs::AwaitedRun;
use crate::triggers::events::{Event, emit, idempotency};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    Done {
        ids: Vec<EventId>,
        /// Runs of `sync` triggers that the caller waits for.
        waited: Vec<AwaitedRun>,
        /// True if every event is a duplicate of an earlier one.
        is_duplicate: bool,
    },
    /// An idempotency key was used before with a different body.
    KeyReused,
}

impl Store {
    /// Publishes a tenant's events atomically. Returns once the resulting outbox rows are durable.
    pub async fn publish(&self, events: Vec<Event>) -> Result<Published, StoreError> {
        let events: Arc<[Event]> = events.into();
        let publish = PublishEvents { events: events.clone(), triggers: self.triggers_cache().clone() };
        let Some(PublishResult { ids, matches }) = self.write(publish).await? else { return Ok(Published::KeyReused) };
        if matches > 0 {
            self.notifier().notify(Topic::Outbox);
        }
        let waited = self.awaited_runs(&idempotency::with_ids(&events, &ids)).await?;
        let is_duplicate = idempotency::fresh(&events, &ids).is_empty();
        Ok(Published::Done { ids, waited, is_duplicate })
    }
}

struct PublishEvents {
    events: Arc<[Event]>,
    triggers: TriggerCache,
}

struct PublishResult {
    ids: Vec<EventId>,
    /// Number of runs to start.
    matches: usize,
}

impl Operation for PublishEvents {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = Option<PublishResult>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<PublishResult>, StoreError> {
        let Some(ids) = idempotency::ids(tx, &self.events).await? else { return Ok(None) };
        let listeners = self.triggers.current(tx).await?;
        let matches = emit(tx, &listeners, &idempotency::fresh(&self.events, &ids)).await?;
        Ok(Some(PublishResult { ids, matches }))
    }
}

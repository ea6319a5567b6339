//! Tells whoever listens: a message on a topic, a CloudEvent, a mail, whatever came in from outside (T1).

use std::sync::Arc;

use domain::EventId;

use crate::error::StoreError;
use crate::events::waited::Waited;
use crate::events::{Event, emit, once};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    Done {
        ids: Vec<EventId>,
        /// The runs that are waited for.
        waited: Vec<Waited>,
        /// All of them were taken in earlier.
        before: bool,
    },
    /// An idempotency key was used before, with another body.
    KeyReused,
}

impl Store {
    /// Takes a tenant's events in, all or none, and returns once what they start is durable.
    pub async fn publish(&self, events: Vec<Event>) -> Result<Published, StoreError> {
        let events: Arc<[Event]> = events.into();
        let publish = Publish { events: events.clone(), triggers: self.triggers_cache().clone() };
        let Some(Told { ids, heard }) = self.write(publish).await? else { return Ok(Published::KeyReused) };
        if heard > 0 {
            self.hints().tell(Topic::Outbox);
        }
        let waited = self.waited_for(&once::named(&events, &ids)).await?;
        let before = once::fresh(&events, &ids).is_empty();
        Ok(Published::Done { ids, waited, before })
    }
}

struct Publish {
    events: Arc<[Event]>,
    triggers: TriggerCache,
}

struct Told {
    ids: Vec<EventId>,
    /// Runs that are to be started.
    heard: usize,
}

impl Operation for Publish {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Option<Told>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Told>, StoreError> {
        let Some(ids) = once::ids(tx, &self.events).await? else { return Ok(None) };
        let listeners = self.triggers.current(tx).await?;
        let heard = emit(tx, &listeners, &once::fresh(&self.events, &ids)).await?;
        Ok(Some(Told { ids, heard }))
    }
}

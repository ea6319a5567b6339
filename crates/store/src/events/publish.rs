//! Tells whoever listens: a message on a topic, a CloudEvent, a mail, whatever came in from outside (T1).

use domain::EventId;

use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Tx};

impl Store {
    /// Takes events in, all or none, and returns once what they start is durable.
    pub async fn publish(&self, events: Vec<Event>) -> Result<Vec<EventId>, StoreError> {
        let ids = events.iter().map(|event| event.id).collect();
        if self.write(Publish { events, triggers: self.triggers_cache().clone() }).await? > 0 {
            self.hints().tell(Topic::Outbox);
        }
        Ok(ids)
    }
}

struct Publish {
    events: Vec<Event>,
    triggers: TriggerCache,
}

impl Operation for Publish {
    const WATCHES_TRIGGERS: bool = true;
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let listeners = self.triggers.current(tx).await?;
        emit(tx, &listeners, &self.events).await
    }
}

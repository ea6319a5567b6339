//! Tells whoever listens: a message on a topic, a CloudEvent, a mail, whatever came in from outside (T1).

use std::sync::Arc;

use domain::EventId;

use crate::error::StoreError;
use crate::events::waited::Waited;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Tx};

impl Store {
    /// Takes events in, all or none, and returns once what they start is durable. Gives their ids and the runs that are
    /// waited for.
    pub async fn publish(&self, events: Vec<Event>) -> Result<(Vec<EventId>, Vec<Waited>), StoreError> {
        let ids = events.iter().map(|event| event.id).collect();
        let events: Arc<[Event]> = events.into();
        let publish = Publish { events: events.clone(), triggers: self.triggers_cache().clone() };
        if self.write(publish).await? == 0 {
            return Ok((ids, Vec::new()));
        }
        self.hints().tell(Topic::Outbox);
        Ok((ids, self.waited_for(&events).await?))
    }
}

struct Publish {
    events: Arc<[Event]>,
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

//! A call of an inbound hook: events for its own trigger; a signed message is taken once (T1).

use domain::limits::{HOOK_TOLERANCE_S, SLOTS_KEEP_S};
use domain::{EventId, TriggerId};

use crate::error::StoreError;
use crate::events::{Event, Row, insert_rows};
use crate::hints::Topic;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Taken(Vec<EventId>),
    /// The same signed message was taken before.
    Replay,
    /// The trigger is off, or gone.
    NotFound,
}

impl Store {
    /// `message` is the id that the caller signed; without one there is nothing to tell a replay by.
    pub async fn receive_hook(
        &self,
        trigger: TriggerId,
        events: Vec<Event>,
        message: Option<String>,
    ) -> Result<Received, StoreError> {
        let received = self.write(Receive { trigger, events, message }).await?;
        if let Received::Taken(_) = received {
            self.hints().tell(Topic::Outbox);
        }
        Ok(received)
    }
}

struct Receive {
    trigger: TriggerId,
    events: Vec<Event>,
    message: Option<String>,
}

const ENABLED: Sql =
    Sql::both(&["select id from triggers where id = $1 and tenant = $2 and source = 'http' and enabled = $3"]);
const RECEIPT: Sql = Sql::both(&["insert into hook_receipts (trigger_id, message, received_at) values ($1, $2, $3)
     on conflict do nothing"]);

impl Operation for Receive {
    type Output = Received;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Received, StoreError> {
        let id = Param::Uuid(self.trigger.uuid());
        let Some(first) = self.events.first() else { return Ok(Received::Taken(Vec::new())) };
        let enabled = [id, Param::Int(first.tenant.0), Param::Bool(true)];
        if tx.query_opt(&ENABLED, &enabled).await?.is_none() {
            return Ok(Received::NotFound);
        }
        if let Some(message) = &self.message
            && tx.execute(&RECEIPT, &[id, Param::Text(message), Param::Time(tx.now())]).await? == 0
        {
            return Ok(Received::Replay);
        }
        let rows: Vec<Row<'_>> = self.events.iter().map(|event| Row { trigger: self.trigger, event }).collect();
        insert_rows(tx, &rows).await?;
        Ok(Received::Taken(self.events.iter().map(|event| event.id).collect()))
    }
}

impl Store {
    /// Forgets receipts that no signature could be accepted for any more, and slots that no clock goes back to.
    pub async fn prune_events(&self) -> Result<(), StoreError> {
        self.write(PruneEvents).await
    }
}

struct PruneEvents;

const OLD_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where received_at < $1"]);
const OLD_SLOTS: Sql = Sql::both(&["delete from cron_slots where fired_at < $1"]);

impl Operation for PruneEvents {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let receipts = Param::Time(tx.now().plus_s(-2 * HOOK_TOLERANCE_S));
        tx.execute(&OLD_RECEIPTS, &[receipts]).await?;
        tx.execute(&OLD_SLOTS, &[Param::Time(tx.now().plus_s(-SLOTS_KEEP_S))]).await.map(|_| ())
    }
}

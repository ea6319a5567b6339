//! A call of an inbound hook: events for its own trigger; a signed message is taken once (T1).

use domain::limits::{DELIVERY_GIVE_UP_S, HOOK_TOLERANCE_S, MAINTENANCE_ROWS, SLOTS_KEEP_S};
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

// A sender signs each attempt anew, under the same id, until it gives up. Others try about as long as we do.
const RECEIPTS_KEEP_S: i64 = DELIVERY_GIVE_UP_S + 2 * HOOK_TOLERANCE_S;

impl Store {
    /// Forgets receipts of messages that nobody sends any more, and slots that no clock goes back to. One bounded round of
    /// each; gives how many went.
    pub async fn prune_events(&self) -> Result<u64, StoreError> {
        self.write(PruneEvents).await
    }
}

struct PruneEvents;

const OLD_RECEIPTS: Sql = Sql::both(&["delete from hook_receipts where (trigger_id, message) in (
         select trigger_id, message from hook_receipts where received_at < $1 order by received_at limit $2)"]);
const OLD_SLOTS: Sql = Sql::both(&["delete from cron_slots where (trigger_id, slot_at) in (
         select trigger_id, slot_at from cron_slots where fired_at < $1 order by fired_at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneEvents {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let receipts = forget(tx, &OLD_RECEIPTS, "hook_receipts", RECEIPTS_KEEP_S).await?;
        let slots = forget(tx, &OLD_SLOTS, "cron_slots", SLOTS_KEEP_S).await?;
        Ok(receipts + slots)
    }
}

async fn forget(tx: &mut Tx<'_>, old: &Sql, kind: &str, kept_s: i64) -> Result<u64, StoreError> {
    let now = tx.now();
    let params = [Param::Time(now.plus_s(-kept_s)), Param::Int(MAINTENANCE_ROWS as i64)];
    let pruned = tx.execute(old, &params).await?;
    if pruned > 0 {
        let why = format!("{kind} are kept {kept_s} s");
        let params = [Param::Time(now), Param::Text(kind), Param::Int(pruned as i64), Param::Text(&why)];
        tx.execute(&LOG, &params).await?;
    }
    Ok(pruned)
}

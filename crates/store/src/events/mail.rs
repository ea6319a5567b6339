//! A mail from outside, which names no tenant: each address belongs to one, and its triggers hear (T1).

use domain::TenantId;
use domain::trigger::{Glob, Source};

use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::{Listener, Listeners, TriggerCache};
use crate::tx::{Operation, Tx};

const RECEIVED: &str = "received";

impl Store {
    /// Whether any trigger waits for mail to this address.
    pub async fn awaits_mail(&self, address: &str) -> Result<bool, StoreError> {
        let address = address.to_lowercase();
        self.read(Awaits { address, triggers: self.triggers_cache().clone() }).await
    }

    /// Returns once what the mail starts is durable. `data` is the mail, as JSON. Gives how many runs that are.
    pub async fn receive_mail(&self, to: &[String], data: String) -> Result<usize, StoreError> {
        // A sender may name one address twice: it is one mail to it.
        let mut to: Vec<String> = to.iter().map(|address| address.to_lowercase()).collect();
        to.sort_unstable();
        to.dedup();
        let heard = self.write(Receive { to, data, triggers: self.triggers_cache().clone() }).await?;
        if heard > 0 {
            self.hints().tell(Topic::Outbox);
        }
        Ok(heard)
    }
}

fn names(listener: &Listener, address: &str) -> bool {
    listener.filter.pattern.matches(RECEIVED, |name: &str| (name == "to").then_some(address))
}

/// Whose an address is: the tenant that named it exactly, or else by a pattern, first. Nobody hears another's mail by
/// listening to everything, nor while the other's trigger is off.
fn owner(listeners: &Listeners, address: &str) -> Option<TenantId> {
    let matching = listeners.naming_mail().filter(|(_, listener)| names(listener, address));
    let by_pattern = |listener: &Listener| {
        !listener.filter.pattern.attributes.iter().any(|(_, glob)| matches!(glob, Glob::Exact(_)))
    };
    matching.min_by_key(|(_, listener)| (by_pattern(listener), listener.id)).map(|(tenant, _)| tenant)
}

struct Awaits {
    address: String,
    triggers: TriggerCache,
}

impl Operation for Awaits {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let listeners = self.triggers.current(tx).await?;
        let Some(owner) = owner(&listeners, &self.address) else { return Ok(false) };
        Ok(listeners.of(owner, Source::Email).iter().any(|listener| names(listener, &self.address)))
    }
}

struct Receive {
    to: Vec<String>,
    data: String,
    triggers: TriggerCache,
}

impl Operation for Receive {
    const WATCHES_TRIGGERS: bool = true;
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let (listeners, now) = (self.triggers.current(tx).await?, tx.now());
        let event = |to: &String| {
            let tenant = owner(&listeners, to)?;
            Some(Event::new(now, tenant, Source::Email, RECEIVED, 0, self.data.clone()).with("to", to.as_str()))
        };
        let events: Vec<Event> = self.to.iter().filter_map(event).collect();
        emit(tx, &listeners, &events).await
    }
}

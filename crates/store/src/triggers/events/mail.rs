//! Receives mail. A mail names no tenant: each address belongs to one tenant, whose email triggers receive the event.

use domain::TenantId;
use domain::triggers::trigger::{Glob, Source};

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::{Listener, Listeners, TriggerCache};
use crate::triggers::events::{Event, emit};

const RECEIVED: &str = "received";

impl Store {
    /// Returns true if an enabled trigger accepts mail to this address.
    pub async fn accepts_mail(&self, address: &str) -> Result<bool, StoreError> {
        let address = address.to_lowercase();
        self.read(AcceptsMail { address, triggers: self.triggers_cache().clone() }).await
    }

    /// Emits the events of a mail and returns the number of runs, once they are durable. `data` is the mail as JSON.
    pub async fn receive_mail(&self, to: &[String], data: String) -> Result<usize, StoreError> {
        // A sender can name an address twice. It still receives one mail.
        let mut to: Vec<String> = to.iter().map(|address| address.to_lowercase()).collect();
        to.sort_unstable();
        to.dedup();
        let matches = self.write(ReceiveMail { to, data, triggers: self.triggers_cache().clone() }).await?;
        if matches > 0 {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(matches)
    }
}

fn names(listener: &Listener, address: &str) -> bool {
    listener.filter.pattern.matches(RECEIVED, |name: &str| (name == "to").then_some(address))
}

/// Returns the tenant that owns an address: the tenant with the oldest trigger that names it exactly, or else the oldest
/// trigger whose pattern matches it. Disabled triggers count, so a tenant with a catch-all pattern cannot receive another
/// tenant's mail while that tenant's trigger is disabled.
fn owner(listeners: &Listeners, address: &str) -> Option<TenantId> {
    let matching = listeners.naming_mail().filter(|(_, listener)| names(listener, address));
    let by_pattern = |listener: &Listener| {
        !listener.filter.pattern.attributes.iter().any(|(_, glob)| matches!(glob, Glob::Exact(_)))
    };
    matching.min_by_key(|(_, listener)| (by_pattern(listener), listener.id)).map(|(tenant, _)| tenant)
}

struct AcceptsMail {
    address: String,
    triggers: TriggerCache,
}

impl Operation for AcceptsMail {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let listeners = self.triggers.current(tx).await?;
        let Some(owner) = owner(&listeners, &self.address) else { return Ok(false) };
        Ok(listeners.of(owner, Source::Email).iter().any(|listener| names(listener, &self.address)))
    }
}

struct ReceiveMail {
    to: Vec<String>,
    data: String,
    triggers: TriggerCache,
}

impl Operation for ReceiveMail {
    const READS_TRIGGER_VERSION: bool = true;
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

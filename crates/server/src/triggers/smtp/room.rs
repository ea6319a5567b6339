//! Turns incoming mail into events in the store.

use store::Store;

use super::{BoxFuture, Mail, Mailroom, MailroomError};

/// Accepts mail for addresses that a trigger uses.
pub struct StoreMailroom {
    pub store: Store,
}

impl Mailroom for StoreMailroom {
    fn accepts(&self, address: String) -> BoxFuture<Result<bool, MailroomError>> {
        let store = self.store.clone();
        Box::pin(async move { store.accepts_mail(&address).await.map_err(|error| MailroomError(error.to_string())) })
    }

    fn deliver(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>> {
        let store = self.store.clone();
        Box::pin(async move {
            let data = serde_json::to_string(&mail).map_err(|error| MailroomError(error.to_string()))?;
            metrics::counter!("windlass_events_total").increment(mail.to.len() as u64);
            store.receive_mail(&mail.to, data).await.map(drop).map_err(|error| MailroomError(error.to_string()))
        })
    }
}

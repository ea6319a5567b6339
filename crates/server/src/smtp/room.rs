//! Mail becomes events: the mailroom of a server.

use store::Store;

use super::{BoxFuture, Mail, Mailroom, MailroomError};

/// Takes mail for addresses that a trigger waits for.
pub struct StoreMailroom {
    pub store: Store,
}

impl Mailroom for StoreMailroom {
    fn knows(&self, address: String) -> BoxFuture<Result<bool, MailroomError>> {
        let store = self.store.clone();
        Box::pin(async move { store.awaits_mail(&address).await.map_err(|error| MailroomError(error.to_string())) })
    }

    fn take(&self, mail: Mail) -> BoxFuture<Result<(), MailroomError>> {
        let store = self.store.clone();
        Box::pin(async move {
            let data = serde_json::to_string(&mail).map_err(|error| MailroomError(error.to_string()))?;
            metrics::counter!("windlass_events_total").increment(mail.to.len() as u64);
            store.receive_mail(&mail.to, data).await.map(drop).map_err(|error| MailroomError(error.to_string()))
        })
    }
}

//! Pooled PostgreSQL connections. Each remembers which tenants the row-level security of its session is set to.
//!
//! A transaction sets its tenants when it begins. A statement that is a whole transaction by itself has no `begin`: its
//! session is set to the tenants by a statement of its own, sent ahead in the same round trip, and only when they differ
//! from those of the last such statement.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard};

use deadpool::managed::{self, Metrics, RecycleResult};
use deadpool_postgres::{ClientWrapper, Manager};

use crate::db::row_level_security::SETTING;

pub(super) type ConnectionPool = managed::Pool<SessionManager>;
pub(super) type PooledConnection = managed::Object<SessionManager>;

pub(super) struct Session {
    client: ClientWrapper,
    /// The tenants of the session, as `tenant_setting` writes them.
    tenants: Mutex<String>,
}

impl Deref for Session {
    type Target = ClientWrapper;

    fn deref(&self) -> &ClientWrapper {
        &self.client
    }
}

impl Session {
    /// Sets the tenants of the session. Await it together with the statement that relies on it, and first: requests of one
    /// connection run in the order in which they are sent.
    pub(super) async fn set_tenants(&self, tenants: &str) -> Result<(), tokio_postgres::Error> {
        if *self.tenants() == tenants {
            return Ok(());
        }
        self.client.batch_execute(&format!("set {SETTING} to '{tenants}'")).await?;
        *self.tenants() = tenants.to_owned();
        Ok(())
    }

    fn tenants(&self) -> MutexGuard<'_, String> {
        self.tenants.lock().expect("lock poisoned")
    }
}

pub(super) struct SessionManager {
    pub(super) manager: Manager,
    /// Run once on every new connection; empty behind a pooler, which may hand out another session each time.
    pub(super) settings: String,
}

impl managed::Manager for SessionManager {
    type Type = Session;
    type Error = tokio_postgres::Error;

    async fn create(&self) -> Result<Session, tokio_postgres::Error> {
        let client = self.manager.create().await?;
        if !self.settings.is_empty() {
            client.batch_execute(&self.settings).await?;
        }
        Ok(Session { client, tenants: Mutex::default() })
    }

    async fn recycle(&self, session: &mut Session, metrics: &Metrics) -> RecycleResult<tokio_postgres::Error> {
        self.manager.recycle(&mut session.client, metrics).await
    }

    fn detach(&self, session: &mut Session) {
        self.manager.detach(&mut session.client);
    }
}

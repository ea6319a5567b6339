//! Finds out whether a pooler in transaction mode is between this node and PostgreSQL. Then a session can hold no state.
//!
//! The probe sends a setting with the start of a connection. PostgreSQL applies it to the session. A pooler has sessions of its
//! own: it refuses the setting, or ignores it. The result does not depend on what other clients of the pooler do, and the
//! probe leaves nothing behind.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::error::SqlState;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::Failure;
use super::postgres::first_text;
use crate::db::clock::random_unit;
use crate::error::StoreError;

/// Whether a pooler in transaction mode is between this node and PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooler {
    /// The store finds out when it opens the database.
    #[default]
    Detect,
    Transaction,
    None,
}

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns true if the start of a connection does not reach the session of its transactions.
pub(super) async fn is_pooled(config: &Config, tls: &MakeRustlsConnect) -> Result<bool, StoreError> {
    match tokio::time::timeout(PROBE_TIMEOUT, probe(config, tls)).await {
        Ok(result) => result,
        Err(_) => Err(StoreError::unavailable("connecting to the database timed out")),
    }
}

async fn probe(config: &Config, tls: &MakeRustlsConnect) -> Result<bool, StoreError> {
    let failed = |error: tokio_postgres::Error| Failure::of(&error, "connect").error;
    let mark = format!("{:016x}", random_unit().to_bits());
    let mut config = config.clone();
    let options = config.get_options().map(|options| format!("{options} ")).unwrap_or_default();
    config.options(format!("{options}-c windlass.probe={mark}"));
    let (client, connection) = match config.connect(tls.clone()).await {
        Ok(connected) => connected,
        Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => return Ok(true),
        Err(error) => return Err(failed(error)),
    };
    let probe = async move {
        let messages = client.simple_query("select current_setting('windlass.probe', true)").await;
        // The connection ends when its client is dropped.
        drop(client);
        messages
    };
    let (messages, _ended) = tokio::join!(probe, connection);
    Ok(first_text(&messages.map_err(failed)?).as_deref() != Some(mark.as_str()))
}

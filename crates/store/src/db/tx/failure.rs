//! Errors of PostgreSQL: temporary outages, commits with an unknown outcome, conflicts to retry, and bugs.

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;

use crate::error::StoreError;

/// Why a transaction failed.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// A conflict with another transaction: the operation may be retried.
    pub(super) again: bool,
}

impl Failure {
    pub(super) fn of_commit(error: &tokio_postgres::Error) -> Self {
        if may_hold(error) {
            return Self { error: StoreError::InDoubt { reason: error.to_string() }, again: false };
        }
        Self::of(error, "commit")
    }

    pub(super) fn of(error: &tokio_postgres::Error, context: &str) -> Self {
        let again = error.code().is_some_and(is_conflict);
        Self { error: postgres_error(error, context), again }
    }
}

/// Returns true if the server may have committed before the connection broke.
fn may_hold(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|state| matches!(&state.code()[..2], "08" | "57"))
}

/// Returns true for deadlocks, serialization failures and lock timeouts.
pub(super) fn is_conflict(state: &SqlState) -> bool {
    [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE, SqlState::LOCK_NOT_AVAILABLE].contains(state)
}

pub(super) fn pool_error(error: deadpool_postgres::PoolError) -> Failure {
    let error = match error {
        deadpool_postgres::PoolError::Backend(error) => postgres_error(&error, "connect"),
        error => StoreError::unavailable(error.to_string()),
    };
    Failure { error, again: false }
}

/// Adds the hosts and ports of the URL to the error. The rest of a URL may contain a password.
pub(super) fn naming(config: &Config, error: StoreError) -> StoreError {
    let StoreError::Unavailable { reason, source } = error else { return error };
    let port = |index: usize| config.get_ports().get(index).or(config.get_ports().first()).copied().unwrap_or(5432);
    let place = |(index, host): (usize, &Host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(index)),
        Host::Unix(folder) => folder.display().to_string(),
    };
    let places: Vec<String> = config.get_hosts().iter().enumerate().map(place).collect();
    StoreError::Unavailable { reason: format!("{}: {reason}", places.join(", ")), source }
}

/// Classifies an error. A closed connection, a server that starts or stops, a full disk and a read-only server are
/// temporary. Everything else is a bug.
pub(super) fn postgres_error(error: &tokio_postgres::Error, context: &str) -> StoreError {
    let reason = || match error.as_db_error() {
        Some(error) if *error.code() == SqlState::LOCK_NOT_AVAILABLE => {
            "what must change is held by another transaction that does not end".to_owned()
        }
        Some(error) => error.message().to_owned(),
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    };
    let passing = match error.code() {
        // Without a code the connection broke, or a value had the wrong type.
        None => {
            let source = std::error::Error::source(error);
            error.is_closed() || source.is_none() || source.is_some_and(|source| source.is::<std::io::Error>())
        }
        Some(state) => {
            let class = &state.code()[..2];
            let passing = [SqlState::READ_ONLY_SQL_TRANSACTION, SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT];
            matches!(class, "08" | "53" | "57" | "58" | "40" | "55") || passing.contains(state)
        }
    };
    if passing { StoreError::unavailable(reason()) } else { StoreError::unexpected(format!("{context}: {}", reason())) }
}

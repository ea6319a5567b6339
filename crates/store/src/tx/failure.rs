//! What goes wrong on PostgreSQL: what passes, what may hold all the same, and what is a bug.

use tokio_postgres::Config;
use tokio_postgres::config::Host;
use tokio_postgres::error::SqlState;

use crate::error::StoreError;

/// Why a transaction came to nothing.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Nobody's fault: it may be tried again.
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

/// Whether the server may have done what it was asked and went before it could say so.
fn may_hold(error: &tokio_postgres::Error) -> bool {
    error.code().is_none_or(|state| matches!(&state.code()[..2], "08" | "57"))
}

/// What is nobody's fault: the operation runs again.
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

/// Says where nobody answered. Of the URL only the hosts and ports are told: the rest may hold a password.
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

/// A closed connection, a server that starts, stops or has let go of us, a full disk and a read-only server pass; anything
/// else is a bug.
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
        // Without a code the server said nothing: the connection broke, or a value did not fit its type.
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

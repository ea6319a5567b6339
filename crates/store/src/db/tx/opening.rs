//! The statements that begin a transaction or a session on PostgreSQL.

use super::Operation;
use crate::db::row_level_security::SETTING;

/// Begins a transaction in the schema `windlass` and reads the database time in the same round trip. Everything is set
/// per transaction, because a pooler hands out another session for each.
///
/// A connection keeps the plan of a statement, and most plans are made while the tables are empty. A sequential scan of
/// `jobs` looks cheapest then and is very slow an hour later. Every statement has an index, so other plans are
/// disabled. `jit` is off because a sequential scan of a small table now looks expensive enough to be compiled.
///
/// A node that vanishes in a transaction keeps its locks until the server notices, by default after two hours. The
/// timeouts release them after half a minute. A transaction that waits too long for a lock fails and is retried
/// (`is_conflict`).
pub const BEGIN: &str = "begin isolation level read committed; set local search_path to windlass, pg_temp; \
                         set local idle_in_transaction_session_timeout to '30s'; set local lock_timeout to '20s'; \
                         set local enable_seqscan to off; set local enable_hashjoin to off; \
                         set local enable_mergejoin to off; set local enable_bitmapscan to off; set local jit to off; \
                         select (extract(epoch from now()) * 1000000)::bigint::text";

/// Allows every kind of plan again, for the rest of a transaction.
pub(super) const ALLOW_ALL_PLANS: &str = "set local enable_seqscan to on; set local enable_hashjoin to on; \
                                set local enable_mergejoin to on; set local enable_bitmapscan to on; \
                                set local plan_cache_mode to auto";

/// `BEGIN` for a connection with a session of its own, which has the settings already.
pub(super) const BEGIN_IN_SESSION: &str = "begin; ";

/// `BEGIN_IN_SESSION` for a transaction that only reads.
pub(super) const BEGIN_READING: &str = "begin; set local plan_cache_mode to auto";

/// The part of `BEGIN` that reads the time. It comes last.
pub(super) const TIME: &str = "select (extract(epoch from now()) * 1000000)::bigint::text";

/// The columns that a begin selects beside the time: the version of the triggers if the operation reads it, and the setting
/// of the tenants, given as an SQL expression.
pub(super) fn begin_columns<O: Operation>(tenants: &str) -> String {
    let (version, clock) = if O::READS_TRIGGER_VERSION {
        ("version::text", " from trigger_clock where id = 1")
    } else {
        ("null::text", "")
    };
    format!(", {version}, set_config('{SETTING}', {tenants}, true){clock}")
}

/// Begins a transaction and sets its tenants without asking for the time.
pub(super) fn lazy_begin(begin: &'static str, tenants: &str) -> String {
    let begin = begin.strip_suffix(TIME).unwrap_or(begin);
    format!("{begin}set local {SETTING} to '{tenants}'")
}

/// Settings of a session without a pooler. The server closes the connection of a vanished node within half a minute.
/// Prepared statements are planned once: every statement has one good plan, and planning takes longer than ending a
/// job. Reads may have optional filters, so `BEGIN_READING` reverts this.
const SESSION: &str = "set tcp_keepalives_idle to 10; set tcp_keepalives_interval to 5; \
                       set tcp_keepalives_count to 3; set tcp_user_timeout to '20s'; \
                       set plan_cache_mode to force_generic_plan; \
                       set default_transaction_isolation to 'read committed'";

/// The settings of `BEGIN` for a whole session, and `SESSION`.
pub(super) fn session_settings() -> String {
    let settings = BEGIN.split(';').filter_map(|part| part.trim().strip_prefix("set local "));
    settings.map(|setting| format!("set {setting}; ")).chain([SESSION.to_owned()]).collect()
}

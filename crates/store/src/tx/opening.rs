//! What opens a transaction on PostgreSQL, and a session.

use super::Operation;
use crate::wall::SETTING;

/// Opens a transaction in the schema of ours and learns the database's time in the same round trip. All is set per
/// transaction because a pooler gives every transaction another session.
///
/// A connection keeps the plan of a statement, and most are made while the tables are empty: reading all of `jobs` looks
/// cheapest then and is ruinous an hour later. Every statement of ours has an index to go by, so there is nothing to
/// weigh. Without `jit to off` a small table that is read whole would be compiled for, because it now looks expensive.
///
/// A node that vanishes in mid-transaction keeps its locks until the server notices, which by itself takes two hours: here
/// it is let go of after half a minute. Who waits long for a lock gives up and begins anew (`is_conflict`), and in the
/// end says so.
pub const BEGIN: &str = "begin; set local search_path to windlass, pg_temp; \
                         set local idle_in_transaction_session_timeout to '30s'; set local lock_timeout to '20s'; \
                         set local enable_seqscan to off; set local enable_hashjoin to off; \
                         set local enable_mergejoin to off; set local enable_bitmapscan to off; set local jit to off; \
                         select (extract(epoch from now()) * 1000000)::bigint::text";

/// Takes back what `BEGIN` says of plans, for the rest of a transaction.
pub(super) const WEIGH: &str = "set local enable_seqscan to on; set local enable_hashjoin to on; \
                                set local enable_mergejoin to on; set local enable_bitmapscan to on; \
                                set local plan_cache_mode to auto";

/// `BEGIN` for a connection that keeps its session: the settings stand already.
pub(super) const BEGIN_IN_SESSION: &str = "begin; ";

/// The same for what only reads.
pub(super) const BEGIN_READING: &str = "begin; set local plan_cache_mode to auto";

/// What of an opening asks for the time. In `BEGIN` it stands last.
pub(super) const TIME: &str = "select (extract(epoch from now()) * 1000000)::bigint::text";

/// What an opening asks for beside the time: the clock of the triggers where that is wanted, and a wall around the rows of its
/// tenants where the operation names them.
pub(super) fn beside_time<O: Operation>(wall: Option<&str>) -> String {
    let (version, clock) =
        if O::WATCHES_TRIGGERS { ("version::text", " from trigger_clock where id = 1") } else { ("null::text", "") };
    let wall = wall.map(|tenants| format!(", set_config('{SETTING}', {tenants}, true)")).unwrap_or_default();
    format!(", {version}{wall}{clock}")
}

/// What opens a transaction without asking for the time, with the wall around its tenants.
pub(super) fn unheard(begin: &'static str, wall: Option<&str>) -> String {
    let begin = begin.strip_suffix(TIME).unwrap_or(begin);
    let wall = wall.map(|tenants| format!("set local {SETTING} to '{tenants}'")).unwrap_or_default();
    format!("{begin}{wall}")
}

/// What only a session has. The server is to notice within half a minute that a node is gone; behind a pooler its peer is the
/// pooler. And what is prepared is planned once: as there is nothing to weigh, a plan for these very parameters is no better,
/// and making it takes as long as ending a job does. Reads may have filters that are not set, and take it back
/// (`BEGIN_READING`).
const SESSION: &str = "set tcp_keepalives_idle to 10; set tcp_keepalives_interval to 5; \
                       set tcp_keepalives_count to 3; set tcp_user_timeout to '20s'; \
                       set plan_cache_mode to force_generic_plan";

/// What `BEGIN` sets per transaction, for a whole session, and `SESSION`.
pub(super) fn session_settings() -> String {
    let settings = BEGIN.split(';').filter_map(|part| part.trim().strip_prefix("set local "));
    settings.map(|setting| format!("set {setting}; ")).chain([SESSION.to_owned()]).collect()
}

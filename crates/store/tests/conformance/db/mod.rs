//! Tests of the shared base: transactions, migrations, group commit, row-level security, clocks and notifications.

pub(crate) mod clock;
pub(crate) mod differential;
pub(crate) mod health;
pub(crate) mod outage;
pub(crate) mod plans;
pub(crate) mod pooler;
pub(crate) mod row_level_security;
pub(crate) mod schema;
mod settings;
pub(crate) mod statements;
pub(crate) mod url;
pub(crate) mod verify;

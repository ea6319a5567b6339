//! The shared base: transactions, migrations, group commit, row-level security, clocks and notifications.

pub mod backup;
pub mod canonical_json;
pub mod clock;
pub mod clock_step;
pub(crate) mod codec;
pub mod copy_database;
pub(crate) mod effects;
pub(crate) mod group_commit;
pub mod health;
pub mod migrate;
pub mod notifier;
pub(crate) mod private_files;
pub mod prunings;
pub mod retention_hold;
pub(crate) mod row_level_security;
pub mod service_heartbeat;
pub mod size;
pub(crate) mod skip_unreadable;
pub mod tx;

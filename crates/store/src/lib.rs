//! All SQL of Windlass. One operation is one transaction is one file.
//!
//! `Store` opens either database. Its methods are the operations; they stand in the folders of the groups: `queue`,
//! `fleet`, `signals`, `triggers`, `runtimes` and `access`. They are written once, over `db::tx::Tx`. Only the text of
//! a statement may differ between the databases.

pub mod access;
pub mod benchmark_data;
pub(crate) mod cache;
pub mod db;
mod error;
pub mod fleet;
pub mod queue;
pub mod runtimes;
pub mod signals;
mod store;
pub mod triggers;
pub mod verify;
pub mod workflows;

pub use access::caller::Caller;
pub use cache::stale_while_revalidate::CacheStatus;
pub use db::clock::Clock;
pub use db::tx::Pooler;
pub use error::StoreError;
pub use queue::lanes::Lane;
pub use store::{ARTIFACTS, DatabaseUrl, KEY_FILE, Store, StoreOptions};
